//! Ensembles of native models, run on the actors they run on in the server.

mod ahead;
mod any_order;
mod decoupled;
mod fakes;
mod neighbours;
mod nested;
mod stages;
mod windows;

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use actix_rt::{Arbiter, ArbiterHandle, System};
use tokio::sync::oneshot;

use super::*;
use crate::{batcher, engines::Engines};
use troupe_backends::native;
use troupe_base::{
    config::{ModelConfig, ServerFeatures, read_text},
    error::{Error, Result as Answered},
    metrics::Metrics,
    model::{Health, Infer, Model, ModelParts},
    request::{Answer, Context, Reply, Request, Response, Wanted},
    statistics::Statistics,
    tensor::{DataType, Tensor},
};

struct Fixture {
    /// `max_inflight_requests` of ensembles to come.
    limit: u32,
    /// Added to their configs, and the outermost ensemble around them.
    more: &'static str,
    around: Option<&'static str>,
    engines: Engines,
    models: HashMap<String, Arc<Model>>,
}

fn config(text: &str) -> Arc<ModelConfig> {
    let draft = read_text(text, "config.pbtxt").unwrap();
    Arc::new(draft.finish(&ServerFeatures::default()).unwrap())
}

impl Fixture {
    /// So many threads, none of which is the test's.
    fn of_threads(count: usize) -> Fixture {
        let threads: Vec<ArbiterHandle> = (0..count).map(|_| Arbiter::new().handle()).collect();
        ENGINE.set(threads.clone());
        Fixture::at(threads)
    }

    fn at(threads: Vec<ArbiterHandle>) -> Fixture {
        let engines = Engines::new(threads);
        Fixture { limit: 0, more: "", around: None, engines, models: HashMap::new() }
    }

    /// Inputs and outputs read as `NAME:dims`, all INT32.
    async fn native(&mut self, name: &str, op: &str, batch: u32, io: (&str, &str)) {
        let text = format!(
            "name: '{name}' backend: 'native' max_batch_size: {batch} {} {} parameters {{ key: \
             'op' value {{ string_value: '{op}' }} }}",
            tensors("input", io.0),
            tensors("output", io.1)
        );
        let config = config(&text);
        let (stats, health) = (Arc::<Statistics>::default(), Arc::<Health>::default());
        let backend = native::prepare(config.clone()).unwrap();
        let setup = batcher::BatcherSetup {
            states: None,
            config: config.clone(),
            version: 1,
            stats: stats.clone(),
            health: health.clone(),
            backend,
            engines: self.engines.clone(),
            ensemble: None,
        };
        let answers = batcher::start(setup).await.unwrap();
        let parts = ModelParts { config, version: 1, stats, health, steps: Vec::new() };
        self.models.insert(name.into(), Arc::new(Model::new(parts, answers)));
    }

    /// Steps read as `model: input=tensor … -> output=tensor …`.
    async fn ensemble(
        &mut self,
        name: &str,
        batch: u32,
        io: (&str, &str),
        steps: &[&str],
    ) -> Result<(), Vec<String>> {
        let steps_text: Vec<String> = steps.iter().map(|it| step(it)).collect();
        let text = format!(
            "name: '{name}' platform: 'ensemble' max_batch_size: {batch} {} {} \
             ensemble_scheduling {{ step [ {} ] max_inflight_requests: {} }} {}",
            tensors("input", io.0),
            tensors("output", io.1),
            steps_text.join(","),
            self.limit,
            self.more
        );
        let config = config(&text);
        let ensemble = config.ensemble.as_ref().unwrap();
        let models = ensemble.steps.iter().map(|it| self.models[&it.model].clone());
        let steps: Vec<_> = models.collect();
        let stats = Arc::<Statistics>::default();
        let config = completed(&config, steps.iter().map(|it| &*it.config));
        let setup = EnsembleSetup {
            config: config.clone(),
            stats: stats.clone(),
            steps: steps.clone(),
            engines: self.engines.clone(),
            metrics: Metrics::new(),
            around: self.around.map(Arc::from),
        };
        let answers = start(setup).await?;
        let parts = ModelParts { config, version: 1, stats, health: Arc::default(), steps };
        self.models.insert(name.into(), Arc::new(Model::new(parts, answers)));
        Ok(())
    }

    async fn ask(&self, name: &str, inputs: &[&[i32]], wanted: Wanted) -> Answered<Vec<Vec<i32>>> {
        let model = &self.models[name];
        let batches = model.config.max_batch_size != 0;
        let tensor = |(values, config): (&&[i32], &troupe_base::config::Input)| {
            let width = config.dims.first().copied().unwrap_or(1);
            let rows = values.len() as i64 / width.max(1);
            let len = values.len() as i64;
            let shape = if batches { vec![rows, width] } else { vec![len] };
            let data: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
            (!values.is_empty())
                .then(|| Tensor::new(DataType::Int32, shape.into(), data.into()).unwrap())
        };
        let inputs = inputs.iter().zip(&model.config.inputs).map(tensor).collect();
        let context = Arc::new(Context::default());
        let (reply, answer) = Reply::channel();
        model.infer(Request { context, inputs, wanted, batch: 0 }, reply);
        let response = answer.await.map_err(|_| Error::internal("no answer"))??;
        let values = |tensor: Option<Tensor>| -> Vec<i32> {
            let tensor = tensor.map(|it| it.data().clone()).unwrap_or_default();
            tensor.as_chunks().0.iter().map(|it| i32::from_le_bytes(*it)).collect()
        };
        Ok(response.outputs.into_iter().map(values).collect())
    }

    fn executions(&self, name: &str) -> u64 {
        self.models[name].stats.totals().execution_count
    }
}

fn tensors(field: &str, list: &str) -> String {
    let one = |it: &str| {
        let (name, dims) = it.split_once(':').unwrap();
        format!("{field} {{ name: '{name}' data_type: TYPE_INT32 dims: [ {dims} ] }}")
    };
    list.split_whitespace().map(one).collect::<Vec<_>>().join(" ")
}

fn step(text: &str) -> String {
    let (model, flow) = text.split_once(':').unwrap();
    let (reads, writes) = flow.split_once("->").unwrap();
    let map = |field: &str, pairs: &str| -> String {
        let pair = |it: &str| {
            let (key, value) = it.split_once('=').unwrap();
            format!("{field} {{ key: '{key}' value: '{value}' }}")
        };
        pairs.split_whitespace().map(pair).collect::<Vec<_>>().join(" ")
    };
    format!(
        "{{ model_name: '{model}' model_version: -1 {} {} }}",
        map("input_map", reads),
        map("output_map", writes)
    )
}

/// How many engine threads there are in tests of what happens in which order.
const THREADS: [usize; 3] = [1, 2, 8];

thread_local! {
    /// Where the actors of this thread's test are, if they are on others.
    static ENGINE: RefCell<Vec<ArbiterHandle>> = const { RefCell::new(Vec::new()) };
}

/// With each number of engine threads, none of which is the test's.
fn with_fixture<F: Future<Output = ()>>(run: impl Fn(Fixture) -> F) {
    for threads in THREADS {
        System::new().block_on(async { run(Fixture::of_threads(threads)).await });
    }
}

/// The same on the test's thread, whose clock stands still.
fn on_one_thread<F: Future<Output = ()>>(run: impl FnOnce(Fixture) -> F) {
    System::new().block_on(async {
        ENGINE.take();
        tokio::time::pause();
        run(Fixture::at(vec![Arbiter::current()])).await;
    });
}

/// The same, and then with more threads, whose clocks go on.
fn on_all_threads<F: Future<Output = ()>>(run: impl Fn(Fixture) -> F) {
    on_one_thread(&run);
    for threads in &THREADS[1..] {
        System::new().block_on(async { run(Fixture::of_threads(*threads)).await });
    }
}

/// Until nobody has anything to do.
async fn settle() {
    settle_in(30).await;
}

/// Until all messages are handled, and those that follow from them, and so on, this number of times.
async fn settle_in(rounds: usize) {
    let engine = ENGINE.with_borrow(Vec::clone);
    for _ in 0..rounds {
        tokio::task::yield_now().await;
        for handled in engine.iter().map(handled).collect::<Vec<_>>() {
            handled.await.unwrap();
        }
    }
}

/// Resolves when a thread has handled what it has been sent.
fn handled(thread: &ArbiterHandle) -> oneshot::Receiver<()> {
    let (sender, handled) = oneshot::channel();
    thread.spawn(async {
        // Those whose messages have come are behind this task.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        let _ = sender.send(());
    });
    handled
}

/// Until whoever looks now and then has looked.
async fn later() {
    match ENGINE.with_borrow(Vec::is_empty) {
        true => tokio::time::advance(2 * run::SWEEP_INTERVAL).await,
        false => tokio::time::sleep(2 * run::SWEEP_INTERVAL).await,
    }
    settle().await;
}

async fn arithmetic(fixture: &mut Fixture) {
    fixture.native("add_sub", "add_sub", 0, ("A:2 B:2", "SUM:2 DIFF:2")).await;
    fixture.native("mul", "mul", 0, ("X:2 Y:2", "XY:2")).await;
}

const CHAIN: [&str; 2] =
    ["mul: X=sum Y=diff -> XY=OUT", "add_sub: A=IN0 B=IN1 -> SUM=sum DIFF=diff"];

#[test]
fn tensors_flow_by_name_whatever_the_order_of_the_steps() {
    with_fixture(|mut fixture| async move {
        arithmetic(&mut fixture).await;
        fixture.ensemble("chain", 0, ("IN0:2 IN1:2", "OUT:2"), &CHAIN).await.unwrap();
        let answer = fixture.ask("chain", &[&[5, 7], &[3, 4]], Wanted::All).await;
        assert_eq!(answer.unwrap(), [[16, 33]]);
        assert_eq!((fixture.executions("chain"), fixture.executions("mul")), (1, 1));
    });
}

#[test]
fn an_ensemble_can_be_a_step() {
    with_fixture(|mut fixture| async move {
        arithmetic(&mut fixture).await;
        fixture.ensemble("inner", 0, ("IN0:2 IN1:2", "OUT:2"), &CHAIN).await.unwrap();
        let steps = ["inner: IN0=A IN1=B -> OUT=one", "inner: IN0=one IN1=A -> OUT=two"];
        fixture.ensemble("outer", 0, ("A:2 B:2", "two:2"), &steps).await.unwrap();
        let answer = fixture.ask("outer", &[&[2, 3], &[1, 1]], Wanted::All).await;
        assert_eq!(answer.unwrap(), [[9 - 4, 64 - 9]]);
    });
}

#[test]
fn steps_that_no_requested_output_needs_do_not_run() {
    with_fixture(|mut fixture| async move {
        arithmetic(&mut fixture).await;
        let steps = [CHAIN[1], "mul: X=sum Y=diff -> XY=OUT"];
        fixture.ensemble("both", 0, ("IN0:2 IN1:2", "sum:2 OUT:2"), &steps).await.unwrap();
        let only = |index| Wanted::Only([index].into_iter().collect());
        let sum = fixture.ask("both", &[&[1, 2], &[3, 4]], only(0)).await.unwrap();
        assert_eq!((sum, fixture.executions("mul")), (vec![vec![4, 6], vec![]], 0));
        let product = fixture.ask("both", &[&[1, 2], &[3, 4]], only(1)).await.unwrap();
        assert_eq!(product, [vec![], vec![-8, -12]]);
    });
}

#[test]
fn steps_may_batch_where_their_ensemble_does_not() {
    with_fixture(|mut fixture| async move {
        fixture.native("batching", "identity", 8, ("I:2", "O:2")).await;
        fixture.native("plain", "identity", 0, ("I:2", "O:2")).await;
        let steps = ["batching: I=IN -> O=mid", "plain: I=mid -> O=OUT"];
        fixture.ensemble("mixed", 0, ("IN:2", "OUT:2"), &steps).await.unwrap();
        assert_eq!(fixture.ask("mixed", &[&[1, 2]], Wanted::All).await.unwrap(), [[1, 2]]);
    });
}

#[test]
fn a_failure_names_ensemble_step_model_and_version() {
    with_fixture(|mut fixture| async move {
        fixture.native("any", "identity", 0, ("I:-1", "O:-1")).await;
        fixture.native("two", "identity", 0, ("I:2", "O:2")).await;
        let steps = ["any: I=IN -> O=mid", "two: I=mid -> O=OUT"];
        fixture.ensemble("strict", 0, ("IN:-1", "OUT:2"), &steps).await.unwrap();
        let error = fixture.ask("strict", &[&[1, 2, 3]], Wanted::All).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "in ensemble 'strict', step 1 (model 'two' version 1): [request id: <id_unknown>] \
             unexpected shape for input 'I' for model 'two'. Expected [2], got [3]."
        );
    });
}

#[test]
fn every_disagreement_with_the_steps_is_reported() {
    with_fixture(|mut fixture| async move {
        arithmetic(&mut fixture).await;
        fixture.native("small", "identity", 2, ("I:2", "O:2")).await;
        let steps = [
            "add_sub: A=IN0 C=IN1 -> SUM=sum NOPE=none",
            "small: I=sum -> O=mid",
            "mul: X=mid Y=none -> XY=OUT",
        ];
        let io = ("IN0:3 IN1:2", "OUT:2");
        let problems = fixture.ensemble("bad", 8, io, &steps).await.unwrap_err();
        let text = |it: &String| it.split(" (config.pbtxt:").next().unwrap().to_owned();
        assert!(problems.iter().all(|it| it.contains(" (config.pbtxt:1:")), "{problems:?}");
        assert_eq!(
            problems.iter().map(text).collect::<Vec<_>>(),
            [
                "in ensemble bad, ensemble tensor IN0: inconsistent shape: [-1,3] is inferred from \
                 model bad while [2] is inferred from model add_sub",
                "in ensemble bad, ensemble tensor IN1 is mapping to non-existing input C in model \
                 add_sub (its inputs: A, B)",
                "in ensemble bad, input B in model add_sub is not mapped to any ensemble tensors",
                "in ensemble bad, ensemble tensor none is mapped from non-existing output NOPE in \
                 model add_sub (its outputs: SUM, DIFF)",
            ]
        );
    });
}

#[test]
fn a_limit_of_one_in_flight_serves_everyone_in_turn() {
    with_fixture(|mut fixture| async move {
        arithmetic(&mut fixture).await;
        fixture.limit = 1;
        fixture.ensemble("chain", 0, ("IN0:2 IN1:2", "OUT:2"), &CHAIN).await.unwrap();
        let ask = |value: i32| {
            let fixture = &fixture;
            async move { fixture.ask("chain", &[&[value, 1], &[1, 1]], Wanted::All).await }
        };
        let answers = futures_util::future::join_all((0..50).map(ask)).await;
        for (value, answer) in (0..50).zip(answers) {
            assert_eq!(answer.unwrap(), [[value * value - 1, 0]]);
        }
    });
}

#[test]
fn a_branch_that_ends_after_its_sibling_failed_is_ignored() {
    with_fixture(|mut fixture| async move {
        fixture.native("any", "identity", 0, ("I:-1", "O:-1")).await;
        fixture.native("two", "identity", 0, ("I:2", "O:2")).await;
        // Another thread: it answers after the failure.
        fixture.native("late", "concat", 0, ("I:-1", "O:-1")).await;
        let steps = ["two: I=IN -> O=failed", "late: I=IN -> O=mid", "any: I=mid -> O=OUT"];
        fixture.ensemble("fork", 0, ("IN:-1", "failed:2 OUT:-1"), &steps).await.unwrap();
        for _ in 0..100 {
            let error = fixture.ask("fork", &[&[1, 2, 3]], Wanted::All).await.unwrap_err();
            assert!(error.to_string().starts_with("in ensemble 'fork', step 0 "), "{error}");
        }
        assert_eq!(fixture.ask("fork", &[&[1, 2]], Wanted::All).await.unwrap(), [[1, 2], [1, 2]]);
    });
}

#[test]
fn an_empty_batch_is_refused_before_it_can_meet_others() {
    with_fixture(|mut fixture| async move {
        fixture.native("batching", "identity", 8, ("I:2", "O:2")).await;
        let empty = Tensor::new(DataType::Int32, [0, 2].into_iter().collect(), "".into()).unwrap();
        let (reply, answer) = Reply::channel();
        let request = Request { inputs: vec![Some(empty)], ..Request::default() };
        fixture.models["batching"].infer(request, reply);
        let text = answer.await.unwrap().unwrap_err().to_string();
        assert!(
            text.ends_with("inference request batch-size must be >= 1 for 'batching'"),
            "{text}"
        );
    });
}
