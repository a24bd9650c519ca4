//! What may be sent to the HTTP doors, over a socket: it is answered or cut off, and the server goes on.
#![no_main]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;
use tollgate_server::check::Api;
use tollgate_server::http::{Http, Wire};
use tollgate_server::listen::{self, Stop};

struct Server {
    address: SocketAddr,
    _runtime: Runtime,
    _stop: tokio::sync::watch::Sender<bool>,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let address = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = tollgate_fuzz::app();
        let api = Http::new(Wire::default(), Api::new(Arc::clone(&app)));
        tokio::spawn(listen::serve(listener, app, Arc::new(api), Stop::new(stopped)));
        address
    });
    Server { address, _runtime: runtime, _stop: stop }
});

fuzz_target!(|bytes: &[u8]| {
    let mut stream = TcpStream::connect(SERVER.address).expect("the server goes on");
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // It may cut off what it has seen enough of.
    let _sent = stream.write_all(bytes);
    let _shut = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _cut = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.") || answer.starts_with(&[0, 0]), "{answer:?}");
});
