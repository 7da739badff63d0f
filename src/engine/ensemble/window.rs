//! How far iterations run ahead of whoever takes their results: as far as their bytes have room.

use troupe_base::{
    config::{ModelConfig, Problem, parse_bytes},
    tensor::Tensor,
};

/// The parameter of an ensemble that says how many bytes the iterations of one request may hold
/// between two decoupled steps, or before the client takes them.
const PARAMETER: &str = "ITERATION_WINDOW_BYTES";
/// Where a config does not say.
const BYTES: u64 = 64 << 20;
/// At work at once while it is not known how large they get.
const FIRST: u64 = 16;
/// At work at once.
const MOST: u64 = 256;
/// What an iteration costs beside the bytes of its tensors.
const OVERHEAD: u64 = 1 << 10;

/// The bytes there are for the iterations of a level.
pub(super) fn limit(config: &ModelConfig) -> Result<u64, Problem> {
    let Some(text) = config.parameters.get(PARAMETER) else { return Ok(BYTES) };
    parse_bytes(text).ok_or_else(|| {
        let text = format!(
            "parameter '{PARAMETER}' of model '{}' is '{text}', expected a positive whole number \
             of bytes, or one with K, M or G",
            config.name
        );
        config.source_map.problem(&format!("parameters[\"{PARAMETER}\"]"), text)
    })
}

/// What an iteration costs that holds these tensors.
pub(super) fn cost<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> u64 {
    OVERHEAD + tensors.map(|it| it.data().len() as u64).sum::<u64>()
}

/// Iterations of one level that have begun and not been taken.
///
/// The first one of a level is always at work or ended, so whatever waits for room waits for it.
pub(super) struct Window {
    limit: u64,
    /// At work.
    running: u64,
    /// What those cost that ended.
    held: u64,
    /// The most that one of them was seen to cost; 0: none was seen.
    largest: u64,
}

impl Window {
    pub(super) fn new(limit: u64) -> Window {
        Window { limit, running: 0, held: 0, largest: 0 }
    }

    /// May one more begin while results of so many bytes are on their way to the client?
    pub(super) fn has_room(&self, out: u64) -> bool {
        let most = if self.largest == 0 { FIRST } else { MOST };
        // Those at work may come to cost as much as any before them.
        let bytes = self.running.saturating_mul(self.largest);
        self.running < most && self.held.saturating_add(out).saturating_add(bytes) < self.limit
    }

    pub(super) fn begin(&mut self) {
        self.running += 1;
    }

    /// One has ended: it costs `left` from now on, and has cost up to `peak`.
    pub(super) fn end(&mut self, left: u64, peak: u64) {
        self.running -= 1;
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
    fn room(window: &mut Window, out: u64) -> usize {
        std::iter::from_fn(|| window.has_room(out).then(|| window.begin())).count()
    }

    #[test]
    fn some_begin_before_their_size_is_known_and_then_as_many_as_have_room() {
        let mut window = Window::new(100 * OVERHEAD);
        assert_eq!(room(&mut window, 0), 16);
        window.end(OVERHEAD, 5 * OVERHEAD);
        // 15 at work, each 5 at most, and 1 is held: 24 are left.
        assert_eq!(room(&mut window, 0), 5);
        assert_eq!(room(&mut window, 0), 0);
        (0..20).for_each(|_| window.end(3 * OVERHEAD, 3 * OVERHEAD));
        // 61 are held by 21.
        assert_eq!(room(&mut window, 0), 8);
        (0..8).for_each(|_| window.end(0, 0));
        (0..20).for_each(|_| window.leave(3 * OVERHEAD));
        assert_eq!(room(&mut window, 90 * OVERHEAD), 2);
    }

    #[test]
    fn there_is_always_room_for_one() {
        let mut window = Window::new(1);
        assert_eq!(room(&mut window, 0), 16);
        (0..16).for_each(|_| window.end(1 << 40, 1 << 50));
        assert_eq!(room(&mut window, 0), 0);
        (0..16).for_each(|_| window.leave(1 << 40));
        assert_eq!(room(&mut window, 1), 0);
        assert_eq!(room(&mut window, 0), 1);
    }

    #[test]
    fn small_ones_are_bounded_by_their_number() {
        let mut window = Window::new(u64::MAX);
        assert_eq!(room(&mut window, 0), 16);
        window.end(0, OVERHEAD);
        assert_eq!(room(&mut window, 0), 256 - 15);
    }
}
