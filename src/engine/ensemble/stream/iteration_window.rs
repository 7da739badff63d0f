//! Flow control: how many iterations run ahead of whoever takes their results, by their bytes.

use troupe_base::tensor::Tensor;

/// Iterations in flight at most while it is not known how large they get.
const MAX_OF_UNKNOWN_SIZE: u64 = 16;
/// Iterations in flight at most.
const MAX_IN_FLIGHT: u64 = 256;
/// What an iteration costs beside the bytes of its tensors.
const OVERHEAD_BYTES: u64 = 1 << 10;

/// What an iteration costs that holds these tensors.
pub(super) fn cost<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> u64 {
    OVERHEAD_BYTES + tensors.map(|it| it.data().len() as u64).sum::<u64>()
}

/// Iterations of one stage that have begun and not been taken.
///
/// The first one of a stage is always at work or ended, so whatever waits for room waits for it.
pub(super) struct IterationWindow {
    limit: u64,
    /// In flight.
    in_flight: u64,
    /// What those cost that ended.
    held: u64,
    /// The most that one of them was seen to cost; 0: none was seen.
    largest: u64,
}

impl IterationWindow {
    pub(super) fn new(limit: u64) -> IterationWindow {
        IterationWindow { limit, in_flight: 0, held: 0, largest: 0 }
    }

    /// May one more begin while results of so many bytes are on their way to the client?
    pub(super) fn has_room(&self, out: u64) -> bool {
        let most = if self.largest == 0 { MAX_OF_UNKNOWN_SIZE } else { MAX_IN_FLIGHT };
        // Those at work may come to cost as much as any before them.
        let bytes = self.in_flight.saturating_mul(self.largest);
        self.in_flight < most && self.held.saturating_add(out).saturating_add(bytes) < self.limit
    }

    pub(super) fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// One has ended: it costs `left` from now on, and has cost up to `peak`.
    pub(super) fn finish(&mut self, left: u64, peak: u64) {
        self.in_flight -= 1;
        self.held += left;
        self.largest = self.largest.max(left).max(peak);
    }

    /// The result of one was taken.
    pub(super) fn leave(&mut self, cost: u64) {
        self.held -= cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many can begin.
    fn room(window: &mut IterationWindow, out: u64) -> usize {
        std::iter::from_fn(|| window.has_room(out).then(|| window.begin())).count()
    }

    #[test]
    fn some_begin_before_their_size_is_known_and_then_as_many_as_have_room() {
        let mut window = IterationWindow::new(100 * OVERHEAD_BYTES);
        assert_eq!(room(&mut window, 0), 16);
        window.finish(OVERHEAD_BYTES, 5 * OVERHEAD_BYTES);
        // 15 at work, each 5 at most, and 1 is held: 24 are left.
        assert_eq!(room(&mut window, 0), 5);
        assert_eq!(room(&mut window, 0), 0);
        (0..20).for_each(|_| window.finish(3 * OVERHEAD_BYTES, 3 * OVERHEAD_BYTES));
        // 61 are held by 21.
        assert_eq!(room(&mut window, 0), 8);
        (0..8).for_each(|_| window.finish(0, 0));
        (0..20).for_each(|_| window.leave(3 * OVERHEAD_BYTES));
        assert_eq!(room(&mut window, 90 * OVERHEAD_BYTES), 2);
    }

    #[test]
    fn there_is_always_room_for_one() {
        let mut window = IterationWindow::new(1);
        assert_eq!(room(&mut window, 0), 16);
        (0..16).for_each(|_| window.finish(1 << 40, 1 << 50));
        assert_eq!(room(&mut window, 0), 0);
        (0..16).for_each(|_| window.leave(1 << 40));
        assert_eq!(room(&mut window, 1), 0);
        assert_eq!(room(&mut window, 0), 1);
    }

    #[test]
    fn small_ones_are_bounded_by_their_number() {
        let mut window = IterationWindow::new(u64::MAX);
        assert_eq!(room(&mut window, 0), 16);
        window.finish(0, OVERHEAD_BYTES);
        assert_eq!(room(&mut window, 0), 256 - 15);
    }
}
