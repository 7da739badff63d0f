//! A bounded queue from the threads that serve to the one that writes: what finds no room is
//! dropped and counted, so that nobody waits for a slow reader. Each writer wakes its thread in its
//! own way: the log and the trace file by a condition variable, the span exporter by a `Notify` of
//! its runtime.

use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

/// Losses are reported no more often than this.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Items that wait, each with a weight: its bytes, or its spans.
pub(crate) struct DropQueue<T> {
    items: VecDeque<(T, usize)>,
    weight: usize,
    limits: Limits,
    dropped: Dropped,
}

/// How much may wait in a queue.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Items.
    pub(crate) max_items: usize,
    /// The weight of all items together.
    pub(crate) max_weight: usize,
    /// An item that is heavier than `max_weight` is taken if nothing else waits.
    pub(crate) takes_oversized: bool,
}

/// What was dropped since it was asked for last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Dropped {
    /// How many items.
    pub(crate) items: usize,
    /// Their weight.
    pub(crate) weight: usize,
}

impl<T> DropQueue<T> {
    /// An empty queue.
    pub(crate) fn new(limits: Limits) -> DropQueue<T> {
        DropQueue { items: VecDeque::new(), weight: 0, limits, dropped: Dropped::default() }
    }

    /// Queues an item, or drops and counts it; whether it was queued.
    pub(crate) fn push(&mut self, item: T, weight: usize) -> bool {
        let Limits { max_items, max_weight, takes_oversized } = self.limits;
        let fits = self.weight + weight <= max_weight || takes_oversized && self.items.is_empty();
        if !fits || max_items <= self.items.len() {
            self.dropped.items += 1;
            self.dropped.weight += weight;
            return false;
        }
        self.weight += weight;
        self.items.push_back((item, weight));
        true
    }

    /// The oldest item.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let (item, weight) = self.items.pop_front()?;
        self.weight -= weight;
        Some(item)
    }

    /// All items in their order.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.weight = 0;
        mem::take(&mut self.items).into_iter().map(|(item, _)| item)
    }

    /// What was dropped since the last call.
    pub(crate) fn take_dropped(&mut self) -> Dropped {
        mem::take(&mut self.dropped)
    }

    /// Whether nothing waits and no loss is unreported.
    pub(crate) fn is_idle(&self) -> bool {
        self.items.is_empty() && self.dropped == Dropped::default()
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The weight of all items that wait.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }
}

/// Limits how often losses are reported.
#[derive(Default)]
pub(crate) struct ReportTimer(Option<Instant>);

impl ReportTimer {
    /// Whether the last report is long enough ago.
    pub(crate) fn is_due(&self) -> bool {
        self.0.is_none_or(|last| REPORT_INTERVAL <= last.elapsed())
    }

    /// Notes that a report was made.
    pub(crate) fn reported(&mut self) {
        self.0 = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights pushed one after the other, and which of them are kept.
    fn check(limits: Limits, weights: &[usize], expected: &[usize]) {
        let mut queue = DropQueue::new(limits);
        let queued: Vec<bool> = weights.iter().map(|weight| queue.push(*weight, *weight)).collect();
        let kept: usize = expected.iter().sum();
        assert_eq!(queue.weight(), kept, "{weights:?}");
        assert_eq!(queued.iter().filter(|it| **it).count(), expected.len());
        let dropped = queue.take_dropped();
        assert_eq!(dropped.items, weights.len() - expected.len());
        assert_eq!(dropped.weight, weights.iter().sum::<usize>() - kept);
        assert_eq!(queue.is_idle(), expected.is_empty());
        let first = queue.pop();
        assert_eq!(first.as_ref(), expected.first());
        let all: Vec<usize> = first.into_iter().chain(queue.take_all()).collect();
        assert_eq!(all, expected);
        assert!(queue.is_idle() && queue.is_empty() && queue.weight() == 0);
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted() {
        let limits = Limits { max_items: 3, max_weight: 10, takes_oversized: false };
        check(limits, &[], &[]);
        check(limits, &[4, 6, 1], &[4, 6]);
        check(limits, &[4, 7, 6], &[4, 6]);
        check(limits, &[1, 1, 1, 1], &[1, 1, 1]);
        check(limits, &[11], &[]);
        let oversized = Limits { takes_oversized: true, ..limits };
        check(oversized, &[11, 1], &[11]);
        check(oversized, &[1, 11], &[1]);
    }
}
