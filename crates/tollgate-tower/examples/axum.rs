//! An axum service behind a limiter: 20 requests at once and 100 a minute for each client address, 5 logins a minute.
//!
//! `cargo run -p tollgate-tower --example axum`, then `curl -i http://127.0.0.1:3000/`.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use tollgate::Limiter;
use tollgate_tower::LimitLayer;

const POLICIES: &str = r#"
    [[policy]]
    name  = "site"
    quota = "100/1m burst 20"

    [[policy]]
    name    = "login"
    match   = { method = "POST", path = "/login" }
    quota   = "5/1m"
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limit = LimitLayer::new(Limiter::from_toml(POLICIES)?)
        .peer(|extensions| Some(extensions.get::<ConnectInfo<SocketAddr>>()?.0.ip()));
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/login", post(|| async { "welcome\n" }))
        .layer(limit)
        .into_make_service_with_connect_info::<SocketAddr>();
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
