//! One thread with models of native ops on it, and a way to keep requests in flight.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use actix_rt::{Arbiter, System, SystemRunner};
use bytes::Bytes;
use futures_util::future::join_all;
use troupe_backends::Backends;
use troupe_base::{
    backend::{ModelFiles, Settings},
    config::{self, ModelConfig},
    metrics::Metrics,
    model::{Health, Infer, Model, ModelParts},
    request::{Reply, Request},
    statistics::Statistics,
    tensor::{DataType, Tensor},
};
use troupe_engine::{batcher, engines::Engines, ensemble};

/// The engine's only thread, which the benches run on too, as gateways do.
pub(crate) struct Bed {
    system: SystemRunner,
    engines: Engines,
}

impl Bed {
    pub(crate) fn new() -> Bed {
        let system = System::new();
        let engines = system.block_on(async { Engines::new(vec![Arbiter::current()]) });
        Bed { system, engines }
    }

    /// A model with `backend: "native"`.
    pub(crate) fn native(&self, config: &str) -> Arc<Model> {
        let parts = parts(config, Vec::new());
        let files = ModelFiles {
            name: parts.config.name.to_string(),
            model_dir: Default::default(),
            version: parts.version,
        };
        let backends = Backends::new();
        let native = backends.find("native").expect("native ops are built in");
        let backend = native.prepare(&Settings::default(), &files, parts.config.clone());
        let setup = batcher::BatcherSetup {
            states: None,
            config: parts.config.clone(),
            version: 1,
            stats: parts.stats.clone(),
            health: parts.health.clone(),
            backend: backend.expect("the op takes this config"),
            engines: self.engines.clone(),
            ensemble: None,
        };
        let started = self.system.block_on(batcher::start(setup));
        model(parts, started.expect("native instances open"))
    }

    /// An ensemble of `steps`, one model for each step of the config.
    pub(crate) fn ensemble(&self, config: &str, steps: Vec<Arc<Model>>) -> Arc<Model> {
        let parts = parts(config, steps);
        let setup = ensemble::EnsembleSetup {
            config: parts.config.clone(),
            stats: parts.stats.clone(),
            steps: parts.steps.clone(),
            engines: self.engines.clone(),
            metrics: Metrics::new(),
            around: None,
        };
        let started = self.system.block_on(ensemble::start(setup));
        model(parts, started.expect("the steps fit together"))
    }

    /// Asks `count` times, `in_flight` at a time; how long that took.
    pub(crate) fn drive(&self, model: &Model, request: &Request, load: Load) -> Duration {
        self.system.block_on(async {
            let begun = Instant::now();
            join_all(load.shares().map(|share| ask(model, request, share))).await;
            begun.elapsed()
        })
    }

    /// For what is not a model.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.system.block_on(work)
    }
}

/// How many requests, and how many of them at a time.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) count: u64,
    pub(crate) in_flight: u64,
}

impl Load {
    /// What each of the concurrent clients has to ask.
    pub(crate) fn shares(self) -> impl Iterator<Item = u64> {
        let Load { count, in_flight } = self;
        (0..in_flight).map(move |client| (count + client) / in_flight)
    }
}

async fn ask(model: &Model, request: &Request, times: u64) {
    for _ in 0..times {
        let (reply, answer) = Reply::channel();
        model.infer(request.clone(), reply);
        let answer = answer.await.expect("every request is answered");
        answer.expect("native ops do not fail");
    }
}

/// `count` inputs of four FP32 each, as the models of `benches/compare` take them.
pub(crate) fn request(count: usize, shape: &[i64]) -> Request {
    let data = Bytes::from([1.5f32, -2.0, 0.25, 4.0].map(f32::to_le_bytes).concat());
    let tensor = Tensor::new(DataType::Fp32, shape.into(), data).expect("four elements");
    Request { inputs: vec![Some(tensor); count], ..Request::default() }
}

/// Everything but what answers.
fn parts(config: &str, steps: Vec<Arc<Model>>) -> ModelParts {
    ModelParts {
        config: Arc::new(read(config)),
        version: 1,
        stats: Arc::new(Statistics::default()),
        health: Arc::new(Health::default()),
        steps,
    }
}

fn read(text: &str) -> ModelConfig {
    let draft = config::read_text(text, "bench").expect("benches write valid configs");
    draft.finish(&config::ServerFeatures::default()).expect("benches write valid configs")
}

fn model(parts: ModelParts, answers: Arc<dyn Infer>) -> Arc<Model> {
    Arc::new(Model::new(parts, answers))
}
