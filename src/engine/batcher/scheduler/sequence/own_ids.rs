//! Ids of the sequences that requests without one begin.

use super::table::SequenceTable;
use troupe_base::request::Correlation;

/// Numbers the sequences that requests without an id begin.
#[derive(Default)]
pub(super) struct OwnIds {
    last: u64,
}

impl OwnIds {
    /// An id that no client uses.
    pub(super) fn next_id(&mut self, table: &SequenceTable, is_text: bool) -> Correlation {
        loop {
            self.last += 1;
            let id = match is_text {
                true => Correlation::Text(self.last.to_string()),
                false => Correlation::Number(self.last),
            };
            if table.home(&id).is_none() {
                return id;
            }
        }
    }
}
