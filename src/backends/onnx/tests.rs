//! Small models of every kind under the real library: what loads, what does not, what comes out.

mod checks;
mod completes;
mod executes;
mod fails;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, LazyLock},
};

use rustix::fs::{FlockOperation, flock};

use super::{complete, prepare};
use troupe_base::{
    backend::{Backend, Executor, InstanceName, ModelFiles, Settings, Tensors},
    config::{self, ModelConfig, read_text},
    error::Result,
    tensor::{DataType, Tensor},
};

/// A Python with the library in it, made once beside the tests.
static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| {
    let home = env::current_exe().unwrap().parent().unwrap().join("onnx-tests");
    fs::create_dir_all(&home).unwrap();
    // Another test run may be making it right now.
    let lock = fs::File::create(home.join("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let (python, made) = (home.join("venv/bin/python"), home.join("made"));
    if !made.exists() {
        let base = env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
        run(Command::new(base).args(["-m", "venv", "--clear"]).arg(home.join("venv")));
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        run(Command::new(&python).args(pip).arg("onnxruntime>=1.20.1"));
        fs::write(made, "").unwrap();
    }
    python
});

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|it| panic!("{command:?}: {it}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?} failed (the tests need python3 with its venv module, and a package index that \
         pip reaches, or ORT_DYLIB_PATH):\n{said}"
    );
}

fn settings() -> Settings {
    let mut options = BTreeMap::new();
    if env::var_os("ORT_DYLIB_PATH").is_none() {
        options.insert(("python".into(), "python".into()), PYTHON.display().to_string());
    }
    Settings { options, ..Settings::default() }
}

/// One of the models beside the integration tests, served as `m`.
fn place(model: &str) -> ModelFiles {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/onnx");
    ModelFiles { name: "m".into(), model_dir: home.join(model), version: 1 }
}

fn draft(text: &str) -> config::Draft {
    let text = format!("name: 'm' backend: 'onnxruntime'\n{text}");
    read_text(&text, "config.pbtxt").unwrap()
}

fn finish(draft: config::Draft) -> Arc<ModelConfig> {
    Arc::new(draft.finish(&Default::default()).unwrap())
}

/// The config after completing it from the model, then the model itself.
fn opened(model: &str, text: &str) -> Result<(Arc<ModelConfig>, Box<dyn Executor>)> {
    let (place, settings) = (place(model), settings());
    let mut draft = draft(text);
    let written = config::json::print(&draft.proto);
    if let Some(completed) = complete(&settings, &place, &written)? {
        draft.proto = config::read_json(&completed, "completed").unwrap().proto;
    }
    let config = finish(draft);
    Ok((config.clone(), open(&settings, &place, config)?))
}

fn open(
    settings: &Settings,
    place: &ModelFiles,
    config: Arc<ModelConfig>,
) -> Result<Box<dyn Executor>> {
    let Backend::Local(opener) = prepare(settings, place, config)? else {
        panic!("an ONNX model runs in this process");
    };
    opener.open(&instance())
}

fn instance() -> InstanceName {
    let health = Arc::default();
    InstanceName { name: "m_0_0".into(), index: 0, kind: "CPU", device: 0, is_auto: false, health }
}

fn executor(model: &str, text: &str) -> Box<dyn Executor> {
    opened(model, text).unwrap_or_else(|error| panic!("{model}: {error}")).1
}

fn load_error(model: &str, text: &str) -> String {
    match opened(model, text) {
        Ok(_) => panic!("{model} should not load with\n{text}"),
        Err(error) => error.to_string(),
    }
}

/// An entry of `parameters`.
fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n")
}

fn tensor(dtype: DataType, shape: &[i64], data: impl Into<bytes::Bytes>) -> Option<Tensor> {
    Some(Tensor::new(dtype, shape.into(), data.into()).unwrap())
}

fn floats(shape: &[i64], values: &[f32]) -> Option<Tensor> {
    let data: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
    tensor(DataType::Fp32, shape, data)
}

/// Shape and values of an FP32 tensor.
fn read(tensor: &Option<Tensor>) -> (Vec<i64>, Vec<f32>) {
    let tensor = tensor.as_ref().unwrap();
    assert_eq!(tensor.dtype(), DataType::Fp32);
    let (values, _) = tensor.data().as_chunks::<4>();
    (tensor.shape().to_vec(), values.iter().map(|it| f32::from_le_bytes(*it)).collect())
}

fn failure(result: Result<Tensors>) -> String {
    result.expect_err("it should fail").to_string()
}
