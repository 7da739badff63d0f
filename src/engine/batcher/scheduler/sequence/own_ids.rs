//! Ids of the sequences that requests without one begin.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use super::table::SequenceTable;
use troupe_base::request::{Context, Correlation, SEQUENCE_START};

/// 0 is no id.
const FIRST_ID: u64 = 1;
/// So many ids may be known before those of answered requests are looked for.
const MIN_SWEPT: usize = 64;

/// Numbers the sequences that requests without an id begin.
pub(super) struct OwnIds {
    next: u64,
    /// Those given out; the context is gone once the request is.
    live: HashMap<Correlation, Weak<Context>>,
    /// When so many are known the dead ones are forgotten.
    sweep_at: usize,
}

impl Default for OwnIds {
    fn default() -> OwnIds {
        OwnIds { next: FIRST_ID, live: HashMap::new(), sweep_at: MIN_SWEPT }
    }
}

impl OwnIds {
    /// The same request as the first one of a sequence whose id no client uses.
    pub(super) fn begin(
        &mut self,
        context: &Context,
        table: &SequenceTable,
        is_text: bool,
    ) -> Arc<Context> {
        let id = loop {
            let id = match is_text {
                true => Correlation::Text(self.next.to_string()),
                false => Correlation::Number(self.next),
            };
            self.next += 1;
            if table.home(&id).is_none() {
                break id;
            }
        };
        if self.sweep_at <= self.live.len() {
            self.live.retain(|_, it| it.strong_count() != 0);
            self.sweep_at = MIN_SWEPT.max(2 * self.live.len());
        }
        let context = Arc::new(context.in_sequence(id.clone(), SEQUENCE_START));
        self.live.insert(id, Arc::downgrade(&context));
        context
    }

    /// The request with this id goes on as that one.
    pub(super) fn go_on(&mut self, context: &Arc<Context>) {
        if let Some(live) = self.live.get_mut(&context.correlation) {
            *live = Arc::downgrade(context);
        }
    }

    /// Has a request that is not through this id?
    pub(super) fn is_live(&mut self, id: &Correlation) -> bool {
        let Some(live) = self.live.get(id) else { return false };
        if live.strong_count() == 0 {
            self.live.remove(id);
            return false;
        }
        true
    }
}
