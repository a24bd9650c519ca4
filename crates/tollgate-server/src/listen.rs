//! Connections: accepted, told whose they are, and served until they end or the server does.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::app::App;
use crate::upstream::KEEP_ALIVE_EVERY;

/// A connection's place among those of its listener. It is given back when the last user of the connection is done with it.
#[derive(Debug)]
pub struct Held {
    _place: OwnedSemaphorePermit,
    open: IntGauge,
}

impl Held {
    fn new(place: OwnedSemaphorePermit, open: IntGauge) -> Arc<Self> {
        open.inc();
        Arc::new(Held { _place: place, open })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// Who is at the other end.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The connection's place, for what outlives the request.
    pub held: Arc<Held>,
    /// The address of the TCP peer, or the one that its PROXY header names.
    pub address: SocketAddr,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// The connection once more, where it has to be known whether its client is still there.
    line: Option<Arc<std::net::TcpStream>>,
}

/// How often it is looked whether a client is still there that has sent more than was read.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Peer {
    /// Returns when the client has gone, or will at least send no more. HTTP sees that only once it has read all that was sent before.
    pub async fn gone(&self) {
        let line = self.line.as_ref().and_then(|line| TcpStream::from_std(line.try_clone().ok()?).ok());
        let Some(line) = line else { return std::future::pending().await };
        while line.ready(Interest::READABLE).await.is_ok_and(|ready| !ready.is_read_closed()) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Tells that the server is to stop.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// One that is told by this.
    pub const fn new(told: watch::Receiver<bool>) -> Self {
        Stop(told)
    }

    /// Waits until it is told; also when nobody is left to tell.
    pub async fn told(&mut self) {
        let _gone = self.0.wait_for(|stop| *stop).await;
    }
}

/// What is spoken on a listener's connections.
pub trait Protocol: Send + Sync + 'static {
    /// Serves one connection until its client ends it, or the server stops and what is under way has ended.
    fn serve(
        &self,
        stream: TcpStream,
        peer: Peer,
        app: &App,
        stop: Stop,
    ) -> impl Future<Output = io::Result<()>> + Send;
}

/// Accepts connections until told to stop, then lets the requests under way end.
pub async fn serve(listener: TcpListener, app: Arc<App>, protocol: Arc<impl Protocol>, mut stop: Stop) {
    let room = Arc::new(Semaphore::new(app.settings.limits.max_connections));
    loop {
        let place = tokio::select! {
            place = Arc::clone(&room).acquire_owned() => place,
            () = stop.told() => break,
        };
        let Ok(place) = place else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.told() => break,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, or the peer is gone already: neither is a reason to stop.
                tracing::warn!(%error, "accept");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let held = Held::new(place, app.metrics.connections.clone());
        let peer = Peer { held, address, tls: false, line: None };
        let (app, protocol, stop) = (Arc::clone(&app), Arc::clone(&protocol), stop.clone());
        tokio::spawn(async move {
            if let Err(error) = connection(stream, peer, &app, &*protocol, stop).await {
                tracing::debug!(%error, %address, "connection");
            }
        });
    }
    drop(listener);
    // Requests end, then what they left open: every place comes back.
    let all = u32::try_from(app.settings.limits.max_connections).unwrap_or(u32::MAX);
    let _in_time = timeout(app.settings.limits.shutdown_grace, room.acquire_many(all)).await;
}

async fn connection(
    stream: TcpStream,
    mut peer: Peer,
    app: &App,
    protocol: &impl Protocol,
    stop: Stop,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if app.limiter.policies().queue() {
        peer.line = Some(Arc::new(std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?)));
    }
    SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEP_ALIVE_EVERY))?;
    protocol.serve(stream, peer, app, stop).await
}
