//! The deployment's salt: from the environment, else from its file, else made.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use tollgate::Salt;

use crate::Failure;

/// Bytes of a salt file that are read at most.
const MAX_SALT_BYTES: usize = 4_096;

/// The salt, and where it comes from, for the start message.
///
/// # Errors
/// [`Failure`] when the text is too short, or the file cannot be read or made.
pub fn load(text: Option<&str>, file: Option<&Path>) -> Result<(Salt, String), Failure> {
    if let Some(text) = text {
        let salt =
            Salt::from_text(text).map_err(|error| Failure::Wrong(format!("TOLLGATE_SALT: {error}")))?;
        return Ok((salt, "from TOLLGATE_SALT".to_owned()));
    }
    let Some(file) = file else {
        return Ok((
            Salt::random(),
            "made for this run (set TOLLGATE_SALT or keys.salt_file to keep it)".to_owned(),
        ));
    };
    if !file.exists()
        && let Err(error) = create(file)
    {
        // A file system that cannot be written to is no reason not to serve.
        let why = format!("made for this run ({}: {error}; set TOLLGATE_SALT to keep one)", file.display());
        return Ok((Salt::random(), why));
    }
    let text = fs::read_to_string(file).map_err(|error| Failure::file(file, &error))?;
    let shown = file.display();
    let salt = if text.len() > MAX_SALT_BYTES { Err("too long".to_owned()) } else { Salt::from_text(&text) };
    let salt = salt.map_err(|error| Failure::Wrong(format!("{shown}: {error}")))?;
    Ok((salt, format!("from {shown}")))
}

/// Writes a new salt that only its owner may read. Whole or not at all: instances that start together agree on one.
fn create(file: &Path) -> std::io::Result<()> {
    let draft = file.with_extension(format!("new-{}", random_hex()));
    let mut out = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written =
        out.write_all(format!("{}{}\n", random_hex(), random_hex()).as_bytes()).and_then(|()| out.sync_all());
    let linked = written.and_then(|()| fs::hard_link(&draft, file));
    match linked {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => fs::remove_file(&draft),
        // Some file systems have no links.
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => fs::rename(&draft, file),
        other => fs::remove_file(&draft).and(other),
    }
}

fn random_hex() -> String {
    // A fingerprint under a salt that nobody knows is a random number.
    Salt::random().keys_of("salt").of(b"").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_file_is_made_once_and_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("tollgate-salt-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("salt");
        let first = load(None, Some(&file)).unwrap().0;
        let second = load(None, Some(&file)).unwrap().0;
        assert_eq!(first.keys_of("p").of(b"s"), second.keys_of("p").of(b"s"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&file, "short").unwrap();
        assert!(matches!(load(None, Some(&file)), Err(Failure::Wrong(_))));
        fs::remove_dir_all(&folder).unwrap();
    }
}
