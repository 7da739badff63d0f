//! Runs warm-up samples on every instance of a model, before anybody else asks it.

use std::time::Instant;

use actix::{AsyncContext, Context, Handler, Message, WeakAddr};
use futures_util::future::try_join_all;

use super::{Batcher, Mailbox, Seat};
use crate::instance::{Again, Work};
use troupe_base::{
    error::{Error, Result},
    model::warmup::{self, WarmupSample},
    request::Pending,
};

/// One execution for one instance, past the queue.
#[derive(Message)]
#[rtype(result = "()")]
struct RunOn {
    seat: usize,
    group: Vec<Pending>,
}

impl Mailbox {
    /// Runs the samples on all instances, in parallel; ends with the first failure.
    ///
    /// To be called before the model is published: an instance that is busy would be given more.
    pub async fn warm_up(&self, samples: &[WarmupSample]) -> Result<()> {
        let each = self.instances.iter().enumerate().map(|(seat, instance)| async move {
            let target = format!("model '{}' instance {instance}", self.model);
            let run = |group| self.batcher.do_send(RunOn { seat, group });
            warmup::run(samples, &target, run).await
        });
        try_join_all(each).await.map(|_| ())
    }
}

impl Handler<RunOn> for Batcher {
    type Result = ();

    fn handle(&mut self, RunOn { seat, group }: RunOn, ctx: &mut Context<Self>) {
        let work = Work(vec![group]);
        match &mut self.seats[seat] {
            Seat::Here(local) => local.run(work, Instant::now()),
            Seat::Thread(thread) => thread.address.do_send(work),
            Seat::Outside(worker) => {
                worker.run(work, || (), again(seat, ctx.address().downgrade()))
            }
        }
    }
}

/// A rescheduled request goes to the same instance; one without a worker has failed its warm-up.
fn again(seat: usize, batcher: WeakAddr<Batcher>) -> impl Fn(Again) {
    move |again| match (again, batcher.upgrade()) {
        (Again::Last(pending), Some(batcher)) => {
            batcher.do_send(RunOn { seat, group: vec![pending] });
        }
        (Again::Last(_), None) => (),
        (Again::Unbegun(pending), _) => {
            let error = Error::unavailable("its worker has ended during the warm-up");
            pending.reply.answer(Err(error));
        }
    }
}
