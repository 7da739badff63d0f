//! Compiles our .proto files: no protoc is needed.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

/// Messages of a model configuration: their maps are sorted, so that what is printed is stable.
const SORTED: [&str; 6] = [
    ".inference.ModelConfig",
    ".inference.ModelDynamicBatching",
    ".inference.ModelEnsembling",
    ".inference.ModelOptimizationPolicy",
    ".inference.ModelRepositoryAgents",
    ".inference.ModelWarmup",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=../../proto");
    let files = protox::compile(["model_config.proto", "grpc_service.proto"], ["../../proto"])?;
    let descriptors = PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin");
    fs::write(descriptors, files.encode_to_vec())?;
    let mut builder = tonic_prost_build::configure().bytes(".");
    for message in SORTED {
        builder = builder.btree_map(message);
    }
    builder.compile_fds(files)?;
    Ok(())
}
