//! Operations that wait for each other: found out before they do so for ever.

use std::{collections::BTreeSet, sync::Arc};

use super::actor::{Keeper, Number};
use troupe_base::error::Error;

/// Do those that `start` waits for wait for `start`?
fn is_circle(start: Number, waits_for: impl Fn(Number) -> Vec<Number>) -> bool {
    let mut seen = BTreeSet::new();
    let mut next = waits_for(start);
    while let Some(number) = next.pop() {
        if number == start {
            return true;
        }
        if seen.insert(number) {
            next.extend(waits_for(number));
        }
    }
    false
}

impl Keeper {
    /// The operation that is loading this model.
    pub(super) fn loading(&self, model: &Arc<str>) -> Option<Number> {
        self.lent.iter().find(|(_, scope)| scope.contains(model)).map(|it| *it.0)
    }

    /// What the operation waits for before it goes on.
    pub(super) fn blockers(&self, number: Number) -> Vec<Number> {
        if self.lent.contains_key(&number) {
            // A model it loads has asked for others.
            return self.within.iter().filter(|it| *it.1 == number).map(|it| *it.0).collect();
        }
        let scope_of = |number: &Number| self.waiting.get(number)?.scope.as_ref();
        let Some(scope) = scope_of(&number) else { return Vec::new() };
        let earlier = self.waiting.range(..number).map(|it| it.0);
        let earlier = earlier.filter_map(|it| Some((it, scope_of(it)?)));
        let others = self.lent.iter().chain(earlier);
        others.filter(|it| !it.1.is_disjoint(scope)).map(|it| *it.0).collect()
    }

    /// Answers an operation that would wait for the one it was asked for from.
    pub(super) fn refuse_circle(&mut self, number: Number) {
        if !is_circle(number, |it| self.blockers(it)) {
            return;
        }
        self.within.remove(&number);
        let Some(waiting) = self.waiting.remove(&number) else { return };
        let text = "a model that is being loaded cannot wait for a model that is loaded with it or \
                    waits for it";
        // A client that has gone needs no answer.
        let _ = waiting.reply.send(Err(Error::unavailable(text)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_found_from_each_of_their_members_only() {
        let edges = [(0, 1), (1, 2), (2, 1), (2, 3)];
        let waits_for = |number: Number| {
            edges.iter().filter(|it| it.0 == number).map(|it| it.1).collect::<Vec<_>>()
        };
        let found: Vec<bool> = (0..4).map(|it| is_circle(it, waits_for)).collect();
        assert_eq!(found, [false, true, true, false]);
    }
}
