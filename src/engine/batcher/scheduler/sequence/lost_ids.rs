//! Ids of sequences that were lost with their instances, until a request of each is told.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use troupe_base::request::Correlation;

/// So many are remembered; of more, the latest ones.
const MAX_LOST: usize = 1024;

/// Remembers whose loss is to be told, as long as a sequence may be idle.
pub(super) struct LostIds {
    max_idle: Duration,
    /// When each was lost.
    ids: HashMap<Correlation, Instant>,
    /// Since when, in that order; one that was taken out or lost again meanwhile has another time.
    order: VecDeque<(Instant, Correlation)>,
}

impl LostIds {
    /// A sequence may be idle for so long.
    pub(super) fn new(max_idle: Duration) -> LostIds {
        LostIds { max_idle, ids: HashMap::new(), order: VecDeque::new() }
    }

    /// Nobody was told that this one is lost.
    pub(super) fn insert(&mut self, id: Correlation, now: Instant) {
        if self.order.len() == MAX_LOST
            && let Some((since, oldest)) = self.order.pop_front()
            && self.ids.get(&oldest) == Some(&since)
        {
            self.ids.remove(&oldest);
        }
        self.order.push_back((now, id.clone()));
        self.ids.insert(id, now);
    }

    /// Is it to be told of this one?
    pub(super) fn has(&self, id: &Correlation) -> bool {
        self.ids.contains_key(id)
    }

    /// Forgets this one; says whether it was to be told of it, and is not too old for that.
    pub(super) fn take(&mut self, id: &Correlation, now: Instant) -> bool {
        let since = self.ids.remove(id);
        since.is_some_and(|since| now.saturating_duration_since(since) < self.max_idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_while_it_is_young_and_few_are_remembered() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let id = Correlation::Number;
        let mut lost = LostIds::new(Duration::from_secs(10));
        lost.insert(id(1), at(0));
        lost.insert(id(2), at(0));
        assert!(lost.has(&id(1)) && !lost.has(&id(3)));
        assert_eq!([9, 9].map(|it| lost.take(&id(1), at(it))), [true, false]);
        assert!(!lost.take(&id(2), at(10)), "too late");
        // One that was lost again is as young as it was then.
        lost.insert(id(0), at(11));
        lost.insert(id(0), at(12));
        for more in 1..MAX_LOST as u64 {
            lost.insert(id(more), at(13));
        }
        assert!(lost.has(&id(0)));
        lost.insert(id(5000), at(14));
        assert!(!lost.has(&id(0)) && lost.has(&id(1)));
        assert_eq!((lost.ids.len(), lost.order.len()), (MAX_LOST, MAX_LOST));
    }
}
