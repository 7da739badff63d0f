//! A server as a value in this process: two side by side, one without a listener, one dropped.

use std::{
    net::{TcpListener, TcpStream},
    time::Duration,
};

use bytes::Bytes;
use troupe::server::{Addresses, Ending, Server};
use troupe_base::{
    error::{ErrorKind, Result},
    model::Overrides,
    tensor::{DataType, Shape, Tensor},
};
use troupe_observability::log::Log;
use troupe_options::{ControlMode, Serve};

use crate::support::{
    Http, Repository, ensemble, http::floats, models::execute, native, process::is_alive, until,
    venv,
};

const GRACE: Duration = Duration::from_secs(30);
/// Bytes of a tensor that travels in shared memory.
const LARGE: usize = 1 << 20;

/// Listens where ports are free, runs the Python of the tests, and never ends because of a model.
fn options(repository: &Repository) -> Serve {
    let mut options = Serve { model_repository: vec![repository.models()], ..Serve::default() };
    let listeners = &mut options.listeners;
    (listeners.http_port, listeners.grpc_port, listeners.metrics_port) = (0, 0, 0);
    listeners.http_address = "127.0.0.1".to_owned();
    listeners.grpc_address = "127.0.0.1".to_owned();
    python_setting(&mut options, "python", &venv::python().display().to_string());
    options
}

fn python_setting(options: &mut Serve, key: &str, value: &str) {
    options.backend_config.push((("python".to_owned(), key.to_owned()), value.to_owned()));
}

/// A native ensemble and a Python model, whose names end with `suffix`.
fn repository(suffix: &str) -> Repository {
    let step = format!("id_{suffix}");
    let (first, second) = (format!("{step}: x=A -> y=m"), format!("{step}: x=m -> y=Z"));
    Repository::new()
        .with(&step, native("identity", "x:FP32[-1] -> y:FP32[-1]"))
        .with(format!("chain_{suffix}"), ensemble("A:FP32[-1] -> Z:FP32[-1]", &[&first, &second]))
        .with(
            format!("twice_{suffix}"),
            execute(
                "x:FP32[-1] -> y:FP32[-1]",
                "
                def twice(request):
                    x = pb_utils.get_input_tensor_by_name(request, 'x').as_numpy()
                    return pb_utils.InferenceResponse([pb_utils.Tensor('y', x * 2)])
                return [twice(request) for request in requests]
                ",
            ),
        )
}

async fn started(options: Serve) -> Server {
    let server = Server::start(options, Log::silent()).await.unwrap();
    let summary = server.loaded().await.unwrap();
    assert!(summary.is_ok, "{summary:?}");
    server
}

fn tensor(values: &[f32]) -> Tensor {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let shape = Shape::from_slice(&[values.len() as i64]);
    Tensor::new(DataType::Fp32, shape, Bytes::from(data)).unwrap()
}

/// The one output of a model with one input.
async fn infer(server: &Server, model: &str, input: &str, values: &[f32]) -> Result<Vec<f32>> {
    let outputs = server.infer(model, None, vec![(input, tensor(values))]).await?;
    let (_, output) = outputs.into_iter().next().unwrap();
    let numbers = output.data().chunks_exact(4).map(|it| it.try_into().unwrap());
    Ok(numbers.map(f32::from_le_bytes).collect())
}

#[tokio::test]
async fn requests_of_the_process_itself_have_a_share_of_the_memory() {
    let repository = repository("own");
    let mut options = options(&repository);
    options.memory.max_inflight_bytes = Some(4 << 20);
    let server = started(options).await;
    let share = vec![0.5; 1 << 18];
    let outputs = server.infer("id_own", None, vec![("x", tensor(&share))]).await.unwrap();
    let too_much = vec![0.5; 1 << 19];
    let refused = infer(&server, "id_own", "x", &too_much).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooLarge, "{refused}");
    drop(outputs);
    assert_eq!(infer(&server, "id_own", "x", &share).await.unwrap(), share);
    server.stop(GRACE).await;
}

/// Asked in process and over HTTP, both models of `repository(suffix)` answer.
async fn answers(server: &Server, suffix: &str) {
    let (chain, twice) = (format!("chain_{suffix}"), format!("twice_{suffix}"));
    assert_eq!(infer(server, &chain, "A", &[1.0, 2.0]).await.unwrap(), [1.0, 2.0]);
    assert_eq!(infer(server, &twice, "x", &[1.0, 2.0]).await.unwrap(), [2.0, 4.0]);
    let http = Http(server.addresses().http[0]);
    assert_eq!(http.infer(&chain, floats(&[("A", &[3.0])])).ok().numbers("Z"), [3.0]);
    assert_eq!(http.infer(&twice, floats(&[("x", &[3.0])])).ok().numbers("y"), [6.0]);
}

#[tokio::test]
async fn two_servers_in_one_process_share_nothing() {
    let (left, right) = (repository("left"), repository("right"));
    let mut limited = options(&left);
    python_setting(&mut limited, "shm-max-byte-size", &(64 << 20).to_string());
    let mut explicit = options(&right);
    explicit.model_control_mode = ControlMode::Explicit;
    explicit.load_model = vec!["chain_right".to_owned()];
    let (left, right) = (started(limited).await, started(explicit).await);
    right.repository().control.load("twice_right".into(), Overrides::default()).await.unwrap();
    assert!(left.is_ready().await && right.is_ready().await);

    answers(&left, "left").await;
    answers(&right, "right").await;
    let unknown = infer(&left, "chain_right", "A", &[1.0]).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound, "{unknown}");

    // Each counts its own models.
    let metrics = [&left, &right].map(|it| Http(it.addresses().metrics[0]).get("/metrics").text());
    assert!(metrics[0].contains("twice_left") && !metrics[0].contains("twice_right"));
    assert!(metrics[1].contains("twice_right") && !metrics[1].contains("twice_left"));

    // Each has shared memory of its own.
    assert_eq!(right.segments().bytes(), 0);
    infer(&left, "twice_left", "x", &[1.0; LARGE / 4]).await.unwrap();
    assert!(LARGE <= left.segments().bytes(), "{}", left.segments().bytes());
    assert_eq!(right.segments().bytes(), 0);
    let full = infer(&left, "twice_left", "x", &[1.0; (65 << 20) / 4]).await.unwrap_err();
    assert!(full.to_string().contains("which is 67108864"), "{full}");
    infer(&right, "twice_right", "x", &[1.0; (65 << 20) / 4]).await.unwrap();

    // One ends, with its workers; the other goes on, and starts new ones.
    assert_eq!(left.stop(GRACE).await, Ending::Drained);
    let refused = infer(&left, "chain_left", "A", &[1.0]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    answers(&right, "right").await;
    right.repository().control.unload("twice_right".into(), false).await.unwrap();
    right.repository().control.load("twice_right".into(), Overrides::default()).await.unwrap();
    answers(&right, "right").await;
    assert_eq!(right.stop(GRACE).await, Ending::Drained);
}

#[tokio::test]
async fn a_server_without_listeners_is_asked_in_process() {
    let repository = repository("alone");
    let mut options = options(&repository);
    let listeners = &mut options.listeners;
    (listeners.allow_http, listeners.allow_grpc, listeners.allow_metrics) = (false, false, false);
    let server = started(options).await;
    assert_eq!(server.addresses(), &Addresses::default());
    assert_eq!(infer(&server, "chain_alone", "A", &[1.0]).await.unwrap(), [1.0]);
    assert_eq!(infer(&server, "twice_alone", "x", &[1.0]).await.unwrap(), [2.0]);
    let wrong = infer(&server, "chain_alone", "B", &[1.0]).await.unwrap_err();
    let text = "[request id: <id_unknown>] unexpected inference input 'B' for model 'chain_alone' \
                (its inputs: A)";
    assert_eq!(wrong.to_string(), text);
    assert_eq!(server.stop(GRACE).await, Ending::Drained);
    // It stays what it is.
    assert_eq!(server.abort(Duration::ZERO).await, Ending::Drained);
}

#[tokio::test]
async fn a_start_that_fails_leaves_the_process_alone() {
    let repository = Repository::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = options(&repository);
    options.listeners.grpc_port = taken.local_addr().unwrap().port();
    let error = Server::start(options.clone(), Log::silent()).await.err().unwrap().to_string();
    assert!(error.starts_with("failed to listen for gRPC requests at 127.0.0.1:"), "{error}");
    options.load_model = vec!["m".to_owned()];
    let error = Server::start(options.clone(), Log::silent()).await.err().unwrap().to_string();
    assert!(error.contains("--model-control-mode=explicit"), "{error}");
    options.listeners.grpc_port = 0;
    options.model_control_mode = ControlMode::Explicit;
    let server = Server::start(options, Log::silent()).await.unwrap();
    assert!(!server.loaded().await.unwrap().is_ok, "there is no model 'm'");
    assert_eq!(server.stop(GRACE).await, Ending::Drained);
}

#[tokio::test]
async fn a_server_that_is_dropped_ends() {
    let body = "
        y = np.array([os.getpid()], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', y)]) for _ in requests]
    ";
    let repository = Repository::new().with("pid", execute("x:FP32[-1] -> y:FP32[-1]", body));
    let server = started(options(&repository)).await;
    let pid = infer(&server, "pid", "x", &[1.0]).await.unwrap()[0] as u32;
    assert!(is_alive(pid));
    let address = server.addresses().http[0];
    drop(server);
    until("the worker to end", || !is_alive(pid));
    until("the listener to close", || TcpStream::connect(address).is_err());
}
