//! A reqwest client that keeps to a quota of its own: two calls at once and four a second to each host, whoever calls.
//!
//! `cargo run -p tollgate-tower --example reqwest -- http://127.0.0.1:3000/`

use tollgate::Limiter;
use tollgate_tower::{CheckLayer, Error};
use tower::{Layer, Service, ServiceExt};

const POLICIES: &str = r#"
    [[policy]]
    name  = "each-host"
    quota = "4/1s burst 2"
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:3000/".to_owned());
    let host = |request: &reqwest::Request| request.url().host_str().unwrap_or_default().to_owned();
    let layer = CheckLayer::new(Limiter::from_toml(POLICIES)?, "each-host", host);
    let mut client = layer.layer(reqwest::Client::new());
    for call in 1..=5 {
        loop {
            let request = reqwest::Request::new(reqwest::Method::GET, url.parse()?);
            match client.ready().await?.call(request).await {
                Ok(response) => break println!("{call}: {}", response.status()),
                Err(Error::Refused(refused)) => {
                    println!("{call}: {refused}");
                    let Some(wait) = refused.retry_after else { return Err(refused.into()) };
                    tokio::time::sleep(wait).await;
                }
                Err(Error::Inner(error)) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
