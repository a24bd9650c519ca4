//! What a Redis client may send: it is answered with whole replies, and nothing asked for is passed without a limit.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use tollgate_server::app::App;
use tollgate_server::resp::{converse, wire};

static APP: LazyLock<Arc<App>> = LazyLock::new(tollgate_fuzz::app);

fuzz_target!(|bytes: &[u8]| {
    let decided = wire::is_decided(bytes);
    let said = pollster::block_on(converse(&APP, bytes));
    assert!(said.is_empty() || said.ends_with(b"\r\n"));
    assert!(decided || said.is_empty(), "half a command is not answered");
});
