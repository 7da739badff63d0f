//! Blocked workers: the call that a main thread waits for, as deadlock detection wants to know it.

use std::{sync::Arc, time::Duration};

use super::{
    calls::refused,
    in_flight::RequestKey,
    link::{WorkerLink, WorkerState},
};
use crate::python::protocol::replies::CallReply;
use troupe_base::{
    error::Error,
    request::{CallChain, deadlock::BlockedInstance},
};

impl WorkerLink {
    /// The call its main thread waits for, if it has waited for `min_wait`.
    pub(crate) fn blocked_call(&self, min_wait: Duration) -> Option<BlockedInstance> {
        let WorkerState::Up(_) = &self.state else { return None };
        let (call, since) = self.calls.blocking()?;
        if since.elapsed() < min_wait {
            return None;
        }
        let mut holds = Vec::new();
        for flight in &self.in_flight {
            for (group, it) in flight.groups.iter().enumerate() {
                let requests = it.requests.iter().flatten().enumerate();
                for (index, request) in requests {
                    let (group, index) = (group as u32, index as u32);
                    let key = RequestKey { sequence: flight.sequence, group, index };
                    // What was detached may be answered by another thread of the worker.
                    if let Some(caller) = request.context.call_chain.as_ref()
                        && !self.detached.has(key)
                    {
                        holds.push((caller.clone(), flight.begun));
                    }
                }
            }
        }
        Some(BlockedInstance { seat: None, call, since, holds })
    }

    /// Answers a call in the place of the model that was called.
    pub(crate) fn fail_call(&mut self, caller: &Arc<CallChain>, error: &Error) {
        let Some((number, context, model)) = self.calls.made_as(caller) else { return };
        context.cancel();
        let error = model.map_or_else(|| error.clone(), |it| refused(&it, error));
        self.answer(number, CallReply::Last(Err(error)));
    }
}
