//! A tonic service (gRPC health) behind a limiter. What is refused is RESOURCE_EXHAUSTED, with the time to come back.
//!
//! `cargo run -p tollgate-tower --example tonic --features grpc`

use std::net::SocketAddr;

use tollgate::Limiter;
use tollgate_tower::LimitLayer;
use tonic::transport::Server;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};

const POLICIES: &str = r#"
    [[policy]]
    name  = "each-client"
    quota = "3/1m"
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limit = LimitLayer::new(Limiter::from_toml(POLICIES)?)
        .peer(|extensions| Some(extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:50051".to_owned());
    let incoming = TcpIncoming::bind(address.parse::<SocketAddr>()?)?;
    println!("http://{}", incoming.local_addr()?);
    let (_reporter, health) = tonic_health::server::health_reporter();
    Server::builder().layer(limit).add_service(health).serve_with_incoming(incoming).await?;
    Ok(())
}
