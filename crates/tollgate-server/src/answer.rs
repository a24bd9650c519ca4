//! A ruling, said in HTTP; and the answers that are nobody's ruling.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::json;
use tollgate::Ruling;

use crate::body::{Body, empty, full};
use crate::settings::Settings;

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "RateLimit, RateLimit-Policy, Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset",
);

/// Whether a client speaks gRPC.
pub fn is_grpc(request: &HeaderMap) -> bool {
    request.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The refusal of a request: HTTP with a problem body, or to a client that speaks gRPC the gRPC way.
pub fn refusal(settings: &Settings, ruling: &Ruling, request: &HeaderMap, grpc: bool) -> Response<Body> {
    let mut response = if grpc {
        grpc_refusal(settings, ruling)
    } else {
        let body = settings.contract.problem(ruling).to_string();
        let mut response = Response::new(full(body));
        *response.status_mut() = ruling.reason.status();
        response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM);
        response
    };
    settings.contract.write(ruling, response.headers_mut());
    readable(settings, request, response.headers_mut(), true);
    response
}

/// Lets a browser's script read the limit headers, and the whole of a refusal where an origin is configured.
pub fn readable(settings: &Settings, request: &HeaderMap, response: &mut HeaderMap, refusal: bool) {
    if !request.contains_key(header::ORIGIN) {
        return;
    }
    response.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    if let (true, Some(Ok(origin))) = (refusal, settings.cors_origin.as_ref().map(|origin| origin.parse())) {
        response.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        response.append(header::VARY, HeaderValue::from_static("Origin"));
    }
}

/// HTTP 200 with the gRPC status in the only header block, as gRPC clients expect it: an HTTP 429 would read as UNAVAILABLE
/// and be retried at once.
fn grpc_refusal(settings: &Settings, ruling: &Ruling) -> Response<Body> {
    let mut response = Response::new(empty());
    let headers = response.headers_mut();
    let problem = settings.contract.problem(ruling);
    let message = problem["detail"].as_str().unwrap_or_default();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", u16::from(ruling.reason.grpc_status()).into());
    if let Ok(message) = message.parse() {
        headers.insert("grpc-message", message);
    }
    if let Some(retry) = ruling.retry_after() {
        let status = rpc_status(ruling.reason.grpc_status(), message, retry);
        if let Ok(value) = STANDARD_NO_PAD.encode(status).parse() {
            headers.insert("grpc-status-details-bin", value);
        }
        let milliseconds = retry.div_ceil(1_000_000).min(i32::MAX as u64);
        headers.insert("grpc-retry-pushback-ms", milliseconds.into());
    }
    response
}

/// A `google.rpc.Status` with one `google.rpc.RetryInfo`, in protobuf.
fn rpc_status(code: u8, message: &str, retry: u64) -> Vec<u8> {
    let number = |tag: u8, value: u64| {
        let mut bytes = vec![tag << 3];
        let mut rest = value;
        loop {
            let [low, ..] = rest.to_le_bytes();
            rest >>= 7;
            bytes.push(if rest > 0 { low | 0x80 } else { low & 0x7F });
            if rest == 0 {
                return bytes;
            }
        }
    };
    let nested = |tag: u8, value: &[u8]| {
        let mut bytes = number(tag, value.len() as u64);
        bytes[0] |= 2;
        bytes.extend_from_slice(value);
        bytes
    };
    let delay = [number(1, retry / 1_000_000_000), number(2, retry % 1_000_000_000)].concat();
    let info = nested(1, &delay);
    let any = [nested(1, b"type.googleapis.com/google.rpc.RetryInfo"), nested(2, &info)].concat();
    [number(1, code.into()), nested(2, message.as_bytes()), nested(3, &any)].concat()
}

/// A problem that no policy has to do with: a bad request, a missing origin.
pub fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
    let mut response = Response::new(full(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A JSON answer.
pub fn json(status: StatusCode, body: &serde_json::Value) -> Response<Body> {
    let mut response = Response::new(full(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
