//! Generates the code in `generated/` from the `.proto` files, when asked to, and checks that it is
//! what they say. Committed, because the generator takes longer to build than most of the server.

use std::{env, fs, path::Path};

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

/// Messages and services, and the encoded descriptors; no protoc is needed.
fn generate(out: &Path) -> (Vec<u8>, Vec<u8>) {
    let files = ["model_config.proto", "grpc_service.proto"];
    let files = protox::compile(files, ["../../proto"]).expect("proto/ compiles");
    let descriptors = files.encode_to_vec();
    let mut builder = tonic_prost_build::configure().bytes(".").out_dir(out);
    for message in SORTED {
        builder = builder.btree_map(message);
    }
    builder.compile_fds(files).expect("the descriptors are complete");
    (fs::read(out.join("inference.rs")).expect("it was written just now"), descriptors)
}

/// `TROUPE_GENERATE=1 cargo test -p troupe-proto` writes what has changed.
#[test]
fn generated_code_is_what_the_proto_files_say() {
    let out = env::temp_dir().join(format!("troupe-proto-{}", std::process::id()));
    fs::create_dir(&out).unwrap();
    let (code, descriptors) = generate(&out);
    fs::remove_dir_all(&out).unwrap();
    for (name, now) in [("inference.rs", code), ("descriptors.bin", descriptors)] {
        let file = Path::new("generated").join(name);
        if env::var_os("TROUPE_GENERATE").is_some() {
            fs::write(&file, &now).unwrap();
        }
        let is_current = fs::read(&file).is_ok_and(|committed| committed == now);
        assert!(
            is_current,
            "src/proto/{}: TROUPE_GENERATE=1 cargo test -p troupe-proto",
            file.display()
        );
    }
}
