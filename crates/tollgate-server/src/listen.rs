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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::app::App;
use crate::body::Body;
use crate::proxy_protocol::{self, Source};

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
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
        let (wire, app, handler, watcher) =
            (wire.clone(), Arc::clone(&app), Arc::clone(&handler), graceful.watcher());
        tokio::spawn(async move {
            app.metrics.connections.inc();
            if let Err(error) = connection(stream, address, &wire, &app, handler, watcher).await {
                tracing::debug!(%error, %address, "connection");
            }
            app.metrics.connections.dec();
            drop(place);
        });
    }
    drop(listener);
    let _all_ended = timeout(app.settings.limits.shutdown_grace, graceful.shutdown()).await;
}

async fn connection(
    mut stream: TcpStream,
    address: SocketAddr,
    wire: &Wire,
    app: &App,
    handler: Arc<impl Handler>,
    watcher: Watcher,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let patience = app.settings.limits.head_timeout;
    let mut peer = Peer { address, tls: wire.tls.is_some() };
    if wire.proxy_protocol {
        if !app.settings.trust.is_proxy(address.ip()) {
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
            http(stream, peer, app, handler, watcher).await
        }
        None => http(stream, peer, app, handler, watcher).await,
    }
}

async fn http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
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
        .max_buf_size(limits.max_head)
        .pipeline_flush(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(limits.max_head).unwrap_or(u32::MAX))
        .max_concurrent_streams(256)
        .keep_alive_interval(Some(Duration::from_secs(30)));
    let service = service_fn(move |request| {
        let handler = Arc::clone(&handler);
        async move { Ok::<_, std::convert::Infallible>(handler.answer(request, &peer).await) }
    });
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
    watcher.watch(connection).await.map_err(io::Error::other)
}
