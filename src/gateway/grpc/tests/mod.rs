//! Drives the gateway over real sockets with the generated client; doubles stand for the models.

mod calls;
mod decoupled;
mod infer;
mod life;
mod streams;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::transport::Channel;

use super::GrpcGateway;
use crate::{
    ServerState, lifecycle::Lifecycle, settings::Settings, socket::ListenAddress, testing,
};
use troupe_base::{
    config::{ServerFeatures, read_text},
    error::{Error, Result},
    model::{Infer, Model, ModelParts},
    request::{Parameter, Pending, Reply, Request, Response},
};
use troupe_proto::inference::{
    InferParameter, ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
    infer_parameter::ParameterChoice, model_infer_request::InferInputTensor,
};
use troupe_repository::{Catalog, Control, ModelEntry, Overrides, VersionEntry, VersionState};

type Client = GrpcInferenceServiceClient<Channel>;

/// Answers with its inputs.
struct Echo;

impl Infer for Echo {
    fn infer(&self, request: Request, reply: Reply) {
        reply.answer(Ok(echo(request)));
    }
}

fn echo(request: Request) -> Response {
    let mut outputs = request.inputs;
    for (index, output) in outputs.iter_mut().enumerate() {
        output.take_if(|_| !request.wanted.has(index));
    }
    let parameters = vec![("made_by".into(), Parameter::String("echo".into()))];
    Response { outputs, parameters, ..Response::default() }
}

/// Fails every request.
struct Fail;

impl Infer for Fail {
    fn infer(&self, _: Request, reply: Reply) {
        reply.answer(Err(Error::internal("it broke")));
    }
}

/// Hands requests to the test, which answers when it likes.
struct Hold(mpsc::UnboundedSender<Pending>);

impl Infer for Hold {
    fn infer(&self, request: Request, reply: Reply) {
        self.0.send(Pending { request, reply }).unwrap();
    }
}

/// Remembers what it was asked.
#[derive(Default)]
struct Loads(Mutex<Vec<String>>);

impl Control for Loads {
    fn end(&self) {}

    fn load(&self, name: String, overrides: Overrides) -> BoxFuture<'static, Result<()>> {
        let config = overrides.config.unwrap_or_default();
        self.0.lock().push(format!("load {name} {config}"));
        let result = match name.as_str() {
            "nope" => {
                Err(Error::internal("failed to load 'nope', failed to poll from model repository"))
            }
            _ => Ok(()),
        };
        Box::pin(async { result })
    }
    fn unload(&self, name: String, dependents: bool) -> BoxFuture<'static, Result<()>> {
        self.0.lock().push(format!("unload {name} {dependents}"));
        Box::pin(async { Ok(()) })
    }
}

/// A gateway on a free port of this thread's system, and a client of it.
struct Server {
    state: ServerState,
    gateway: actix::Addr<GrpcGateway>,
    addresses: Vec<ListenAddress>,
    client: Client,
    held: mpsc::UnboundedReceiver<Pending>,
    loads: Arc<Loads>,
}

impl Server {
    async fn start() -> Server {
        let (hold, held) = mpsc::unbounded_channel();
        let loads = Arc::new(Loads::default());
        let state = testing::state("here", catalog(hold), loads.clone());
        state.lifecycle.started(true);
        let any_port = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let (gateway, addresses) =
            GrpcGateway::start(&state, &[any_port.into()], &testing::this_thread()).unwrap();
        let address = format!("http://{}", addresses[0]);
        let client = Client::connect(address).await.unwrap();
        Server { state, gateway, addresses, client, held, loads }
    }

    /// The next request of the models `hold` and `many`.
    async fn held(&mut self) -> Pending {
        self.held.recv().await.unwrap()
    }
}

const ECHO: &str = r#"
    backend: "native" max_batch_size: 4
    input { name: "a" data_type: TYPE_FP32 dims: 2 }
    input { name: "b" data_type: TYPE_STRING dims: 1 optional: true }
    output { name: "x" data_type: TYPE_FP32 dims: 2 }
    output { name: "y" data_type: TYPE_STRING dims: 1 }
"#;

const ONE: &str = r#"
    backend: "native"
    input { name: "a" data_type: TYPE_INT32 dims: 1 }
    output { name: "x" data_type: TYPE_INT32 dims: 1 }
"#;

fn catalog(hold: mpsc::UnboundedSender<Pending>) -> Catalog {
    let mut catalog = Catalog::default();
    let models: [(&str, &str, Arc<dyn Infer>); 4] = [
        ("echo", ECHO, Arc::new(Echo)),
        ("fail", ONE, Arc::new(Fail)),
        ("hold", ONE, Arc::new(Hold(hold.clone()))),
        ("many", ONE, Arc::new(Hold(hold))),
    ];
    for (name, config, answers) in models {
        let mut config = read_text(&format!("name: '{name}' {config}"), "config.pbtxt")
            .and_then(|it| it.finish(&ServerFeatures::default()))
            .unwrap();
        config.decoupled = name == "many";
        let parts = ModelParts {
            config: Arc::new(config),
            version: 3,
            stats: Arc::default(),
            health: Arc::default(),
            steps: Vec::new(),
        };
        let model = Some(Arc::new(Model::new(parts, answers)));
        let version = VersionEntry { model, state: VersionState::Ready, reason: String::new() };
        let versions = BTreeMap::from([(3, version)]);
        catalog.entries.insert(name.into(), ModelEntry { versions, ..ModelEntry::default() });
    }
    catalog.entries.insert("off".into(), ModelEntry::default());
    catalog
}

/// Lets the others run until the caller's leaving has reached the request.
async fn cancelled(pending: &Pending) {
    let reached = async {
        while !pending.request.context.is_stopped() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), reached).await.unwrap();
}

/// One raw input per name.
fn raw(model: &str, inputs: &[(&str, &str, &[i64], &'static [u8])]) -> ModelInferRequest {
    let input = |(name, datatype, shape, _): &(&str, &str, &[i64], _)| InferInputTensor {
        name: (*name).into(),
        datatype: (*datatype).into(),
        shape: shape.to_vec(),
        ..InferInputTensor::default()
    };
    ModelInferRequest {
        model_name: model.into(),
        inputs: inputs.iter().map(input).collect(),
        raw_input_contents: inputs.iter().map(|it| it.3.into()).collect(),
        ..ModelInferRequest::default()
    }
}

/// What the models with one input take.
fn one(model: &str, id: &str) -> ModelInferRequest {
    let request = raw(model, &[("a", "INT32", &[1], &[7, 0, 0, 0])]);
    ModelInferRequest { id: id.into(), ..request }
}

fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

fn parameters<const N: usize>(
    pairs: [(&str, ParameterChoice); N],
) -> HashMap<String, InferParameter> {
    pairs.map(|(name, choice)| (name.to_owned(), parameter(choice))).into()
}
