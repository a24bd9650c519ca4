//! Makes the types and the service of Envoy's rate limit protocol from `proto/`, without a `protoc`.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;
use prost_types::field_descriptor_proto::Type;

const ROOT: &str = "proto";
const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={ROOT}");
    let files = protox::compile([SERVICE], [ROOT])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // For reflection.
    std::fs::write(out.join("rls.descriptors"), files.encode_to_vec())?;
    // A header's bytes need not be text, and a message that is refused for them is let through by Envoy.
    let mut files = files;
    for file in &mut files.file {
        for message in file.message_type.iter_mut().filter(|message| message.name() == "RateLimitDescriptor")
        {
            let entries = message.nested_type.iter_mut().filter(|nested| nested.name() == "Entry");
            entries.flat_map(|entry| &mut entry.field).for_each(|field| field.set_type(Type::Bytes));
        }
    }
    tonic_prost_build::configure().build_client(true).include_file("protocol.rs").compile_fds(files)?;
    Ok(())
}
