//! A reqwest client that does what the origin asks for: it waits for `Retry-After` and sends again, until its deadline.
//!
//! `cargo run -p tollgate-tower --example obey -- http://127.0.0.1:3000/`

use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Client, Method, Request, Response, StatusCode};
use tollgate_tower::ObeyLayer;
use tower::{Layer, Service, ServiceExt};

fn told(response: &Response) -> (StatusCode, &HeaderMap) {
    (response.status(), response.headers())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:3000/".to_owned());
    // Each host is obeyed for itself; add the credential where one client has several.
    let caller = |request: &Request| request.url().host_str().unwrap_or_default().to_owned();
    let method = |request: &Request| request.method().clone();
    let obey = ObeyLayer::new(Duration::from_secs(10), caller, Request::try_clone, method, told);
    let mut client = obey.layer(Client::new());
    for call in 1..=7 {
        let request = Request::new(Method::GET, url.parse()?);
        let response = client.ready().await?.call(request).await?;
        println!("{call}: {}", response.status());
    }
    Ok(())
}
