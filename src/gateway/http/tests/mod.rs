//! The gateway over real sockets, in front of models that are doubles.

mod answers;
mod bodies;
mod events;
mod failures;
mod generate;
mod life;
mod server;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use actix_rt::Arbiter;
use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};

use super::*;
use crate::{ServerState, testing};
use troupe_base::{
    config,
    error::{Error, Result},
    model::{Infer, Model, ModelParts},
    request::{Reply, Request, Response},
    tensor::SegmentPool,
};
use troupe_engine::engines::Engines;
use troupe_repository::{Catalog, Control, ModelEntry, Overrides, VersionEntry, VersionState};

const LIMIT: usize = 1 << 20;

/// Every input comes back as the output at its place.
struct Identity;

impl Infer for Identity {
    fn infer(&self, request: Request, reply: Reply) {
        let parameters = request.context.parameters.clone();
        reply.answer(Ok(Response { outputs: request.inputs, parameters, ..Default::default() }));
    }
}

/// Never answers; what it was asked can be seen.
struct Silent(mpsc::UnboundedSender<(Request, Reply)>);

impl Infer for Silent {
    fn infer(&self, request: Request, reply: Reply) {
        let _ = self.0.send((request, reply));
    }
}

/// Remembers what it was told to change.
#[derive(Default)]
struct Notebook(Mutex<Vec<String>>);

impl Control for Notebook {
    fn end(&self) {}

    fn load(&self, name: String, overrides: Overrides) -> BoxFuture<'static, Result<()>> {
        self.0.lock().push(format!("load {name} {:?} {:?}", overrides.config, overrides.files));
        let failure = Error::invalid(format!("load failed for model '{name}'"));
        async move { if name == "broken" { Err(failure) } else { Ok(()) } }.boxed()
    }
    fn unload(&self, name: String, dependents: bool) -> BoxFuture<'static, Result<()>> {
        self.0.lock().push(format!("unload {name} {dependents}"));
        async { Ok(()) }.boxed()
    }
}

/// A gateway that listens, and what stands behind it.
struct Bench {
    address: SocketAddr,
    state: ServerState,
    notebook: Arc<Notebook>,
    asked: mpsc::UnboundedReceiver<(Request, Reply)>,
    gateway: Addr<HttpGateway>,
}

fn tensors(kind: &str, tensors: &[(&str, &str, &str)]) -> String {
    let one = |(name, dtype, dims): &(&str, &str, &str)| {
        format!("{kind} {{ name: \"{name}\" data_type: TYPE_{dtype} dims: {dims} }}\n")
    };
    tensors.iter().map(one).collect()
}

/// A config whose outputs are its inputs under other names.
fn config_text(name: &str, more: &str, inputs: &[(&str, &str, &str)]) -> String {
    let renamed: Vec<(String, &str, &str)> =
        inputs.iter().map(|it| (it.0.replace("IN", "OUT"), it.1, it.2)).collect();
    let outputs: Vec<_> = renamed.iter().map(|it| (&*it.0, it.1, it.2)).collect();
    let (inputs, outputs) = (tensors("input", inputs), tensors("output", &outputs));
    format!("name: \"{name}\"\n{more}\n{inputs}{outputs}")
}

fn model(text: &str, answers: Arc<dyn Infer>) -> Arc<Model> {
    let config = config::read_text(text, "config.pbtxt")
        .and_then(|draft| draft.finish(&config::ServerFeatures::default()))
        .unwrap_or_else(|problems| panic!("{text}\n{problems:#?}"));
    let parts = ModelParts {
        config: Arc::new(config),
        version: 1,
        stats: Arc::default(),
        health: Arc::default(),
        steps: Vec::new(),
    };
    Arc::new(Model::new(parts, answers))
}

fn models(silent: mpsc::UnboundedSender<(Request, Reply)>) -> Vec<Arc<Model>> {
    let native = "backend: \"native\"";
    let identity = |name: &str, more: &str, inputs: &[(&str, &str, &str)]| {
        model(&config_text(name, more, inputs), Arc::new(Identity))
    };
    let mut all = vec![
        identity("two", native, &[("IN0", "FP32", "[4]"), ("IN1", "INT32", "[2]")]),
        identity("batched", "backend: \"native\" max_batch_size: 8", &[("IN0", "FP32", "[2]")]),
        identity("many", native, &[("IN0", "FP32", "[-1, -1]")]),
        identity("word", native, &[("IN0", "STRING", "[1]")]),
        identity("shared", "backend: \"python\"", &[("IN0", "UINT8", "[-1]")]),
        identity("keyword", native, &[("parameters", "INT32", "[1]")]),
        identity("text", native, &[("text_IN", "STRING", "[1]")]),
    ];
    let decoupled = "backend: \"native\" model_transaction_policy { decoupled: true }";
    for (name, more) in [("silent", native), ("decoupled", decoupled)] {
        let text = config_text(name, more, &[("IN0", "FP32", "[-1]")]);
        all.push(model(&text, Arc::new(Silent(silent.clone()))));
    }
    for dtype in [
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
        "FP32", "FP64", "STRING", "BF16",
    ] {
        all.push(identity(&dtype.to_lowercase(), native, &[("IN0", dtype, "[-1]")]));
    }
    all
}

fn catalog(models: Vec<Arc<Model>>) -> Catalog {
    let mut catalog = Catalog::default();
    for model in models {
        let name = model.name().clone();
        let version =
            VersionEntry { model: Some(model), state: VersionState::Ready, reason: String::new() };
        let entry =
            ModelEntry { versions: BTreeMap::from([(1, version)]), ..ModelEntry::default() };
        catalog.entries.insert(name, entry);
    }
    let gone = VersionEntry {
        model: None,
        state: VersionState::Unavailable,
        reason: "unloaded".to_owned(),
    };
    let entry = ModelEntry { versions: BTreeMap::from([(3, gone)]), ..ModelEntry::default() };
    catalog.entries.insert("gone".into(), entry);
    catalog.entries.insert("untried".into(), ModelEntry::default());
    catalog
}

impl Bench {
    async fn start() -> Bench {
        let (silent, asked) = mpsc::unbounded_channel();
        let notebook = Arc::new(Notebook::default());
        let mut state = testing::state("bench", catalog(models(silent)), notebook.clone());
        state.settings.max_input_size = LIMIT;
        state.settings.segments = SegmentPool::new(1 << 24);
        state.lifecycle.started(true);
        let cell = Arc::new(OnceLock::new());
        let _ = cell.set(state.clone());
        let (gateway, addresses) = start(cell, &listen(2)).unwrap();
        Bench { address: addresses[0].tcp().unwrap(), state, notebook, asked, gateway }
    }

    async fn send(&self, bytes: &[u8]) -> Answered {
        exchange(self.address, bytes).await
    }

    async fn get(&self, path: &str) -> Answered {
        self.send(&message("GET", path, &[], b"")).await
    }

    async fn post(&self, path: &str, body: &str) -> Answered {
        self.send(&message("POST", path, &[], body.as_bytes())).await
    }

    /// Infers `model` with one input from its datatype, shape and data.
    async fn one(&self, model: &str, (dtype, shape, data): (&str, &str, &str)) -> Answered {
        let body = format!(
            r#"{{"inputs":[{{"name":"IN0","datatype":"{dtype}","shape":{shape},"data":{data}}}]}}"#
        );
        self.post(&format!("/v2/models/{model}/infer"), &body).await
    }

    async fn stop(self) {
        self.gateway.send(StopHttp).await.unwrap();
    }
}

fn listen(threads: usize) -> Listen {
    let engines = Engines::new((0..threads).map(|_| Arbiter::new().handle()).collect());
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    Listen {
        bindings: vec![address.into()],
        threads: ServingThreads { engines, ..testing::this_thread() },
        exit_timeout: Duration::from_secs(5),
        connections: testing::settings("").connections,
        access: Arc::default(),
        stalled: Duration::from_secs(60),
    }
}

/// What came back.
#[derive(Debug)]
struct Answered {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answered {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
    /// The body without the lines between its chunks.
    fn chunks(&self) -> String {
        let (mut text, mut rest) = (String::new(), self.text());
        while let Some((length, tail)) = rest.split_once("\r\n") {
            let length = usize::from_str_radix(length, 16).unwrap();
            text += &tail[..length];
            rest = tail[length..].strip_prefix("\r\n").unwrap().to_owned();
        }
        text
    }
    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|it| it.split_once(": "));
        lines.into_iter().find(|it| it.0.eq_ignore_ascii_case(name)).map(|it| it.1)
    }
    /// The text of `{"error": …}`.
    fn error(&self) -> (u16, String) {
        let json: BTreeMap<String, String> =
            serde_json::from_slice(&self.body).unwrap_or_else(|it| panic!("{it}: {}", self.text()));
        assert_eq!(self.header("content-type"), Some("application/json"));
        (self.status, json["error"].clone())
    }
    /// Triton's words come first; the hints behind them are in `tests/api/mistakes.md`.
    #[track_caller]
    fn refuses(&self, status: u16, words: &str, what: &str) {
        let (found, error) = self.error();
        assert_eq!((found, error.get(..words.len())), (status, Some(words)), "{what}: {error}");
    }
}

fn message(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    let is_chunked = headers.iter().any(|it| it.0 == "Transfer-Encoding");
    if !is_chunked {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    let mut bytes = (text + "\r\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

async fn exchange(address: SocketAddr, bytes: &[u8]) -> Answered {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let bytes = bytes.to_vec();
    // Written beside reading: a server may answer before it has read everything.
    let writing = tokio::spawn(async move {
        let _ = to.write_all(&bytes).await;
        to
    });
    let mut all = Vec::new();
    let _ = from.read_to_end(&mut all).await;
    drop(writing.await);
    let end = all.windows(4).position(|it| it == b"\r\n\r\n").expect("a response has a head");
    let head = String::from_utf8(all[..end].to_vec()).unwrap();
    let status = head[9..12].parse().unwrap();
    Answered { status, head, body: all[end + 4..].to_vec() }
}
