//! Makes the types and the service of Envoy's rate limit protocol from `proto/`, without a `protoc`.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

const ROOT: &str = "proto";
const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={ROOT}");
    let files = protox::compile([SERVICE], [ROOT])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // For reflection.
    std::fs::write(out.join("rls.descriptors"), files.encode_to_vec())?;
    tonic_prost_build::configure().build_client(true).include_file("protocol.rs").compile_fds(files)?;
    Ok(())
}
