//! A refusal, said in HTTP, or to a client that speaks gRPC the gRPC way.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body_util::Full;
use tollgate::Ruling;
use tollgate::contract::Contract;

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Whether a client speaks gRPC.
pub fn is_grpc(request: &HeaderMap) -> bool {
    request.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The refusal of a request, with the headers of its contract.
pub fn refusal(contract: &Contract, ruling: &Ruling, grpc: bool) -> Response<Full<Bytes>> {
    let problem = contract.problem(ruling);
    let mut response = if grpc {
        grpc_refusal(ruling, problem["detail"].as_str().unwrap_or_default())
    } else {
        let mut response = Response::new(Full::from(problem.to_string()));
        *response.status_mut() = ruling.reason.status();
        response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM);
        response
    };
    contract.write(ruling, response.headers_mut());
    response
}

/// What is answered when there is no room, whoever asks: 503 with a reason of its own, to gRPC clients UNAVAILABLE. It has nothing to do
/// with anybody's limit, so it says nothing of any.
pub fn shed(grpc: bool) -> Response<Full<Bytes>> {
    const DETAIL: &str = "There is more to do than can be done just now. Try again later.";
    let mut response = if grpc {
        let mut response = Response::new(Full::default());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response.headers_mut().insert("grpc-status", HeaderValue::from_static("14"));
        response.headers_mut().insert("grpc-message", HeaderValue::from_static(DETAIL));
        response
    } else {
        let problem = serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Overloaded",
            "status": 503,
            "detail": DETAIL,
            "error": "shed",
        });
        let mut response = Response::new(Full::from(problem.to_string()));
        *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM);
        response
    };
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// HTTP 200 with the gRPC status in the only header block, as gRPC clients expect it: an HTTP 429 would read as UNAVAILABLE
/// and be retried at once.
fn grpc_refusal(ruling: &Ruling, message: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    write_status(ruling, message, headers);
    if let Some(retry) = ruling.retry_after() {
        let milliseconds = retry.div_ceil(1_000_000).min(i32::MAX as u64);
        headers.insert("grpc-retry-pushback-ms", milliseconds.into());
    }
    response
}

#[cfg(feature = "grpc")]
fn write_status(ruling: &Ruling, message: &str, headers: &mut HeaderMap) {
    use tonic_types::StatusExt;
    let mut details = tonic_types::ErrorDetails::new();
    if let Some(retry) = ruling.retry_after() {
        details.set_retry_info(Some(std::time::Duration::from_nanos(retry)));
    }
    let code = tonic::Code::from_i32(ruling.reason.grpc_status().into());
    // What it says is plain ASCII, so it always fits.
    let _fits = tonic::Status::with_error_details(code, message, details).add_header(headers);
}

#[cfg(not(feature = "grpc"))]
fn write_status(ruling: &Ruling, message: &str, headers: &mut HeaderMap) {
    headers.insert("grpc-status", u16::from(ruling.reason.grpc_status()).into());
    if let Ok(message) = message.parse() {
        headers.insert("grpc-message", message);
    }
}
