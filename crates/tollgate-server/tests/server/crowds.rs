//! Two thousand connections that want nothing, or want it slowly, beside one honest client.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::rig::{Server, connect, get, raw};

const CROWD: usize = 2_000;

/// Memory that a connection may take, in bytes.
const PER_CONNECTION: usize = 24 << 10;

/// How long an honest client may wait at most while they are there: a stall is seconds.
const STALL: Duration = Duration::from_secs(2);

/// Opens a crowd, of which a half sends the beginning byte by byte, and asks in between.
fn beside_a_crowd(server: &Server, address: &str, beginning: &[u8], honest: impl Fn()) {
    honest();
    let before = server.memory();
    let mut crowd: Vec<TcpStream> = (0..CROWD).map(|_| connect(address)).collect();
    for byte in beginning {
        for stream in crowd.iter_mut().take(CROWD / 2) {
            // Whoever dawdles may have been cut off.
            let _cut = stream.write_all(&[*byte]);
        }
        let start = Instant::now();
        honest();
        assert!(start.elapsed() < STALL, "{:?}", start.elapsed());
        thread::sleep(Duration::from_millis(20));
    }
    let grown = server.memory().saturating_sub(before);
    assert!(grown < CROWD * PER_CONNECTION, "{} KiB each", (grown / CROWD) >> 10);
    drop(crowd);
    let start = Instant::now();
    honest();
    assert!(start.elapsed() < STALL);
}

fn start() -> Server {
    let _as_many_as_it_may = rlimit::increase_nofile_limit(u64::MAX);
    Server::start(&["--resp", "127.0.0.1:0", "--rls", "127.0.0.1:0", "--limit", "1000/1s"])
}

#[test]
fn of_redis_clients() {
    let server = start();
    let honest = || {
        let said = raw(&server.resp, b"TOLLGATE default honest\r\nQUIT\r\n");
        assert!(said.starts_with("*8\r\n:0\r\n"), "{said}");
    };
    beside_a_crowd(&server, &server.resp, b"*3\r\n$8\r\nTOLLGATE\r\n$7\r\ndefa", honest);
}

#[test]
fn of_http_clients() {
    let server = start();
    let honest = || {
        let answer = get(&server.api, "/v1/check?policy=default&subject=honest", &[]);
        assert_eq!(answer.status, 200);
    };
    beside_a_crowd(&server, &server.api, b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Len", honest);
}

#[test]
fn of_grpc_clients() {
    let server = start();
    // What every connection of HTTP/2 begins with, and the head of a frame of settings.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04";
    let honest = || {
        let start = [&preface[..], b"\x00\x00\x00\x00\x00"].concat();
        let mut stream = connect(&server.rls);
        stream.write_all(&start).unwrap();
        let mut settings = [0; 9];
        std::io::Read::read_exact(&mut stream, &mut settings).unwrap();
        assert_eq!(settings[3], 4, "it answers with its own settings");
    };
    beside_a_crowd(&server, &server.rls, preface, honest);
}
