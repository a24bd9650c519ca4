//! What comes before HTTP, and what ends a connection.

use std::io::{Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::rig::{Folder, PATIENCE, Server, connect, get, mirror, origin, raw, read_all, tollgate};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

#[test]
fn the_proxy_protocol_names_the_client_and_is_not_guessed() {
    let folder = Folder::new();
    let text = |trusted: &str| {
        format!(
            "[server]\nproxy_protocol = true\ntrusted_proxies = [\"{trusted}\"]\n[server.limits]\nhead_timeout = \"300ms\"\n\
             [[policy]]\nname = \"p\"\nquota = \"1/1h\"\n"
        )
    };
    let server = Server::with_file(&folder.write("t.toml", &text("127.0.0.1")), &mirror());
    let v1 = |client: &str| {
        raw(&server.gateway, &[format!("PROXY TCP4 {client} 10.0.0.1 4711 80\r\n").as_bytes(), GET].concat())
    };
    let first = v1("192.0.2.1");
    assert!(first.starts_with("HTTP/1.1 200") && first.contains("x-forwarded-for: 192.0.2.1\r\n"), "{first}");
    assert!(v1("192.0.2.1").starts_with("HTTP/1.1 429"));
    let mut v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    v2.extend([192, 0, 2, 1, 10, 0, 0, 1, 1, 1, 0, 80]);
    assert!(
        raw(&server.gateway, &[&v2, GET].concat()).starts_with("HTTP/1.1 429"),
        "the same client by version 2"
    );
    assert_eq!(raw(&server.gateway, GET), "", "a connection without the header is closed");
    let start = Instant::now();
    assert_eq!(raw(&server.gateway, b"PROXY TCP4 192.0.2."), "", "half a header is not waited for");
    assert!(start.elapsed() < Duration::from_secs(5));
    let stranger = Server::with_file(&folder.write("s.toml", &text("10.0.0.0/8")), &mirror());
    assert_eq!(raw(&stranger.gateway, &[b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 80\r\n", GET].concat()), "");
}

#[test]
fn tls_and_http2_are_spoken() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, pki_types};
    let folder = Folder::new();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    folder.write("cert.pem", &made.cert.pem());
    folder.write("key.pem", &made.signing_key.serialize_pem());
    let text = "[server]\ntls_certificate = \"cert.pem\"\ntls_key = \"key.pem\"\n[[policy]]\nname = \"p\"\nquota = \"2/1h\"\n";
    let server = Server::with_file(&folder.write("p.toml", text), &mirror());
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(ring::default_provider().into());
    let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(&server.gateway).await.unwrap();
        let name = pki_types::ServerName::try_from("localhost").unwrap();
        let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let executor = TokioExecutor::new();
        let (mut send, connection) =
            hyper::client::conn::http2::handshake(executor, TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut statuses = Vec::new();
        for _ in 0..3 {
            let request =
                http::Request::get("https://example.com/x").header("cookie", "a=1").header("cookie", "b=2");
            let request = request.body(tollgate_server::body::empty()).unwrap();
            let response = send.send_request(request).await.unwrap();
            statuses.push(response.status().as_u16());
            let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
            let body = String::from_utf8_lossy(&body).to_ascii_lowercase();
            if statuses.len() == 1 {
                assert!(body.starts_with("get /x http/1.1") && body.contains("host: example.com"), "{body}");
                assert!(body.contains("x-forwarded-proto: https"), "{body}");
                assert!(body.contains("cookie: a=1; b=2\r\n"), "{body}");
            }
        }
        assert_eq!(statuses, [200, 200, 429]);
    });
}

#[test]
fn a_slow_head_is_cut_and_a_huge_one_refused() {
    let folder = Folder::new();
    let text = "[server.limits]\nhead_timeout = \"300ms\"\n[[policy]]\nname = \"p\"\nquota = \"100/1m\"\n";
    let server = Server::with_file(&folder.write("p.toml", text), &mirror());
    let mut slow = connect(&server.gateway);
    slow.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-").unwrap();
    let start = Instant::now();
    read_all(&mut slow);
    assert!(start.elapsed() < Duration::from_secs(5), "a head that does not come is not waited for");
    let mut huge = b"GET / HTTP/1.1\r\nHost: x\r\nX-Huge: ".to_vec();
    huge.extend(vec![b'x'; 100 << 10]);
    huge.extend(b"\r\nConnection: close\r\n\r\n");
    let mut stream = connect(&server.gateway);
    let _refused_midway = stream.write_all(&huge);
    let answer = read_all(&mut stream);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(get(&server.gateway, "/", &[]).status, 200, "and others are served");
    for rubbish in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
    ] {
        let answer = raw(&server.gateway, rubbish);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    assert!(
        raw(&server.gateway, b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .starts_with("HTTP/1.1 400")
    );
}

#[test]
fn silent_connections_lock_nobody_out() {
    let folder = Folder::new();
    let text = "[server.limits]\nhead_timeout = \"300ms\"\nbody_timeout = \"300ms\"\nmax_connections = 5\n[[policy]]\nname = \"p\"\nquota = \"100/1m\"\n";
    let reads = origin(|head, stream| {
        if head.starts_with("POST") {
            let _cut = stream.read_to_end(&mut Vec::new());
        } else {
            let _gone =
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    let server = Server::with_file(&folder.write("p.toml", text), &reads);
    let mut idle: Vec<_> = (0..6).map(|_| connect(&server.gateway)).collect();
    idle[0].write_all(b"PRI").unwrap();
    idle[1].write_all(b"G").unwrap();
    let start = Instant::now();
    assert_eq!(get(&server.gateway, "/", &[]).status, 200);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // Bodies that stop coming are told so, at every door.
    for (address, path) in [(&server.gateway, "/"), (&server.api, "/v1/check"), (&server.admin, "/v1/reset")]
    {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 70\r\n\r\n{{"
        );
        let answer = raw(address, head.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 408"), "{path}: {answer}");
    }
}

#[test]
fn what_nobody_reads_is_not_buffered() {
    let written = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let endless = origin(move |_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n").unwrap();
        while let Ok(length @ 1..) = stream.write(&[0; 1 << 16]) {
            count.fetch_add(length, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let server = Server::start(&["--upstream", &endless]);
    let mut stream = connect(&server.gateway);
    stream.write_all(GET).unwrap();
    let so_far = || written.load(std::sync::atomic::Ordering::Relaxed);
    let mut last = usize::MAX;
    while so_far() != last {
        last = so_far();
        thread::sleep(Duration::from_millis(300));
    }
    assert!(
        (1..64 << 20).contains(&last),
        "{last} bytes were taken from the origin for a client that reads nothing"
    );
}

#[test]
fn a_tunnel_is_counted_and_given_time_to_end() {
    let url = origin(|head, stream| {
        if head.to_ascii_lowercase().contains("upgrade: websocket") {
            stream
                .write_all(
                    b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
                )
                .unwrap();
            let mut buffer = [0; 16];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                stream.write_all(&buffer[..length]).unwrap();
            }
        } else {
            assert!(!head.to_ascii_lowercase().contains("h2c"), "{head}");
            let _gone = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
        }
    });
    let mut server = Server::start(&["--upstream", &url]);
    let h2c = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
    assert!(
        raw(&server.gateway, h2c).starts_with("HTTP/1.1 204"),
        "no protocol passes that would not be counted"
    );
    let mut tunnel = connect(&server.gateway);
    tunnel
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n")
        .unwrap();
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"\r\n\r\n") {
        tunnel.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    let mut echo = || {
        tunnel.write_all(b"x").unwrap();
        tunnel.read_exact(&mut byte).is_ok()
    };
    assert!(echo());
    // The tunnel, and the connection that asks.
    assert!(server.metric("tollgate_connections") >= 2.0);
    server.signal("-TERM");
    crate::rig::wait_for("not ready", || get(&server.admin, "/readyz", &[]).status == 503);
    assert!(echo(), "a tunnel may go on within the grace");
    server.signal("-TERM");
    assert!(server.ended(), "asked twice it ends at once");
}

#[test]
fn an_upload_may_take_longer_than_an_answer() {
    let folder = Folder::new();
    let text =
        "[server.limits]\nresponse_timeout = \"400ms\"\n[[policy]]\nname = \"p\"\nquota = \"100/1m\"\n";
    let reads = origin(|_, stream| {
        let mut body = [0; 10];
        stream.read_exact(&mut body).unwrap();
        let _gone = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
    });
    let server = Server::with_file(&folder.write("p.toml", text), &reads);
    let mut stream = connect(&server.gateway);
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nConnection: close\r\n\r\n")
        .unwrap();
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(100));
        stream.write_all(b"x").unwrap();
    }
    assert!(read_all(&mut stream).starts_with("HTTP/1.1 204"));
}

#[test]
fn an_origin_of_http2_sees_its_own_authority() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = |request: http::Request<hyper::body::Incoming>| async move {
                let field = |name| {
                    request.headers().get(name).map_or("none", |value| value.to_str().unwrap()).to_owned()
                };
                let authority = request.uri().authority().map(ToString::to_string);
                let text = format!("{authority:?} {} {}", field("host"), field("x-forwarded-host"));
                Ok::<_, std::convert::Infallible>(http::Response::new(tollgate_server::body::full(text)))
            };
            let service = hyper::service::service_fn(answer);
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    let folder = Folder::new();
    let text = format!(
        "[server]\nupstream = \"http://{address}\"\nupstream_http2 = true\n[[policy]]\nname = \"p\"\nquota = \"9/1m\"\n"
    );
    let server = Server::with_file(&folder.write("p.toml", &text), "");
    let answer = get(&server.gateway, "/", &[("host", "example.com")]);
    assert_eq!((answer.status, answer.body), (200, format!("Some(\"{address}\") none example.com")));
}

#[test]
fn a_server_told_to_stop_ends_what_is_under_way_and_takes_no_more() {
    let slow = origin(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf").unwrap();
        thread::sleep(Duration::from_millis(500));
        let _gone = stream.write_all(b"half");
    });
    let mut server = Server::start(&["--upstream", &slow]);
    let mut stream = connect(&server.gateway);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"half") {
        stream.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    let (gateway, idle) = (server.gateway.clone(), connect(&server.gateway));
    server.signal("-TERM");
    assert!(read_all(&mut stream).ends_with("half"), "the answer under way was cut");
    assert!(server.ended(), "the server ends by itself, with status 0");
    assert!(std::net::TcpStream::connect(gateway).is_err());
    drop(idle);
}

#[test]
fn the_first_decision_comes_in_no_time_and_a_taken_port_says_so() {
    let start = Instant::now();
    let server = Server::start(&[]);
    assert_eq!(get(&server.api, "/v1/check?policy=default&subject=a", &[]).status, 200);
    println!("start to first decision: {:?}", start.elapsed());
    assert!(start.elapsed() < PATIENCE);
    let message = server.errors.lock().unwrap().clone();
    assert!(
        message.contains(
            "policy default: 100/1m burst 100 by gcra per address: in any interval of t at most 100"
        )
    );
    let second = tollgate().args(["serve", "--api", &server.api]).output().unwrap();
    assert_eq!(second.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&second.stderr).contains("cannot listen on"));
}
