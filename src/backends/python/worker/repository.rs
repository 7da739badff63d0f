//! Repository calls of a model: loads and unloads others, and asks which are ready.

use std::{cell::RefCell, rc::Weak};

use super::link::{WorkerLink, WorkerState};
use crate::python::{process::repository_calls::read_repository_call, protocol::decode::Cursor};

impl WorkerLink {
    /// A model loads or unloads others, or asks whether one is ready.
    pub(crate) fn repository_call(
        &mut self,
        cursor: &mut Cursor<'_>,
        this: Weak<RefCell<WorkerLink>>,
    ) -> Result<(), String> {
        let call = read_repository_call(cursor)?;
        let groups = self.in_flight.iter().flat_map(|it| &it.groups);
        let requests = groups.flat_map(|it| &it.requests).flatten();
        // Its loading waits for the warm-up, and the warm-up for this.
        let is_loading = requests.into_iter().any(|it| it.context.is_warmup);
        let spec = &self.setup.spec;
        let within = is_loading.then(|| spec.model.clone());
        let reply = spec.reaper.spawn(call.reply(spec.lookup.clone(), within));
        let worker = self.calls.worker();
        actix_rt::spawn(async move {
            let Ok(reply) = reply.await else { return };
            let Some(link) = this.upgrade() else { return };
            let mut link = link.borrow_mut();
            let is_same = link.calls.worker() == worker;
            if let WorkerState::Up(connection) = &mut link.state
                && is_same
            {
                connection.write(&reply);
            }
        });
        Ok(())
    }
}
