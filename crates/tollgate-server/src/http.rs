//! HTTP connections: TLS and the PROXY header before them, HTTP/1.1 or HTTP/2 on them, until they end or the server does.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::app::App;
use crate::body::Body;
use crate::listen::{Peer, Protocol, Stop};
use crate::proxy_protocol::{self, Source};

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

/// HTTP over a wire, answered by a handler.
pub struct Http<H> {
    wire: Wire,
    handler: Arc<H>,
}

impl<H: Handler> Http<H> {
    /// Requests on this wire, answered by this handler.
    pub fn new(wire: Wire, handler: H) -> Self {
        Http { wire, handler: Arc::new(handler) }
    }
}

impl<H: Handler> Protocol for Http<H> {
    async fn serve(&self, mut stream: TcpStream, mut peer: Peer, app: &App, stop: Stop) -> io::Result<()> {
        let wire = &self.wire;
        let handler = Arc::clone(&self.handler);
        peer.tls = wire.tls.is_some();
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
                http(stream, http2, peer, app, handler, stop).await
            }
            None => {
                let http2 = timeout(patience, begins_with_http2(&stream)).await??;
                http(stream, http2, peer, app, handler, stop).await
            }
        }
    }
}

/// Whether a connection begins as HTTP/2 does. Looks at its first bytes without taking them.
async fn begins_with_http2(stream: &TcpStream) -> io::Result<bool> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let (mut seen, mut pause) = ([0; PREFACE.len()], Duration::from_millis(5));
    loop {
        let length = stream.peek(&mut seen).await?;
        let begins = PREFACE.starts_with(&seen[..length]);
        if length == 0 || length == PREFACE.len() || !begins {
            return Ok(begins && length > 0);
        }
        // What was seen stays there to be seen, so nothing wakes for what comes after it.
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2).min(Duration::from_millis(500));
    }
}

async fn http(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    http2: bool,
    peer: Peer,
    app: &App,
    handler: Arc<impl Handler>,
    mut stop: Stop,
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
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended.map_err(io::Error::other),
        () = stop.told() => connection.as_mut().graceful_shutdown(),
    }
    connection.await.map_err(io::Error::other)
}
