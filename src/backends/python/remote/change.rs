//! Has models loaded and unloaded for a model, and told which are ready.

use std::{cell::RefCell, rc::Weak};

use super::{Link, State};
use crate::python::{changes::change, decode::Cursor, keeper::keeper};

impl Link {
    /// A model loads or unloads others, or asks whether one is ready.
    pub(super) fn change(
        &mut self,
        cursor: &mut Cursor<'_>,
        this: Weak<RefCell<Link>>,
    ) -> Result<(), String> {
        let change = change(cursor)?;
        let groups = self.in_flight.iter().flat_map(|it| &it.groups);
        let requests = groups.flat_map(|it| &it.requests).flatten();
        // Its loading waits for the warm-up, and the warm-up for this.
        let is_loading = requests.into_iter().any(|it| it.context.is_warmup);
        let recipe = &self.fixed.recipe;
        let within = is_loading.then(|| recipe.model.clone());
        let reply = keeper().spawn(change.reply(recipe.lookup.clone(), within));
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
