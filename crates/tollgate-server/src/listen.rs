//! Connections: accepted, told whose they are, and served until they end or the server does.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use prometheus::IntGauge;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::app::App;
use crate::body::Body;
use crate::proxy_protocol::{self, Source};
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
}

/// What answers the requests of a listener.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request.
    fn answer(&self, request: Request<Incoming>, peer: &Peer) -> impl Future<Output = Response<Body>> + Send;
}

/// What comes before HTTP on a listener's connections.
#[derive(Clone, Default)]
pub struct Wire {
    /// TLS, if it is spoken.
    pub tls: Option<TlsAcceptor>,
    /// Whether a PROXY header comes first.
    pub proxy_protocol: bool,
}

impl Wire {
    /// The gateway's wire.
    ///
    /// # Errors
    /// A message when the certificate or the key cannot be used.
    pub fn of(app: &App) -> Result<Self, String> {
        let tls = match &app.settings.tls {
            Some((chain, key)) => Some(tls_acceptor(chain, key)?),
            None => None,
        };
        Ok(Wire { tls, proxy_protocol: app.settings.proxy_protocol })
    }
}

fn tls_acceptor(chain: &std::path::Path, key: &std::path::Path) -> Result<TlsAcceptor, String> {
    let at = |path: &std::path::Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(chain).and_then(Iterator::collect).map_err(|error| at(chain, &error));
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| at(key, &error))?;
    let builder = ServerConfig::builder_with_provider(ring::default_provider().into());
    let mut config = builder
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates?, private)
        .map_err(|error| at(chain, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts connections until told to stop, then lets the requests under way end.
pub async fn serve(
    listener: TcpListener,
    wire: Wire,
    app: Arc<App>,
    handler: Arc<impl Handler>,
    mut stop: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(app.settings.limits.max_connections));
    loop {
        let place = tokio::select! {
            place = Arc::clone(&room).acquire_owned() => place,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let Ok(place) = place else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
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
        let peer = Peer { held, address, tls: wire.tls.is_some() };
        let (wire, app, handler, watcher) =
            (wire.clone(), Arc::clone(&app), Arc::clone(&handler), graceful.watcher());
        tokio::spawn(async move {
            if let Err(error) = connection(stream, peer, &wire, &app, handler, watcher).await {
                tracing::debug!(%error, %address, "connection");
            }
        });
    }
    drop(listener);
    // Requests end, then what they left open: every place comes back.
    let all = u32::try_from(app.settings.limits.max_connections).unwrap_or(u32::MAX);
    let ended = async {
        graceful.shutdown().await;
        let _every_place = room.acquire_many(all).await;
    };
    let _in_time = timeout(app.settings.limits.shutdown_grace, ended).await;
}

async fn connection(
    mut stream: TcpStream,
    mut peer: Peer,
    wire: &Wire,
    app: &App,
    handler: Arc<impl Handler>,
    watcher: Watcher,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEP_ALIVE_EVERY))?;
    let patience = app.settings.limits.head_timeout;
    if wire.proxy_protocol {
        if !app.settings.trust.is_proxy(peer.address.ip()) {
            return Err(io::Error::other("a PROXY header from a peer that is not trusted"));
        }
        let source = timeout(patience, proxy_protocol::read(&mut stream)).await?;
        match source.map_err(|malformed| io::Error::other(malformed.0))? {
            Source::Client(client) => peer.address = client,
            Source::Peer => {}
        }
    }
    match &wire.tls {
        Some(tls) => {
            let stream = timeout(patience, tls.accept(stream)).await??;
            let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            http(stream, http2, peer, app, handler, watcher).await
        }
        None => {
            let http2 = timeout(patience, begins_with_http2(&stream)).await??;
            http(stream, http2, peer, app, handler, watcher).await
        }
    }
}

/// Whether a connection begins as HTTP/2 does. Looks at its first bytes without taking them.
async fn begins_with_http2(stream: &TcpStream) -> io::Result<bool> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut seen = [0; PREFACE.len()];
    loop {
        let length = stream.peek(&mut seen).await?;
        let begins = PREFACE.starts_with(&seen[..length]);
        if length == 0 || length == PREFACE.len() || !begins {
            return Ok(begins && length > 0);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn http(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    http2: bool,
    peer: Peer,
    app: &App,
    handler: Arc<impl Handler>,
    watcher: Watcher,
) -> io::Result<()> {
    let limits = &app.settings.limits;
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.max_head);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(limits.max_head).unwrap_or(u32::MAX))
        .max_concurrent_streams(256)
        .keep_alive_interval(Some(Duration::from_secs(30)));
    let builder = if http2 { builder.http2_only() } else { builder.http1_only() };
    // Whoever does not read what was asked for is not waited for, nor is it buffered for them.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.body_timeout));
    let service = service_fn(move |request| {
        let (handler, peer) = (Arc::clone(&handler), peer.clone());
        async move { Ok::<_, std::convert::Infallible>(handler.answer(request, &peer).await) }
    });
    let connection =
        builder.serve_connection_with_upgrades(TokioIo::new(Box::pin(stream)), service).into_owned();
    watcher.watch(connection).await.map_err(io::Error::other)
}
