//! Exchanging the policies while the server runs: validated first, swapped at once, the last good ones kept on error.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::app::App;
use crate::settings;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Reloads on SIGHUP, and when the file changes. A file that was replaced by a link is one that changed.
pub async fn watch(app: Arc<App>) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    let Some(path) = app.file.clone() else {
        while hangup.recv().await.is_some() {
            tracing::warn!("nothing to reload: the server was started without a file");
        }
        return;
    };
    let mut seen = stamp(&path);
    loop {
        let asked = tokio::select! {
            _ = hangup.recv() => true,
            () = tokio::time::sleep(LOOK_EVERY) => false,
        };
        let now = stamp(&path);
        if asked || (now != seen && now.is_some()) {
            seen = now;
            reload(&app, &path);
        }
    }
}

/// Reads the file, and puts its policies in force if all of it is right.
pub fn reload(app: &App, path: &Path) {
    let name = path.display().to_string();
    let read = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"));
    let read = read.and_then(|text| {
        settings::read(&name, &text, Some(&app.settings.store.url)).map_err(|problems| problems.to_string())
    });
    match read {
        Ok((_, set)) => {
            let generation = app.limiter.reload(set);
            app.metrics.generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
            tracing::info!(
                generation,
                file = name,
                "policies reloaded; [server], [store] and [log] change at a restart"
            );
        }
        Err(problems) => {
            app.metrics.reload_failures.inc();
            tracing::error!("policies not reloaded, the last good ones stay in force:\n{problems}");
        }
    }
}

/// What tells one version of a file from the next.
fn stamp(path: &Path) -> Option<(u64, i64, i64, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
}
