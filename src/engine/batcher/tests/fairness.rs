//! Executions on the thread of their batcher that never end: others of the thread have their turn.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use actix_rt::{Arbiter, ArbiterHandle, System};
use tokio::time::timeout;

use super::{Mailbox, config, setup, start};
use crate::engines::Engines;
use troupe_base::{
    backend::{Backend, Batch, Executor, InstanceName, OpenLocal, Placement, Tensors},
    error::Result,
    model::Infer,
    request::{Reply, Request},
};

/// So many executions at most, each of which asks for the next one.
const MAX_CHAIN: u32 = 20_000;

#[derive(Default)]
struct Chain {
    mailbox: OnceLock<Weak<Mailbox>>,
    executions: AtomicU32,
    /// Another task of the thread had its turn.
    had_turn: AtomicBool,
    ended: tokio::sync::Notify,
}

struct OpensChained(Arc<Chain>);

struct Chained(Arc<Chain>);

impl OpenLocal for OpensChained {
    fn placement(&self) -> Placement {
        Placement::Shared
    }

    fn open(&self, _: &InstanceName) -> Result<Box<dyn Executor>> {
        Ok(Box::new(Chained(self.0.clone())))
    }
}

impl Executor for Chained {
    fn execute(&mut self, batch: Batch<'_>) -> Result<Tensors> {
        let chain = &self.0;
        let before = chain.executions.fetch_add(1, Ordering::SeqCst);
        if before == 0 {
            let chain = chain.clone();
            Arbiter::current().spawn_fn(move || chain.had_turn.store(true, Ordering::SeqCst));
        }
        if chain.had_turn.load(Ordering::SeqCst) || before == MAX_CHAIN {
            chain.ended.notify_one();
            return Ok(batch.inputs);
        }
        if let Some(mailbox) = chain.mailbox.get().and_then(Weak::upgrade) {
            // The instance executes: it is queued.
            mailbox.infer(Request::default(), Reply::channel().0);
        }
        Ok(batch.inputs)
    }
}

#[test]
fn what_is_queued_again_and_again_lets_others_of_the_thread_have_their_turn() {
    System::new().block_on(async {
        let threads: Vec<ArbiterHandle> = (0..2).map(|_| Arbiter::new().handle()).collect();
        let text = "name: 'm' backend: 'native'";
        let chain = Arc::<Chain>::default();
        let backend = Backend::Local(Arc::new(OpensChained(chain.clone())));
        let mailbox =
            start(setup(config(text), backend, Engines::new(threads.clone()))).await.unwrap();
        chain.mailbox.set(Arc::downgrade(&mailbox)).unwrap();
        let asked = mailbox.clone();
        threads[0].spawn_fn(move || asked.infer(Request::default(), Reply::channel().0));
        timeout(Duration::from_secs(20), chain.ended.notified()).await.expect("it ends");
        assert!(chain.had_turn.load(Ordering::SeqCst), "others waited for all of them");
    });
}
