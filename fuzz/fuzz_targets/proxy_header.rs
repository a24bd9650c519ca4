//! A PROXY header: read from a stream, never past its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::proxy_protocol::{self, MAX_V1_BYTES, MAX_V2_BYTES};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    if pollster::block_on(proxy_protocol::read(&mut rest)).is_ok() {
        let taken = bytes.len() - rest.len();
        assert!(taken <= MAX_V1_BYTES.max(MAX_V2_BYTES + 16));
        let again = pollster::block_on(proxy_protocol::read(&mut &bytes[..taken]));
        assert!(again.is_ok(), "what was taken is the whole header");
    }
    let _line = proxy_protocol::parse_v1(bytes);
    if let [command, family, block @ ..] = bytes {
        let _block = proxy_protocol::parse_v2(*command, *family, block);
    }
});
