//! Has models loaded and unloaded for a model, and told which are ready.

use std::{cell::RefCell, rc::Weak};

use crate::python::process::reaper::reaper;
use crate::python::process::repository_calls::read_repository_call;
use crate::python::protocol::decode::Cursor;
use crate::python::worker::link::Link;
use crate::python::worker::link::State;

impl Link {
    /// A model loads or unloads others, or asks whether one is ready.
    pub(crate) fn change(
        &mut self,
        cursor: &mut Cursor<'_>,
        this: Weak<RefCell<Link>>,
    ) -> Result<(), String> {
        let change = read_repository_call(cursor)?;
        let groups = self.in_flight.iter().flat_map(|it| &it.groups);
        let requests = groups.flat_map(|it| &it.requests).flatten();
        // Its loading waits for the warm-up, and the warm-up for this.
        let is_loading = requests.into_iter().any(|it| it.context.is_warmup);
        let spec = &self.setup.spec;
        let within = is_loading.then(|| spec.model.clone());
        let reply = reaper().spawn(change.reply(spec.lookup.clone(), within));
        let worker = self.calls.worker();
        actix_rt::spawn(async move {
            let Ok(reply) = reply.await else { return };
            let Some(link) = this.upgrade() else { return };
            let mut link = link.borrow_mut();
            let is_same = link.calls.worker() == worker;
            if let State::Up(connection) = &mut link.state
                && is_same
            {
                connection.write(&reply);
            }
        });
        Ok(())
    }
}
