//! Forwarding headers, and the paths and queries beside them.
#![no_main]

use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tollgate::client::{Forwarding, Trust};

fuzz_target!(|bytes: &[u8]| {
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.append("x-forwarded-for", value.clone());
            headers.append("forwarded", value.clone());
            headers.append("cookie", value);
        }
    }
    let peer = [10, 0, 0, 1].into();
    for forwarding in [Forwarding::XForwardedFor, Forwarding::Forwarded, Forwarding::None] {
        let nobody = Trust { proxies: Vec::new(), forwarding };
        assert_eq!(nobody.client(peer, &headers), peer, "nobody is believed");
        let trust = Trust { proxies: ["10.0.0.0/8".parse().unwrap()].to_vec(), forwarding };
        trust.client(peer, &headers);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let (query, address) = (Some(query), None);
        let request = tollgate::Request {
            method: "GET",
            host: text,
            path,
            query,
            headers: &headers,
            address,
            size: None,
        };
        let readings = request.path_readings();
        let normal = |path: &str| {
            path.starts_with('/') && !path.contains("//") && !format!("{path}/").contains("/../")
        };
        assert!(readings.iter().all(|path| normal(path)), "{readings:?}");
        let normal = readings[0].clone();
        request.cookie("a");
        request.query_value("a");
        request.host_name();
        tollgate::path_matches(
            &text.chars().take(64).collect::<String>(),
            &normal.chars().take(256).collect::<String>(),
        );
    }
});
