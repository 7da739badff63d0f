//! Repository calls of a model: loads and unloads others, and asks which are ready.

use std::{cell::RefCell, rc::Weak};

use super::{
    calls::MAX_OPEN_CALLS,
    link::{WorkerLink, WorkerState},
};
use crate::python::{process::repository_calls::read_repository_call, protocol::decode::Cursor};

impl WorkerLink {
    /// A model loads or unloads others, or asks whether one is ready.
    pub(crate) fn repository_call(
        &mut self,
        cursor: &mut Cursor<'_>,
        this: Weak<RefCell<WorkerLink>>,
    ) -> Result<(), String> {
        let call = read_repository_call(cursor)?;
        if MAX_OPEN_CALLS <= self.calls.of_repository {
            return Err(format!("more than {MAX_OPEN_CALLS} calls of the repository at once"));
        }
        let groups = self.in_flight.iter().flat_map(|it| &it.groups);
        let requests = groups.flat_map(|it| &it.requests).flatten();
        // Its loading waits for the warm-up, and the warm-up for this.
        let is_loading = requests.into_iter().any(|it| it.context.is_warmup);
        let spec = &self.setup.spec;
        let within = is_loading.then(|| spec.model.clone());
        let reply = spec.reaper.spawn(call.reply(spec.lookup.clone(), within));
        let worker = self.calls.worker();
        self.calls.of_repository += 1;
        actix_rt::spawn(async move {
            let reply = reply.await;
            let Some(link) = this.upgrade() else { return };
            let mut link = link.borrow_mut();
            if link.calls.worker() != worker {
                return;
            }
            link.calls.of_repository -= 1;
            if let (WorkerState::Up(connection), Ok(reply)) = (&mut link.state, reply) {
                connection.write(&reply);
            }
        });
        Ok(())
    }
}
