//! The gateway: what passes, what does not, and what the origin and the client see of it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::rig::{Folder, Nginx, Server, connect, get, mirror, origin, raw, read_all, send};

/// The promise on the box: a real origin, 1,000 requests at once, 100 pass.
#[test]
fn exactly_the_limit_of_a_thousand_concurrent_requests_passes_to_a_real_origin() {
    let nginx = Nginx::start();
    let server = Server::start(&["--upstream", &nginx.url, "--limit", "100/60s burst 100"]);
    let barrier = Barrier::new(50);
    let start = Instant::now();
    let answers: Vec<String> = thread::scope(|scope| {
        let ask = || {
            // Twenty connections each, all open and written to before any is read.
            let mut streams: Vec<TcpStream> = (0..20).map(|_| connect(&server.gateway)).collect();
            barrier.wait();
            for stream in &mut streams {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            }
            streams.iter_mut().map(read_all).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..50).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let refilled = start.elapsed().as_millis() / 600;
    let passed = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 200")).count() as u128;
    let refused = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 429")).count() as u128;
    println!("{passed} passed, {refused} refused, in {:?}", start.elapsed());
    assert_eq!(passed + refused, 1_000);
    assert!((100..=100 + refilled).contains(&passed), "{passed} passed, {refilled} units refilled meanwhile");
    let page = answers.iter().find(|answer| answer.starts_with("HTTP/1.1 200")).unwrap();
    assert!(
        page.contains("the origin") && page.contains("ratelimit-policy: \"default\";q=100;w=60"),
        "{page}"
    );

    let refusal = get(&server.gateway, "/", &[]);
    assert_eq!(refusal.status, 429);
    let wait: u64 = refusal.header("retry-after").parse().unwrap();
    assert_eq!(wait, 1, "one unit comes back every 0.6 s");
    thread::sleep(Duration::from_secs(wait));
    assert_eq!(get(&server.gateway, "/", &[]).status, 200, "Retry-After was obeyed");
}

#[test]
fn a_refusal_is_a_contract() {
    let server = Server::start(&["--upstream", &mirror(), "--limit", "1/1m"]);
    let admitted = get(&server.gateway, "/", &[]);
    assert_eq!((admitted.status, admitted.header("ratelimit")), (200, "\"default\";r=0;t=60"));
    assert_eq!(admitted.header("x-ratelimit-remaining"), "0");
    let refused = get(&server.gateway, "/", &[("origin", "https://app.example")]);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), "60");
    assert_eq!(refused.header("ratelimit-policy"), "\"default\";q=1;w=60");
    assert_eq!(refused.header("ratelimit"), "\"default\";r=0;t=60");
    assert_eq!(refused.header("x-ratelimit-limit"), "1");
    assert_eq!(refused.header("x-ratelimit-reset"), "60");
    assert_eq!(refused.header("cache-control"), "no-store");
    assert_eq!(refused.header("content-type"), "application/problem+json");
    assert!(refused.header("access-control-expose-headers").contains("Retry-After"));
    let body = refused.json();
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&body["status"], &body["scope"]), (&429.into(), &"default".into()));
    assert_eq!(body["violated-policies"], serde_json::json!(["default"]));
    assert_eq!((&body["error"], &body["retry_after"]), (&"rate_limited".into(), &60.into()));
}

#[test]
fn grpc_clients_are_refused_the_grpc_way() {
    let server = Server::start(&["--upstream", &mirror(), "--limit", "1/1m"]);
    get(&server.gateway, "/", &[]);
    let refused =
        send("POST", &server.gateway, "/pkg.Service/Call", &[("content-type", "application/grpc+proto")], "");
    assert_eq!((refused.status, refused.header("grpc-status")), (200, "8"));
    assert_eq!(refused.header("content-type"), "application/grpc");
    assert!(refused.header("grpc-message").contains("60%20s"));
    let pushback: u64 = refused.header("grpc-retry-pushback-ms").parse().unwrap();
    assert!((59_000..=60_000).contains(&pushback), "{pushback}");
    use base64::Engine;
    let details = base64::engine::general_purpose::STANDARD_NO_PAD;
    let details = details.decode(refused.header("grpc-status-details-bin")).unwrap();
    assert_eq!(details[..2], [0x08, 8], "google.rpc.Status.code");
    let text = String::from_utf8_lossy(&details);
    assert!(text.contains("type.googleapis.com/google.rpc.RetryInfo"), "{text}");
}

#[test]
fn a_preflight_is_not_charged() {
    let server = Server::start(&["--upstream", &mirror(), "--limit", "1/1m"]);
    let asks = [("origin", "https://app.example"), ("access-control-request-method", "POST")];
    for _ in 0..5 {
        assert_eq!(send("OPTIONS", &server.gateway, "/", &asks, "").status, 200);
    }
    assert_eq!(get(&server.gateway, "/", &[]).status, 200);
    assert_eq!(
        send("OPTIONS", &server.gateway, "/", &[], "").status,
        429,
        "an OPTIONS that is no preflight is charged"
    );
}

#[test]
fn fields_of_one_hop_stay_there_and_the_client_is_told_on() {
    let server = Server::start(&["--upstream", &mirror()]);
    let answer = raw(
        &server.gateway,
        b"GET /a/b?c=d HTTP/1.1\r\nHost: example.com\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\n\
          Keep-Alive: timeout=5\r\nX-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nX-Forwarded-Proto: https\r\n\
          TE: trailers\r\nX-Real-IP: 6.6.6.6\r\nX-Forwarded-Port: 666\r\n\r\n",
    );
    let (answer_head, seen) = answer.split_once("\r\n\r\n").unwrap();
    assert!(answer_head.contains("x-origin: mirror"), "{answer_head}");
    let seen = seen.to_ascii_lowercase();
    assert!(seen.starts_with("get /a/b?c=d http/1.1\r\n"), "{seen}");
    for line in [
        "host: example.com",
        "x-end: 2",
        "x-forwarded-for: 127.0.0.1",
        "x-forwarded-proto: http",
        "te: trailers",
    ] {
        assert!(seen.contains(&format!("\r\n{line}\r\n")), "{line} is missing in {seen}");
    }
    for field in ["x-hop", "keep-alive", "666", "6.6.6.6", "\r\nforwarded:", "https"] {
        assert!(!seen.contains(field), "{field} went on in {seen}");
    }
}

#[test]
fn a_trusted_proxy_is_believed_and_nobody_else() {
    let folder = Folder::new();
    let policy = "[[policy]]\nname = \"a\"\nquota = \"1/1h\"\n";
    let trusting =
        folder.write("t.toml", &format!("[server]\ntrusted_proxies = [\"127.0.0.0/8\"]\n{policy}"));
    let server = Server::with_file(&trusting, &mirror());
    let from = |client: &str| get(&server.gateway, "/", &[("x-forwarded-for", client)]).status;
    assert_eq!([from("192.0.2.1"), from("192.0.2.1"), from("192.0.2.2")], [200, 429, 200]);
    assert_eq!(from("9.9.9.9, 192.0.2.1"), 429, "what the client wrote itself does not count");
    assert_eq!(
        [from("2001:db8::1"), from("2001:db8::2"), from("2001:db8:0:1::1")],
        [200, 429, 200],
        "a /64 is one client"
    );
    let seen =
        get(&server.gateway, "/", &[("x-forwarded-for", "192.0.2.9"), ("x-forwarded-proto", "https")]).body;
    let seen = seen.to_ascii_lowercase();
    assert!(seen.contains("x-forwarded-for: 192.0.2.9\r\nx-forwarded-for: 127.0.0.1"), "{seen}");
    assert!(seen.contains("x-forwarded-proto: https"), "{seen}");

    let server = Server::with_file(&folder.write("n.toml", policy), &mirror());
    let from = |client: &str| get(&server.gateway, "/", &[("x-forwarded-for", client)]).status;
    assert_eq!([from("192.0.2.1"), from("192.0.2.2")], [200, 429]);
}

#[test]
fn bodies_stream_both_ways() {
    // The origin sends the first half at once and the second only when it has read the request's.
    let url = origin(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").unwrap();
        let mut body = Vec::new();
        let mut byte = [0];
        while !body.ends_with(b"0\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
            body.push(byte[0]);
        }
        assert!(String::from_utf8_lossy(&body).contains("late"));
        let _gone = stream.write_all(b"6\r\nsecond\r\n0\r\n\r\n");
    });
    let server = Server::start(&["--upstream", &url]);
    let mut stream = connect(&server.gateway);
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n")
        .unwrap();
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"first") {
        stream.read_exact(&mut byte).expect("the first half comes before the request has ended");
        seen.push(byte[0]);
    }
    stream.write_all(b"4\r\nlate\r\n0\r\n\r\n").unwrap();
    assert!(read_all(&mut stream).contains("second"));
}

#[test]
fn an_upgrade_is_passed_through() {
    let url = origin(|head, stream| {
        assert!(head.to_ascii_lowercase().contains("upgrade: websocket"), "{head}");
        stream
            .write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\nhi ",
            )
            .unwrap();
        let mut buffer = [0; 64];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            stream.write_all(&buffer[..length].to_ascii_uppercase()).unwrap();
        }
    });
    let server = Server::start(&["--upstream", &url]);
    let mut stream = connect(&server.gateway);
    stream
        .write_all(b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .unwrap();
    let mut until = |end: &[u8]| {
        let mut seen = Vec::new();
        let mut byte = [0];
        while !seen.ends_with(end) {
            stream.read_exact(&mut byte).unwrap();
            seen.push(byte[0]);
        }
        stream.write_all(b"hello").unwrap();
        String::from_utf8(seen).unwrap()
    };
    let head = until(b"hi ");
    assert!(
        head.starts_with("HTTP/1.1 101") && head.to_ascii_lowercase().contains("upgrade: websocket"),
        "{head}"
    );
    until(b"HELLO");
    until(b"HELLO");
}

#[test]
fn expect_continue_is_answered_only_when_the_body_is_wanted() {
    let url = origin(|head, stream| {
        assert!(!head.to_ascii_lowercase().contains("expect:"), "{head}");
        let mut body = [0; 4];
        stream.read_exact(&mut body).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\n").unwrap();
        stream.write_all(&body).unwrap();
    });
    let server = Server::start(&["--upstream", &url, "--limit", "1/1m"]);
    let ask = || {
        let mut stream = connect(&server.gateway);
        let head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n";
        stream.write_all(head).unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        (stream, String::from_utf8_lossy(&first).into_owned())
    };
    let (mut stream, first) = ask();
    assert_eq!(first, "HTTP/1.1 100");
    stream.write_all(b"body").unwrap();
    assert!(read_all(&mut stream).contains("body"));
    assert_eq!(ask().1, "HTTP/1.1 429", "the body of a refused request is not asked for");
}

#[test]
fn a_missing_a_slow_and_a_babbling_origin_are_told_apart() {
    let folder = Folder::new();
    let policy =
        "[server.limits]\nresponse_timeout = \"200ms\"\n[[policy]]\nname = \"a\"\nquota = \"100/1m\"\n";
    let file = folder.write("p.toml", policy);
    let nobody = Server::with_file(&file, "http://127.0.0.1:1");
    let answer = get(&nobody.gateway, "/", &[]);
    assert_eq!((answer.status, answer.header("content-type")), (502, "application/problem+json"));
    assert_eq!(answer.header("x-ratelimit-limit"), "100", "it was charged, and says so");
    let silent = Server::with_file(&file, &origin(|_, _| thread::sleep(Duration::from_secs(3))));
    assert_eq!(get(&silent.gateway, "/", &[]).status, 504);
    let babbling = Server::with_file(&file, &origin(|_, stream| drop(stream.write_all(b"what?\r\n\r\n"))));
    assert_eq!(get(&babbling.gateway, "/", &[]).status, 502);
}

#[test]
fn a_body_over_its_maximum_is_413_and_charges_nothing_when_it_says_so_before() {
    let folder = Folder::new();
    let text = "[server.limits]\nmax_body = \"1KiB\"\n[[policy]]\nname = \"a\"\nquota = \"2/1m\"\n";
    let reads = origin(|_, stream| {
        let mut all = Vec::new();
        let _broken = stream.read_to_end(&mut all);
    });
    let server = Server::with_file(&folder.write("p.toml", text), &reads);
    for _ in 0..3 {
        assert_eq!(send("POST", &server.gateway, "/", &[], &"x".repeat(2_000)).status, 413);
    }
    // Announced by nobody, so it is only seen on the way.
    let mut chunked = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    chunked.extend(b"400\r\n");
    chunked.extend(vec![b'x'; 0x400]);
    chunked.extend(b"\r\n400\r\n");
    chunked.extend(vec![b'x'; 0x400]);
    chunked.extend(b"\r\n0\r\n\r\n");
    assert!(raw(&server.gateway, &chunked).starts_with("HTTP/1.1 413"));
    let policies = get(&server.admin, "/v1/standing?policy=a&subject=127.0.0.1", &[]).json();
    assert_eq!(
        policies["policies"][0]["remaining"], 1,
        "the three that announced their size were not charged"
    );
}

#[test]
fn several_origins_take_turns() {
    let says = |name: &'static str| {
        origin(move |_, stream| {
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\n{name}");
            let _gone = stream.write_all(answer.as_bytes());
        })
    };
    let server = Server::start(&["--upstream", &format!("{},{}", says("a"), says("b"))]);
    let bodies: Vec<String> = (0..4).map(|_| get(&server.gateway, "/", &[]).body).collect();
    assert_eq!(bodies.concat().matches('a').count(), 2, "{bodies:?}");
}

#[test]
fn a_leaky_queue_delays_before_it_refuses() {
    let folder = Folder::new();
    let text = "[[policy]]\nname = \"q\"\nquota = \"5/1s burst 1 queue 2\"\nalgorithm = \"leaky-queue\"\n";
    let server = Server::with_file(&folder.write("p.toml", text), &mirror());
    let start = Instant::now();
    let mut statuses: Vec<(u16, Duration)> = thread::scope(|scope| {
        let ask = || (get(&server.gateway, "/", &[]).status, start.elapsed());
        let threads: Vec<_> = (0..5).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    statuses.sort_unstable();
    let codes: Vec<u16> = statuses.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [200, 200, 200, 429, 429]);
    assert!(
        statuses[1].1 >= Duration::from_millis(200) && statuses[2].1 >= Duration::from_millis(400),
        "{statuses:?}"
    );
}
