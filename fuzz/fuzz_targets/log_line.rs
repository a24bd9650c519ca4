//! A line of an access log.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Some(logged) = tollgate_server::replay::line::parse(text) {
        assert!(!logged.method.is_empty());
        let _address = tollgate::client::address(&logged.client);
    }
});
