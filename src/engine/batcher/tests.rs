//! Instances whose engines end: they are replaced, their requests answered, and readiness knows.

mod fairness;
mod interleavings;
mod light;
mod remote;
mod sharded;
mod spread;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actix_rt::{Arbiter, ArbiterHandle, System};
use bytes::Bytes;
use tokio::sync::oneshot;

use super::{BatcherSetup, Mailbox, start};
use crate::engines::Engines;
use troupe_base::{
    backend::{Backend, Batch, Executor, InstanceName, OpenLocal, Placement, Tensors},
    config::{ModelConfig, ServerFeatures, read_text},
    error::{Error, Result},
    model::{Health, Infer},
    request::{Reply, Request, Response},
    tensor::{DataType, Tensor},
};

/// What is answered, once it is.
type Answer = oneshot::Receiver<Result<Response>>;

/// Asks from one of the threads; the request is one element, its number.
fn ask_on(thread: &ArbiterHandle, mailbox: &Arc<Mailbox>, number: u8) -> Answer {
    let (reply, answer) = Reply::channel();
    let shape = [1].into_iter().collect();
    let input = Tensor::new(DataType::Uint8, shape, Bytes::copy_from_slice(&[number])).unwrap();
    let request = Request { inputs: vec![Some(input)], ..Request::default() };
    let mailbox = mailbox.clone();
    thread.spawn_fn(move || mailbox.infer(request, reply));
    answer
}

/// Opens models that answer with their inputs.
struct Echoes {
    placement: Placement,
    opened: AtomicUsize,
    /// Instances of the model: so many opens succeed.
    instances: usize,
    /// Opens that fail after those.
    failures: usize,
}

struct Echo;

impl OpenLocal for Echoes {
    fn placement(&self) -> Placement {
        self.placement
    }

    fn open(&self, _: &InstanceName) -> Result<Box<dyn Executor>> {
        let before = self.opened.fetch_add(1, Ordering::Relaxed);
        if (self.instances..self.instances + self.failures).contains(&before) {
            return Err(Error::internal("no luck"));
        }
        Ok(Box::new(Echo))
    }
}

impl Executor for Echo {
    /// `s` stops the thread, `p` panics.
    fn execute(&mut self, batch: Batch<'_>) -> Result<Tensors> {
        match batch.inputs[0].as_ref().and_then(|tensor| tensor.data().first()) {
            Some(b's') => {
                Arbiter::current().stop();
            }
            Some(b'p') => panic!("on purpose"),
            _ => (),
        }
        Ok(batch.inputs)
    }
}

/// A model and what is known of it from outside.
struct Bed {
    echoes: Arc<Echoes>,
    health: Arc<Health>,
    mailbox: Arc<Mailbox>,
}

/// The config of a server without GPUs.
fn config(text: &str) -> ModelConfig {
    read_text(text, "f").unwrap().finish(&ServerFeatures::default()).unwrap()
}

/// A model that is in no ensemble.
fn setup(config: ModelConfig, backend: Backend, engines: Engines) -> BatcherSetup {
    BatcherSetup {
        config: Arc::new(config),
        version: 1,
        stats: Arc::default(),
        health: Arc::default(),
        backend,
        states: None,
        engines,
        ensemble: None,
    }
}

impl Bed {
    async fn start(placement: Placement, failures: usize, config: &str) -> Bed {
        Bed::with_instances(1, placement, failures, config).await
    }

    async fn with_instances(
        instances: usize,
        placement: Placement,
        failures: usize,
        config: &str,
    ) -> Bed {
        let text = format!(
            "name: 'm' backend: 'native' max_batch_size: 8 {config} \
             instance_group {{ count: {instances} }} \
             input {{ name: 'x' data_type: TYPE_UINT8 dims: -1 allow_ragged_batch: true }} \
             output {{ name: 'y' data_type: TYPE_UINT8 dims: -1 }}"
        );
        let opened = AtomicUsize::new(0);
        let echoes = Arc::new(Echoes { placement, opened, instances, failures });
        let engines = Engines::new(vec![Arbiter::current()]);
        let setup = setup(self::config(&text), Backend::Local(echoes.clone()), engines);
        let health = setup.health.clone();
        Bed { echoes, health, mailbox: start(setup).await.unwrap() }
    }

    fn ask(&self, bytes: &'static [u8]) -> impl Future<Output = Result<Response>> + use<> {
        let shape = [bytes.len() as i64].into_iter().collect();
        let input = Tensor::new(DataType::Uint8, shape, Bytes::from_static(bytes)).unwrap();
        self.send(Request { inputs: vec![Some(input)], batch: 1, ..Request::default() })
    }

    /// Asks what no model would have let in: it has no inputs. Joining it panics.
    fn break_engine(&self) -> impl Future<Output = Result<Response>> + use<> {
        self.send(Request::default())
    }

    fn send(&self, request: Request) -> impl Future<Output = Result<Response>> + use<> {
        let (reply, answer) = Reply::channel();
        self.mailbox.infer(request, reply);
        async { answer.await.unwrap() }
    }

    async fn until(&self, what: &str, is_so: impl Fn(&Bed) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is_so(self) {
            assert!(Instant::now() < end, "not until now: {what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn until_up_again(&self) {
        let Echoes { instances, failures, .. } = *self.echoes;
        let is_up = |bed: &Bed| {
            bed.health.instances() == (instances, instances) && instances + failures < bed.opens()
        };
        self.until("the instance is up again", is_up).await;
    }

    fn opens(&self) -> usize {
        self.echoes.opened.load(Ordering::Relaxed)
    }
}

const DYNAMIC: &str = "dynamic_batching { }";

#[test]
fn a_panic_outside_of_the_model_replaces_the_instance_and_its_request_is_answered() {
    for (placement, config) in [
        (Placement::Shared, ""),
        (Placement::Shared, DYNAMIC),
        (Placement::Own, ""),
        (Placement::Own, DYNAMIC),
    ] {
        System::new().block_on(async {
            let bed = Bed::start(placement, 0, config).await;
            assert_eq!(bed.ask(b"one").await.unwrap().outputs.len(), 1);
            let error = bed.break_engine().await.unwrap_err();
            assert_eq!(error.to_string(), "the model stopped before it answered");
            // It waits until the instance is up again.
            let after = bed.ask(b"two").await.unwrap();
            assert_eq!(after.outputs[0].as_ref().unwrap().data(), "two");
            assert_eq!((bed.opens(), bed.health.instances()), (2, (1, 1)));
        });
    }
}

#[test]
fn a_model_that_panics_fails_its_own_batch_only() {
    for placement in [Placement::Shared, Placement::Own] {
        System::new().block_on(async {
            let bed = Bed::start(placement, 0, "").await;
            let error = bed.ask(b"panic").await.unwrap_err().to_string();
            assert!(error.contains("'m' panicked: on purpose"), "{error}");
            assert!(bed.ask(b"one").await.is_ok());
            assert_eq!(bed.opens(), 1);
        });
    }
}

#[test]
fn an_instance_whose_thread_ends_is_replaced_though_nobody_asks_it() {
    System::new().block_on(async {
        let bed = Bed::start(Placement::Own, 0, "").await;
        assert!(bed.ask(b"stop").await.is_ok());
        bed.until_up_again().await;
        assert!(bed.ask(b"two").await.is_ok());
        assert_eq!(bed.opens(), 2);
    });
}

#[test]
fn while_a_model_cannot_be_opened_again_requests_fail_and_it_is_not_ready() {
    for placement in [Placement::Shared, Placement::Own] {
        System::new().block_on(async {
            let bed = Bed::start(placement, 2, "").await;
            assert!(bed.health.is_ready());
            assert!(bed.break_engine().await.is_err());
            bed.until("the instance is down", |bed| !bed.health.is_ready()).await;
            bed.until("it was tried in vain", |bed| bed.opens() == 2).await;
            let error = bed.ask(b"one").await.unwrap_err().to_string();
            let expected = "instance 'm_0_0' of model 'm' has ended: no luck; next attempt within";
            assert!(error.contains(expected), "{error}");
            bed.until_up_again().await;
            assert!(bed.ask(b"two").await.is_ok());
        });
    }
}

#[test]
fn another_instance_takes_the_work_of_one_that_is_down() {
    for config in ["", DYNAMIC] {
        System::new().block_on(async {
            let bed = Bed::with_instances(2, Placement::Own, 2, config).await;
            assert_eq!(bed.health.instances(), (2, 2));
            assert!(bed.break_engine().await.is_err());
            bed.until("one instance is down", |bed| bed.health.instances() == (1, 2)).await;
            for _ in 0..20 {
                assert!(bed.ask(b"one").await.is_ok());
            }
            assert!(bed.health.is_ready());
            bed.until_up_again().await;
            assert!(bed.ask(b"two").await.is_ok());
        });
    }
}

#[test]
fn dropping_a_model_ends_its_threads() {
    System::new().block_on(async {
        let bed = Bed::start(Placement::Own, 0, "").await;
        assert!(bed.ask(b"one").await.is_ok());
        let Bed { echoes, mailbox, .. } = bed;
        drop(mailbox);
        let end = Instant::now() + Duration::from_secs(20);
        // The opener is held by the instance's actor.
        while 1 < Arc::strong_count(&echoes) {
            assert!(Instant::now() < end, "the instance is still there");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_model_whose_batcher_panics_is_not_ready_and_answers_and_counts_nothing_as_pending() {
    System::new().block_on(async {
        let bed = Bed::start(Placement::Shared, 0, "").await;
        assert!(bed.ask(b"one").await.is_ok());
        bed.mailbox.batchers.here().batcher.do_send(super::actor::testing::Break);
        bed.until("it is not ready", |bed| !bed.health.is_ready()).await;
        for _ in 0..3 {
            let error = bed.ask(b"two").await.unwrap_err().to_string();
            assert_eq!(error, "the model stopped before it answered");
        }
        assert_eq!(bed.mailbox.stats.pending.load(Ordering::Relaxed), 0);
    });
}
