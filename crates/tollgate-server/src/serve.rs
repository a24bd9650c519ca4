//! `tollgate serve`: starts the listeners, says what is promised and where, and ends in order.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use tollgate::Clock;

use crate::Failure;
use crate::admin::Admin;
use crate::app::App;
use crate::check::Api;
use crate::cli::ServeArgs;
use crate::gateway::Gateway;
use crate::http::{Http, Wire};
use crate::listen::{self, Stop};
use crate::resp::Resp;
use crate::rls::Rls;
use crate::{backend, explain, reload, salt, settings, warm};

/// Runs the server until it is told to stop (SIGTERM, SIGINT).
///
/// # Errors
/// [`Failure`] when the configuration is wrong or an address is taken.
pub fn run(arguments: &ServeArgs) -> Result<(), Failure> {
    let (settings, set) = settings::load(arguments)?;
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let layer = layer.with_ansi(std::io::stderr().is_terminal());
    // A second subscriber in one process (a test) is no reason not to serve.
    let _already = tracing_subscriber::registry().with(LevelFilter::INFO).with(layer).try_init();
    // Connections are files, of which a process may have few unless it asks. Without them it serves fewer at once.
    let _as_many_as_it_may = rlimit::increase_nofile_limit(u64::MAX);
    let (salt, salt_from) = salt::load(arguments.salt.as_deref(), settings.salt_file.as_deref())?;
    let app = App::new(settings, set, salt, arguments.config.clone(), Clock::system())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Impossible(format!("cannot start threads: {error}")))?;
    runtime.block_on(serve(Arc::new(app), &salt_from))
}

async fn serve(app: Arc<App>, salt_from: &str) -> Result<(), Failure> {
    let (stop, stopped) = watch::channel(false);
    let stopped = Stop::new(stopped);
    let mut listeners = JoinSet::new();
    let mut lines = Vec::new();
    if !app.settings.upstream.is_empty() {
        let (listener, address) = bind(app.settings.listen)?;
        let gateway = Gateway::new(Arc::clone(&app)).map_err(Failure::Impossible)?;
        let wire = Wire::of(&app).map_err(Failure::Impossible)?;
        let scheme = if wire.tls.is_some() { "https" } else { "http" };
        let origins: Vec<String> = app.settings.upstream.iter().map(ToString::to_string).collect();
        lines.push(format!("gateway  {scheme}://{address} -> {}", origins.join(", ")));
        listeners.spawn(listen::serve(
            listener,
            Arc::clone(&app),
            Arc::new(Http::new(wire, gateway)),
            stopped.clone(),
        ));
    }
    let (listener, address) = bind(app.settings.api)?;
    lines.push(format!("checks   http://{address}/v1/check and /v1/auth"));
    let api = Http::new(Wire::default(), Api::new(Arc::clone(&app)));
    listeners.spawn(listen::serve(listener, Arc::clone(&app), Arc::new(api), stopped.clone()));
    if let Some(resp) = app.settings.resp {
        let (listener, address) = bind(resp)?;
        lines.push(format!("resp     redis://{address}"));
        listeners.spawn(listen::serve(listener, Arc::clone(&app), Arc::new(Resp), stopped.clone()));
    }
    if let Some(rls) = app.settings.rls {
        let (listener, address) = bind(rls)?;
        lines.push(format!("rls      grpc://{address}"));
        let rls = Rls::new(Arc::clone(&app), stopped.clone()).await.map_err(Failure::Impossible)?;
        let rls = Arc::new(Http::new(Wire::default(), rls));
        listeners.spawn(listen::serve(listener, Arc::clone(&app), rls, stopped.clone()));
    }
    let (listener, address) = bind(app.settings.admin)?;
    lines.push(format!("admin    http://{address}/metrics"));
    let admin = Http::new(Wire::default(), Admin::new(Arc::clone(&app)));
    let (stop_admin, admin_stopped) = watch::channel(false);
    let admin_stopped = Stop::new(admin_stopped);
    let admin = tokio::spawn(listen::serve(listener, Arc::clone(&app), Arc::new(admin), admin_stopped));
    lines.push(format!("store    {}", app.settings.store.url));
    lines.push(format!("salt     {salt_from}"));
    eprint!("{}", start_message(&app, &lines));
    let watching = tokio::spawn(reload::watch(Arc::clone(&app)));
    if let Some(stacks) = app.limiter.stacks() {
        tokio::spawn(backend::watch(stacks.strict.tally_of()));
        let app = Arc::clone(&app);
        tokio::spawn(async move { warm::warm(&app, &[]).await });
    }
    told_to_stop().await;
    tracing::info!("stopping: requests under way may end, new ones are not taken; once more to end at once");
    app.stop();
    let _nobody_listens = stop.send(true);
    tokio::select! {
        () = async { while listeners.join_next().await.is_some() {} } => {}
        () = told_to_stop() => {}
    }
    // Last, so that it can be asked meanwhile whether the server is ready.
    watching.abort();
    admin.abort();
    drop(stop_admin);
    Ok(())
}

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4_096;

fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    listen()
        .map_err(|error: std::io::Error| Failure::Impossible(format!("cannot listen on {address}: {error}")))
}

fn start_message(app: &App, lines: &[String]) -> String {
    let mut text = format!("tollgate {}\n", env!("CARGO_PKG_VERSION"));
    for ready in app.limiter.policies().iter() {
        text += &format!("{}\n", explain::headline(&ready.policy));
    }
    for line in lines {
        text += &format!("  {line}\n");
    }
    text
}

async fn told_to_stop() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
