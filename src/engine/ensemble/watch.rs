//! Requests on their way through decoupled steps, as a step actor sees them: who waits is told when
//! there is room, and let go when the client leaves.

use std::sync::{Arc, Weak};

use actix::{AsyncContext, Context, Handler, Message};

use super::{
    flow::Flow,
    step::{Late, SWEEP, Step},
};

/// A request needs somebody to look after it.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) enum Flows {
    /// Its client may leave.
    Watch(Weak<Flow>),
    /// There may be room for more iterations.
    GoOn(Arc<Flow>),
}

impl Handler<Flows> for Step {
    type Result = ();

    fn handle(&mut self, flows: Flows, ctx: &mut Self::Context) {
        match flows {
            Flows::Watch(flow) => {
                self.watched.push(flow);
                self.sweep_later(ctx);
            }
            Flows::GoOn(flow) => flow.go_on(),
        }
    }
}

impl Step {
    pub(super) fn sweep_later(&mut self, ctx: &mut Context<Self>) {
        if !self.is_swept {
            self.is_swept = true;
            ctx.run_later(SWEEP, Self::sweep);
        }
    }

    /// Those whose clients have gone keep credit, and wait for nothing.
    fn sweep(&mut self, ctx: &mut Context<Self>) {
        self.is_swept = false;
        self.watched.retain(|it| it.upgrade().is_some_and(|it| !it.is_given_up()));
        let is_needless = |it: &Late| it.work.is_needless();
        let (gone, waiting): (Vec<Late>, _) = self.waiting.drain(..).partition(is_needless);
        self.waiting = waiting.into();
        self.live.steps[self.index].set_waiting(self.waiting.len());
        gone.into_iter().for_each(|it| self.work(it.work, it.since.elapsed()));
        if !self.waiting.is_empty() || !self.watched.is_empty() {
            self.sweep_later(ctx);
        }
    }
}
