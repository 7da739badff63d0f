//! Models on GPUs, with a driver that has three: none of them is touched, only counted and named.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};

use serde_json::json;

use crate::support::{Repository, Server, http::floats, native, python};

/// Capabilities 8.0, 5.0 (too old) and 9.0; 75 and 76 are the attributes that hold them.
const DRIVER: &str = "
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 3; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    static const int major[] = {8, 5, 9};
    *value = attribute == 75 ? major[device] : 0;
    return 0;
}
";

/// The folder that has the driver.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("driver");
    fs::create_dir_all(&folder).unwrap();
    let new = folder.join(format!("new-{}", std::process::id()));
    let arguments = ["-shared", "-fPIC", "-x", "c", "-", "-o"];
    let mut compiler =
        Command::new("cc").args(arguments).arg(&new).stdin(Stdio::piped()).spawn().unwrap();
    compiler.stdin.take().unwrap().write_all(DRIVER.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success());
    fs::rename(new, folder.join("libcuda.so")).unwrap();
    folder
});

/// A server with the driver; a fetched ONNX Runtime is kept beside the tests.
fn launch(repository: Repository) -> Server {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache");
    let cache = format!("--backend-config=python,cache={}", cache.display());
    let old = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let path = PathBuf::from(format!("{}:{old}", FOLDER.display()));
    let envs = [("LD_LIBRARY_PATH", &*path), ("ORT_DYLIB_PATH", Path::new(""))];
    let server = Server::launch(repository, &["--exit-on-error=false", &cache], &envs);
    server.tried_all();
    server
}

const TELLS: &str = "
    class TritonPythonModel:
        def initialize(self, args):
            self.device = args['model_instance_kind'] + args['model_instance_device_id']

        def execute(self, requests):
            y = np.array([self.device.encode()], dtype=np.object_)
            return [pb_utils.InferenceResponse([pb_utils.Tensor('y', y)]) for _ in requests]
    ";

#[test]
fn python_models_are_told_their_gpu() {
    let model = python("x:FP32[1] -> y:BYTES[1]", TELLS);
    let on = |group: &str| model.clone().with(format!("instance_group {{ {group} }}"));
    let server = launch(Repository::of([
        ("two", on("kind: KIND_GPU gpus: 2")),
        ("auto", on("gpus: 0")),
        ("cpu", on("kind: KIND_CPU")),
        ("every", model.clone()),
        ("old", on("kind: KIND_GPU gpus: 1")),
        ("plain", native("identity", "x:FP32[1] -> y:FP32[1]")),
    ]));
    for (name, device) in [("two", "GPU2"), ("auto", "GPU0"), ("cpu", "CPU0")] {
        let said = server.infer(name, &floats(&[("x", &[1.0])])).output("y");
        assert_eq!(said, json!([device]), "{name}");
    }
    let groups = |model: &str| {
        let config = server.http.get(&format!("/v2/models/{model}/config")).ok().json();
        let group = &config["instance_group"][0];
        (group["kind"].clone(), group["gpus"].clone())
    };
    assert_eq!(groups("every"), (json!("KIND_GPU"), json!([0, 2])));
    assert_eq!(groups("plain"), (json!("KIND_CPU"), json!([])));
    let text = "instance group old_0 of model old specifies invalid or unsupported gpu id 1. GPUs \
                with at least the minimum required CUDA compute compatibility of 6.000000 are: 0, 2";
    assert!(server.state("old").contains(text), "{}", server.state("old"));
}

#[test]
fn onnx_models_need_a_library_with_cuda_for_a_gpu() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/onnx/add_sub_fp32");
    let config = fs::read_to_string(home.join("config.pbtxt")).unwrap();
    let repository = Repository::new();
    for (name, group) in [("auto", ""), ("gpu", "instance_group { kind: KIND_GPU gpus: 2 }")] {
        let config = config.replace("add_sub_fp32", name) + group;
        repository.write_file(&format!("{name}/config.pbtxt"), config);
        let model = fs::read(home.join("1/model.onnx")).unwrap();
        repository.write_file(&format!("{name}/1/model.onnx"), model);
    }
    let server = launch(repository);
    assert_eq!(server.state("auto"), "READY");
    let warned = server.logged("instance 'auto_0' of model 'auto' runs on the CPU: ");
    let reason = "CUDA execution provider is not enabled in this build";
    assert!(warned.starts_with('W') && warned.contains(reason), "{warned}");
    let state = server.state("gpu");
    for text in ["model 'gpu' has kind KIND_GPU but ONNX Runtime cannot use GPU 2: ", reason] {
        assert!(state.starts_with("UNAVAILABLE: ") && state.contains(text), "{state}");
    }
}
