//! Models whose instances lie on several engine threads: no request waits while one of them rests.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use actix_rt::{Arbiter, ArbiterHandle, System};
use parking_lot::{Condvar, Mutex};
use tokio::time::{sleep, timeout};

use super::{Answer, Mailbox, ask_on, config, setup, start};
use crate::engines::Engines;
use troupe_base::{
    backend::{Backend, Batch, Executor, InstanceName, OpenLocal, Placement, Tensors},
    error::Result,
    model::Infer,
    request::{Reply, Request},
    statistics::Statistics,
};

/// Executes what the test lets through.
#[derive(Default)]
struct Gates {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Requests that are held until they are let through.
    held: HashSet<u8>,
    /// Those that have begun, and where.
    begun: BTreeMap<u8, String>,
}

struct OpensGated(Arc<Gates>);

struct Gated {
    gates: Arc<Gates>,
    name: String,
}

impl OpenLocal for OpensGated {
    fn placement(&self) -> Placement {
        Placement::Own
    }

    fn open(&self, name: &InstanceName) -> Result<Box<dyn Executor>> {
        Ok(Box::new(Gated { gates: self.0.clone(), name: name.name.clone() }))
    }
}

impl Executor for Gated {
    fn execute(&mut self, batch: Batch<'_>) -> Result<Tensors> {
        let number = batch.inputs[0].as_ref().unwrap().data()[0];
        let mut state = self.gates.state.lock();
        state.begun.insert(number, self.name.clone());
        self.gates.changed.notify_all();
        while state.held.contains(&number) {
            self.gates.changed.wait(&mut state);
        }
        Ok(batch.inputs)
    }
}

impl Gates {
    fn hold(&self, number: u8) {
        self.state.lock().held.insert(number);
    }

    fn let_through(&self, number: u8) {
        self.state.lock().held.remove(&number);
        self.changed.notify_all();
    }

    fn has_begun(&self, number: u8) -> bool {
        self.state.lock().begun.contains_key(&number)
    }
}

/// A model of `instances` instances, and threads that ask it.
struct Bed {
    gates: Arc<Gates>,
    threads: Vec<ArbiterHandle>,
    mailbox: Arc<Mailbox>,
    stats: Arc<Statistics>,
}

impl Bed {
    async fn new(threads: usize, instances: usize) -> Bed {
        let threads: Vec<ArbiterHandle> = (0..threads).map(|_| Arbiter::new().handle()).collect();
        let text = format!(
            "name: 'm' backend: 'native' instance_group {{ count: {instances} }} \
             parameters {{ key: 'placement' value {{ string_value: 'own' }} }} \
             input {{ name: 'x' data_type: TYPE_UINT8 dims: 1 }} \
             output {{ name: 'y' data_type: TYPE_UINT8 dims: 1 }}"
        );
        let gates = Arc::<Gates>::default();
        let backend = Backend::Local(Arc::new(OpensGated(gates.clone())));
        let setup = setup(config(&text), backend, Engines::new(threads.clone()));
        let stats = setup.stats.clone();
        Bed { gates, threads, mailbox: start(setup).await.unwrap(), stats }
    }

    /// Asks from one of the threads.
    fn ask(&self, number: u8, thread: usize) -> Answer {
        ask_on(&self.threads[thread % self.threads.len()], &self.mailbox, number)
    }

    async fn until_begun(&self, number: u8) {
        let begun = async {
            while !self.gates.has_begun(number) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(20), begun).await.expect("an instance rests: it has begun");
    }
}

async fn answered(answer: Answer, what: &str) {
    let answer = timeout(Duration::from_secs(20), answer).await;
    assert!(answer.unwrap_or_else(|_| panic!("{what} waits")).unwrap().is_ok(), "{what}");
}

/// A run of numbers that looks random, and is the same each time.
fn numbers(seed: usize) -> impl FnMut(usize) -> usize {
    let mut state = seed as u64 * 2 + 1;
    move |end| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % end
    }
}

/// Slow requests keep all instances but one, whichever: all fast ones are answered meanwhile.
#[test]
fn fast_requests_get_past_slow_ones_whatever_the_order() {
    for (threads, instances) in [(1, 2), (2, 2), (2, 4), (4, 3), (8, 4), (8, 8)] {
        System::new().block_on(async {
            let bed = Bed::new(threads, instances).await;
            for seed in 0..6 {
                let mut random = numbers(seed);
                let (mut slow, mut fast) = (Vec::new(), Vec::new());
                let mut left = instances - 1;
                for number in 0..40 {
                    let thread = random(threads);
                    let is_slow = left != 0 && random(40) < 8;
                    if !is_slow {
                        fast.push((number, bed.ask(number, thread)));
                    }
                    if is_slow || number == 39 {
                        for (number, answer) in fast.drain(..) {
                            let text = format!("{number} of {threads}/{instances}/{seed}");
                            answered(answer, &text).await;
                        }
                    }
                    if is_slow {
                        left -= 1;
                        let number = 100 + left as u8;
                        bed.gates.hold(number);
                        slow.push((number, bed.ask(number, thread)));
                        // What is handed to one thread together with it would wait for it.
                        bed.until_begun(number).await;
                    }
                }
                for (number, answer) in slow {
                    bed.gates.let_through(number);
                    answered(answer, "a slow one").await;
                }
                bed.gates.state.lock().begun.clear();
            }
            assert_eq!(bed.stats.pending(), 0);
        });
    }
}

/// Requests of one thread get to the instances of all threads, one to each.
#[test]
fn as_many_run_at_once_as_there_are_instances_wherever_they_come_from() {
    for (threads, instances) in [(1, 3), (2, 2), (3, 2), (2, 5), (8, 4)] {
        System::new().block_on(async {
            let bed = Bed::new(threads, instances).await;
            let all: Vec<u8> = (0..instances as u8).collect();
            all.iter().for_each(|number| bed.gates.hold(*number));
            let answers: Vec<Answer> = all.iter().map(|number| bed.ask(*number, 0)).collect();
            for number in &all {
                bed.until_begun(*number).await;
            }
            let names: HashSet<String> = bed.gates.state.lock().begun.values().cloned().collect();
            assert_eq!(names.len(), instances, "{threads} threads");
            all.iter().for_each(|number| bed.gates.let_through(*number));
            for answer in answers {
                answered(answer, "one of them").await;
            }
        });
    }
}

/// What waits behind a slow one is taken by the instance of another thread that is through first.
#[test]
fn an_instance_that_is_through_takes_what_waits_for_another_thread() {
    System::new().block_on(async {
        let bed = Bed::new(2, 2).await;
        for number in [0, 1] {
            bed.gates.hold(number);
        }
        let slow = [bed.ask(0, 0), bed.ask(1, 1)];
        bed.until_begun(0).await;
        bed.until_begun(1).await;
        let fast: Vec<Answer> = (2..20).map(|number| bed.ask(number, 0)).collect();
        let kept = bed.gates.state.lock().begun[&0].clone();
        // Whichever of them it is, the other one stays busy.
        let through = bed.gates.state.lock().begun[&1].clone();
        assert_ne!(kept, through);
        bed.gates.let_through(1);
        for answer in fast {
            answered(answer, "a fast one").await;
        }
        bed.gates.let_through(0);
        for answer in slow {
            answered(answer, "a slow one").await;
        }
    });
}

#[test]
fn a_client_that_has_gone_is_not_executed_wherever_its_request_waits() {
    System::new().block_on(async {
        let bed = Bed::new(2, 2).await;
        let mut slow = Vec::new();
        for number in [0, 1] {
            bed.gates.hold(number);
            slow.push(bed.ask(number, number.into()));
            bed.until_begun(number).await;
        }
        let (reply, answer) = Reply::channel();
        let request = Request::default();
        let context = request.context.clone();
        bed.mailbox.infer(request, reply);
        context.cancel();
        // By a sweep: no instance gets to it.
        let error = timeout(Duration::from_secs(20), answer).await.unwrap().unwrap().unwrap_err();
        assert_eq!(error.to_string(), troupe_base::error::Error::cancelled().to_string());
        assert_eq!(bed.stats.pending(), 0);
        for (number, answer) in slow.into_iter().enumerate() {
            bed.gates.let_through(number as u8);
            answered(answer, "a slow one").await;
        }
    });
}
