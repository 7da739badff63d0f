//! Real workers under the real `python3`: what models may do, and what they must not break.

use std::{
    cell::{Cell, RefCell},
    fs,
    path::PathBuf,
    rc::Rc,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Runtime, complete, prepare};
use troupe_base::{
    backend::{Backend, Completion, Executed, InstanceName, ModelFiles, Outcome, Remote, Settings},
    config::{ModelConfig, read_text},
    error::{Error, ErrorKind, Result},
    model::Health,
    request::{Context, Parameter, Reply, Request, Response, Wanted},
    tensor::{DataType, Owner, SegmentPool, Shape, Tensor},
};

mod answers;
mod calls;
mod calls_many;
mod coroutines;
mod crashes;
mod environments;
mod loading;
mod memory;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A model's folder, removed in the end.
struct Model {
    files: ModelFiles,
    settings: Settings,
    config: ModelConfig,
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.files.model_dir);
    }
}

fn scratch() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().unwrap().join("python-tests")
}

fn settings() -> Settings {
    let cache = scratch().join("cache").display().to_string();
    let options = [(("python".to_owned(), "cache".to_owned()), cache)];
    Settings { options: options.into(), provision: true, ..Settings::default() }
}

/// A model `m` with inputs `IN0…` and outputs `OUT0…` of the given types and dims.
fn model(source: &str, inputs: &[(DataType, &[i64])], outputs: &[(DataType, &[i64])]) -> Model {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = scratch().join(format!("m-{}-{number}", std::process::id()));
    fs::create_dir_all(folder.join("1")).unwrap();
    let source = format!("import triton_python_backend_utils as pb_utils\n{}", dedent(source));
    fs::write(folder.join("1/model.py"), source).unwrap();
    let mut text = "name: 'm' backend: 'python'\n".to_owned();
    for (kind, name, tensors) in [("input", "IN", inputs), ("output", "OUT", outputs)] {
        for (i, (dtype, dims)) in tensors.iter().enumerate() {
            let dtype = dtype.config_name();
            text += &format!("{kind} {{ name: '{name}{i}' data_type: {dtype} dims: {dims:?} }}\n");
        }
    }
    let config = configured(&text);
    let files = ModelFiles { name: "m".into(), model_dir: folder, version: 1 };
    Model { files, settings: settings(), config }
}

fn configured(text: &str) -> ModelConfig {
    read_text(text, "config.pbtxt").unwrap().finish(&Default::default()).unwrap()
}

/// Takes the indentation of the first line off every line.
fn dedent(source: &str) -> String {
    let lines = source.lines().skip_while(|it| it.trim().is_empty());
    let indent = lines.clone().next().map_or(0, |it| it.len() - it.trim_start().len());
    lines.map(|it| it.get(indent..).unwrap_or_default().to_owned() + "\n").collect()
}

/// As of one server: tests share their fork servers.
fn runtime() -> &'static Runtime {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(Runtime::default);
    &RUNTIME
}

impl Model {
    fn open_with(&self, health: &Arc<Health>) -> Result<Box<dyn Remote>> {
        self.open_in(runtime(), health)
    }

    fn open_in(&self, runtime: &Runtime, health: &Arc<Health>) -> Result<Box<dyn Remote>> {
        let config = Arc::new(self.config.clone());
        let Backend::Remote(opener) = prepare(runtime, &self.settings, &self.files, config)? else {
            panic!("a Python model runs elsewhere");
        };
        let instance = InstanceName {
            name: "m_0_0".into(),
            index: 0,
            kind: "CPU",
            device: 0,
            is_auto: true,
            health: health.clone(),
        };
        (opener.open(&instance)?.start)()
    }

    fn open(&self) -> Box<dyn Remote> {
        self.open_with(&Arc::default()).unwrap()
    }

    fn open_error(&self) -> String {
        match self.open_with(&Arc::default()) {
            Ok(_) => panic!("it should not load"),
            Err(error) => error.to_string(),
        }
    }

    fn file(&self, path: &str, text: &str) {
        fs::write(self.files.model_dir.join(path), text).unwrap();
    }
}

type Group = Result<Vec<Result<Response>>>;

/// Collects the groups of one start; sends them off when its last `Rc` is dropped.
struct Collect {
    groups: RefCell<Vec<Option<Group>>>,
    through: RefCell<Option<oneshot::Sender<Vec<Group>>>>,
    /// Nothing of it executes any more.
    stopped: Cell<bool>,
}

impl Completion for Collect {
    fn executed(&self, executed: Executed) {
        let slot = &mut self.groups.borrow_mut()[executed.group];
        assert!(slot.is_none(), "a group was answered twice");
        let now = |outcome| match outcome {
            Outcome::Answered(result) => result,
            _ => panic!("it should answer at once"),
        };
        *slot = Some(executed.results.map(|it| it.into_iter().map(now).collect()));
    }

    fn not_started(&self, group: usize, _: Vec<Request>) {
        let slot = &mut self.groups.borrow_mut()[group];
        assert!(slot.is_none(), "a group was answered twice");
        *slot = Some(Err(Error::unavailable("not started")));
    }

    fn has_stopped(&self) {
        self.stopped.set(true);
    }

    fn detach(&self, _: usize, _: usize) -> Option<Reply> {
        None
    }
}

impl Drop for Collect {
    fn drop(&mut self) {
        let groups = self.groups.borrow_mut().drain(..).map(|it| it.unwrap()).collect();
        let _ = self.through.borrow_mut().take().unwrap().send(groups);
    }
}

async fn run(remote: &mut dyn Remote, groups: Vec<Vec<Request>>) -> Vec<Group> {
    let (sender, receiver) = oneshot::channel();
    let done = Collect {
        groups: RefCell::new(groups.iter().map(|_| None).collect()),
        through: RefCell::new(Some(sender)),
        stopped: Cell::default(),
    };
    remote.start(groups, Rc::new(done));
    receiver.await.unwrap()
}

/// One request alone.
async fn ask(remote: &mut dyn Remote, request: Request) -> Result<Response> {
    run(remote, vec![vec![request]]).await.pop().unwrap()?.pop().unwrap()
}

/// The only output of one request alone.
async fn output(remote: &mut dyn Remote, request: Request) -> Tensor {
    ask(remote, request).await.unwrap().outputs[0].clone().unwrap()
}

fn request(inputs: Vec<Tensor>) -> Request {
    Request { inputs: inputs.into_iter().map(Some).collect(), ..Request::default() }
}

fn fp32(shape: &[i64], values: &[f32]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
    Tensor::new(DataType::Fp32, shape.into(), bytes.into()).unwrap()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    assert_eq!(tensor.dtype(), DataType::Fp32);
    tensor.data().chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap())).collect()
}

fn strings(shape: &[i64], elements: &[&[u8]]) -> Tensor {
    let mut bytes = Vec::new();
    for element in elements {
        bytes.extend((element.len() as u32).to_le_bytes());
        bytes.extend(*element);
    }
    Tensor::new(DataType::Bytes, shape.into(), bytes.into()).unwrap()
}

const FP32: DataType = DataType::Fp32;

/// Returns its first input as its first output.
const IDENTITY: &str = "
    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                array = pb_utils.get_input_tensor_by_name(request, 'IN0').as_numpy()
                out = pb_utils.Tensor('OUT0', array)
                answers.append(pb_utils.InferenceResponse(output_tensors=[out]))
            return answers
    ";
