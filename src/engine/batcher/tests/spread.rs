//! Models that execute at once, on the thread that asks: how many instances of them there are, and
//! which answers whom.

use std::{sync::Arc, thread};

use actix_rt::{Arbiter, ArbiterHandle, System};
use tokio::sync::oneshot;

use super::{BatcherSetup, Mailbox, config, setup, start};
use crate::engines::Engines;
use troupe_base::{
    backend::{Backend, Batch, Executor, InstanceName, OpenLocal, Placement, Tensors},
    error::Result,
    model::{Health, Infer},
    request::{Reply, Request},
    tensor::{DataType, Tensor},
};

/// Answers with the thread that it runs on.
struct WhichThread;

impl OpenLocal for WhichThread {
    fn placement(&self) -> Placement {
        Placement::Shared
    }

    fn open(&self, _: &InstanceName) -> Result<Box<dyn Executor>> {
        Ok(Box::new(WhichThread))
    }
}

impl Executor for WhichThread {
    fn execute(&mut self, _: Batch<'_>) -> Result<Tensors> {
        let name = this_thread().into_bytes();
        let shape = [name.len() as i64].into_iter().collect();
        Ok(vec![Some(Tensor::new(DataType::Uint8, shape, name.into()).unwrap())])
    }
}

fn this_thread() -> String {
    format!("{:?}", thread::current().id())
}

async fn open(threads: Vec<ArbiterHandle>, more: &str, health: &Arc<Health>) -> Arc<Mailbox> {
    open_in(&Engines::new(threads), None, more, health).await
}

/// A model that only this ensemble runs.
async fn open_in(
    engines: &Engines,
    ensemble: Option<&str>,
    more: &str,
    health: &Arc<Health>,
) -> Arc<Mailbox> {
    let text = format!(
        "name: 'm' backend: 'native' {more} output {{ name: 'y' data_type: TYPE_UINT8 dims: -1 }}"
    );
    let setup = BatcherSetup {
        health: health.clone(),
        ensemble: ensemble.map(Arc::from),
        ..setup(config(&text), Backend::Local(Arc::new(WhichThread)), engines.clone())
    };
    start(setup).await.unwrap()
}

/// Asks from each of these threads; says which they are and which answered.
async fn ask_from(threads: &[ArbiterHandle], mailbox: &Arc<Mailbox>) -> Vec<(String, String)> {
    let mut answers = Vec::new();
    for thread in threads {
        let (asked, has_asked) = oneshot::channel();
        let mailbox = mailbox.clone();
        thread.spawn_fn(move || {
            let (reply, answer) = Reply::channel();
            mailbox.infer(Request::default(), reply);
            assert!(asked.send((this_thread(), answer)).is_ok());
        });
        let (asker, answer) = has_asked.await.unwrap();
        let response = answer.await.unwrap().unwrap();
        let told = response.outputs[0].as_ref().unwrap().data().to_vec();
        answers.push((asker, String::from_utf8(told).unwrap()));
    }
    answers
}

/// How many instances there are on three threads, and how many threads answer those that ask.
fn check(config: &str, instances: usize, answering: usize) {
    System::new().block_on(async {
        let threads: Vec<ArbiterHandle> = (0..3).map(|_| Arbiter::new().handle()).collect();
        let health = Arc::<Health>::default();
        let mailbox = open(threads.clone(), config, &health).await;
        assert_eq!(health.instances(), (instances, instances), "{config}");
        let answers = ask_from(&threads, &mailbox).await;
        let mut answered: Vec<&String> = answers.iter().map(|(_, told)| told).collect();
        answered.sort();
        answered.dedup();
        assert_eq!(answered.len(), answering, "{config}: {answers:?}");
        if answering == threads.len() {
            assert!(answers.iter().all(|(asker, told)| asker == told), "{config}: {answers:?}");
        }
    });
}

#[test]
fn what_executes_at_once_does_so_on_the_thread_that_asks() {
    check("", 3, 3);
    check("instance_group { kind: KIND_CPU }", 3, 3);
}

#[test]
fn a_count_in_the_config_is_how_many_run_at_once() {
    check("instance_group { count: 1 }", 1, 1);
    check("instance_group { count: 2 }", 2, 2);
    check("instance_group { count: 5 }", 5, 3);
}

#[test]
fn a_queue_is_in_one_place() {
    check("dynamic_batching { }", 1, 1);
    check("parameters { key: 'placement' value { string_value: 'own' } }", 1, 1);
}

#[test]
fn models_that_only_one_ensemble_runs_share_its_thread() {
    System::new().block_on(async {
        let threads: Vec<ArbiterHandle> = (0..3).map(|_| Arbiter::new().handle()).collect();
        let engines = Engines::new(threads.clone());
        let mut found = Vec::new();
        let mut opened = Vec::new();
        for ensemble in [Some("e"), None, Some("f"), Some("e"), None, Some("e"), Some("f")] {
            let health = Arc::<Health>::default();
            let mailbox = open_in(&engines, ensemble, "dynamic_batching { }", &health).await;
            let answers = ask_from(&threads, &mailbox).await;
            found.push((ensemble, answers[0].1.clone()));
            opened.push(mailbox);
        }
        let of = |name| found.iter().filter(move |it| it.0 == Some(name)).map(|it| &it.1);
        assert!(of("e").all(|it| it == of("e").next().unwrap()), "{found:?}");
        assert!(of("f").all(|it| it == of("f").next().unwrap()), "{found:?}");
        assert_ne!(of("e").next(), of("f").next(), "{found:?}");
    });
}
