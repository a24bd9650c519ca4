//! A ruling, said in HTTP; and the answers that are nobody's ruling.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::json;
use tollgate::Ruling;

use crate::body::{Body, from_full, full};
use crate::settings::Settings;

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "RateLimit, RateLimit-Policy, Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset",
);

/// The refusal of a request: HTTP with a problem body, or to a client that speaks gRPC the gRPC way.
pub fn refusal(settings: &Settings, ruling: &Ruling, request: &HeaderMap, grpc: bool) -> Response<Body> {
    let mut response = tollgate_tower::answer::refusal(&settings.contract, ruling, grpc).map(from_full);
    readable(settings, request, response.headers_mut(), true);
    response
}

/// The answer to a request that is turned away, whoever asks.
pub fn overloaded(settings: &Settings, request: &HeaderMap) -> Response<Body> {
    let mut response = tollgate_tower::answer::shed(tollgate_tower::answer::is_grpc(request)).map(from_full);
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
