//! The placement policy: which slot of a pool gets the next work. No clocks, no actors.

use std::cmp::Reverse;

/// What each slot has in work.
pub(super) struct PlacementPolicy {
    slots: Vec<SlotLoad>,
    /// Work that the slots can be given now, together.
    room: usize,
    /// Counts handovers and releases: tells what was earlier.
    clock: u64,
}

/// One slot.
struct SlotLoad {
    /// Executions at a time.
    capacity: usize,
    /// Work that may wait in front of it.
    queue: usize,
    in_work: usize,
    /// It is given no work.
    is_closed: bool,
    /// When it was last given work.
    begun: u64,
    /// When it last was through with some.
    released: u64,
}

/// How much one slot takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotSize {
    /// Executions at a time.
    pub(super) capacity: usize,
    /// Work that may wait in front of it, where that is worth it.
    pub(super) queue: usize,
}

impl PlacementPolicy {
    /// Idle slots of these sizes.
    pub(super) fn new(sizes: impl Iterator<Item = SlotSize>) -> PlacementPolicy {
        let slots: Vec<SlotLoad> = sizes.map(SlotLoad::new).collect();
        let room = slots.iter().map(SlotLoad::room).sum();
        PlacementPolicy { slots, room, clock: 0 }
    }

    /// Adds a slot that is closed; says which.
    pub(super) fn add(&mut self, size: SlotSize) -> usize {
        self.slots.push(SlotLoad { is_closed: true, ..SlotLoad::new(size) });
        self.slots.len() - 1
    }

    /// The slot is given work from now on.
    pub(super) fn open(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        if std::mem::take(&mut slot.is_closed) {
            self.room += slot.room();
        }
    }

    /// The slot is given no more work; false if it was given none before.
    pub(super) fn close(&mut self, slot: usize) -> bool {
        let slot = &mut self.slots[slot];
        let room = slot.room();
        let was_open = !std::mem::replace(&mut slot.is_closed, true);
        if was_open {
            self.room = self.room.saturating_sub(room);
        }
        was_open
    }

    /// Is it given work?
    pub(super) fn is_open(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| !slot.is_closed)
    }

    /// Has the slot no work?
    pub(super) fn is_resting(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.in_work == 0)
    }

    /// How much more work the slots could be given.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// The slot that gets the next work:
    ///
    /// 1. of those that can begin at once, the one with the least in work; of several, the one that
    ///    was released last (its memory is in the caches), at first the first one;
    /// 2. else, of those that `may_queue` and have nothing queued, the one that began first: it
    ///    will be through first.
    pub(super) fn choose(&self, may_queue: impl Fn(usize) -> bool) -> Option<usize> {
        let slots = || self.slots.iter().enumerate();
        let free = slots().filter(|(_, slot)| slot.can_begin());
        let free = free.min_by_key(|(_, slot)| (slot.in_work, Reverse(slot.released)));
        let queue = || {
            let able = slots().filter(|(index, slot)| slot.has_room() && may_queue(*index));
            able.min_by_key(|(_, slot)| slot.begun)
        };
        free.or_else(queue).map(|(index, _)| index)
    }

    /// How many executions could begin at once.
    pub(super) fn idle(&self) -> usize {
        let open = self.slots.iter().filter(|slot| !slot.is_closed);
        open.map(|slot| slot.capacity.saturating_sub(slot.in_work)).sum()
    }

    /// The slots without any work: the one that was released last is first.
    pub(super) fn resting(&self) -> Vec<usize> {
        let slots = self.slots.iter().enumerate();
        let mut resting: Vec<_> =
            slots.filter(|(_, slot)| slot.in_work == 0 && !slot.is_closed).collect();
        resting.sort_by_key(|(_, slot)| Reverse(slot.released));
        resting.into_iter().map(|(index, _)| index).collect()
    }

    /// Could an execution begin in this slot at once?
    pub(super) fn is_idle(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(SlotLoad::can_begin)
    }

    /// Has a slot work?
    pub(super) fn is_busy(&self) -> bool {
        self.slots.iter().any(|slot| slot.in_work != 0)
    }

    /// Can this slot be given more?
    pub(super) fn has_room(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(SlotLoad::has_room)
    }

    /// Does a slot rest while another has work?
    pub(super) fn is_uneven(&self) -> bool {
        let is_busy = |slot: &SlotLoad| slot.in_work != 0;
        let rests_not = |slot: &SlotLoad| slot.is_closed || is_busy(slot);
        self.slots.iter().any(is_busy) && !self.slots.iter().all(rests_not)
    }

    /// The slot was given work.
    pub(super) fn begin(&mut self, slot: usize) {
        self.clock += 1;
        let slot = &mut self.slots[slot];
        slot.in_work += 1;
        slot.begun = self.clock;
        self.room = self.room.saturating_sub(1);
    }

    /// The slot is through with some of its work.
    pub(super) fn end(&mut self, slot: usize) {
        self.clock += 1;
        let slot = &mut self.slots[slot];
        // A slot that was never given any has not begun either.
        if let Some(left) = slot.in_work.checked_sub(1) {
            slot.in_work = left;
            slot.released = self.clock;
            if !slot.is_closed {
                self.room += 1;
            }
        }
    }
}

impl SlotLoad {
    fn new(SlotSize { capacity, queue }: SlotSize) -> SlotLoad {
        SlotLoad { capacity, queue, in_work: 0, is_closed: false, begun: 0, released: 0 }
    }

    /// How much more work it could be given, if it is open.
    fn room(&self) -> usize {
        (self.capacity + self.queue).saturating_sub(self.in_work)
    }

    fn has_room(&self) -> bool {
        !self.is_closed && self.room() != 0
    }

    fn can_begin(&self) -> bool {
        !self.is_closed && self.in_work < self.capacity
    }
}

/// The slots that a scheduler may name for its next batch.
pub struct FreeSlots<'a> {
    /// Where the batch runs if the scheduler does not mind.
    offered: usize,
    /// `None` if there is no choice left.
    all: Option<&'a PlacementPolicy>,
    /// No other one may have it, though the batch would begin at once.
    is_alone: bool,
}

impl<'a> FreeSlots<'a> {
    pub(super) fn any(offered: usize, all: &'a PlacementPolicy) -> FreeSlots<'a> {
        FreeSlots { offered, all: Some(all), is_alone: false }
    }

    pub(super) fn alone(offered: usize, all: &'a PlacementPolicy) -> FreeSlots<'a> {
        FreeSlots { offered, all: Some(all), is_alone: true }
    }

    /// Only this one.
    pub fn only(slot: usize) -> FreeSlots<'static> {
        FreeSlots { offered: slot, all: None, is_alone: true }
    }

    /// Would the next batch begin at once where it is offered? `None` if it follows another one
    /// there.
    pub fn begins(&self) -> Option<bool> {
        self.all.map(|all| all.is_idle(self.offered))
    }

    /// May the next batch be for this slot?
    pub fn contains(&self, slot: usize) -> bool {
        let has_room = || self.all.is_some_and(|all| all.has_room(slot));
        slot == self.offered || !self.is_alone && has_room()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One execution at a time.
    const ONE: SlotSize = SlotSize { capacity: 1, queue: 0 };
    /// The same in another process.
    const QUEUE: SlotSize = SlotSize { capacity: 1, queue: 1 };
    /// Two at a time.
    const TWO: SlotSize = SlotSize { capacity: 2, queue: 0 };

    /// A story of what happens: `+` chooses a slot and gives it work, where queueing is worth it;
    /// `.` does so where it is not; a digit is the slot that is through. Expected are the chosen
    /// slots, `-` for none.
    fn check(slots: &[SlotSize], story: &str, expected: &str) {
        check_with(slots, &[], story, expected);
    }

    /// The same where some slots may block: nothing is queued there.
    fn check_with(slots: &[SlotSize], blocking: &[usize], story: &str, expected: &str) {
        let mut placement = PlacementPolicy::new(slots.iter().copied());
        let mut chosen = String::new();
        for event in story.chars() {
            if let Some(slot) = event.to_digit(10) {
                placement.end(slot as usize);
                continue;
            }
            let may_queue = |slot: usize| event == '+' && !blocking.contains(&slot);
            let slot = placement.choose(may_queue);
            chosen += &slot.map_or("-".to_owned(), |slot| slot.to_string());
            if let Some(slot) = slot {
                placement.begin(slot);
            }
        }
        assert_eq!(chosen, expected, "{slots:?}: {story}");
        let sizes = slots.iter().map(|size| size.capacity + size.queue);
        let in_work = placement.slots.iter().map(|slot| slot.in_work);
        assert_eq!(
            placement.room(),
            sizes.zip(in_work).map(|(size, used)| size - used).sum::<usize>()
        );
    }

    #[test]
    fn idle_slots_get_one_execution_each() {
        check(&[ONE], "++0+", "0-0");
        check(&[ONE, ONE, ONE], "++++", "012-");
    }

    #[test]
    fn the_slot_released_last_is_given_work_first() {
        check(&[ONE, ONE, ONE], "+++02+++", "01220-");
        check(&[ONE, ONE, ONE], "+0+0+", "000");
    }

    #[test]
    fn work_is_queued_once_nobody_is_idle_and_where_it_is_worth_it() {
        check(&[QUEUE], "+++", "00-");
        check(&[QUEUE], "+..0.", "0--0");
        check(&[QUEUE, QUEUE], "+++++", "0101-");
        check(&[QUEUE, QUEUE], "++1+0+", "0110");
        check(&[ONE, QUEUE], "++++", "011-");
    }

    #[test]
    fn nothing_is_queued_behind_a_model_that_may_block() {
        check_with(&[QUEUE, QUEUE], &[0], "++++", "011-");
        check_with(&[QUEUE, QUEUE], &[0, 1], "+++0+", "01-0");
    }

    #[test]
    fn concurrent_work_goes_to_whoever_has_the_least_and_never_beyond_the_most() {
        check(&[TWO, TWO], "+++++", "0101-");
        check(&[TWO, TWO], "++++1+", "01011");
    }

    #[test]
    fn a_release_of_what_was_never_begun_changes_nothing() {
        check(&[ONE], "00+0+", "00");
    }

    #[test]
    fn a_closed_slot_is_given_nothing_and_keeps_what_it_has() {
        let mut placement = PlacementPolicy::new([ONE].into_iter());
        let choose = |placement: &mut PlacementPolicy| {
            let slot = placement.choose(|_| true);
            slot.inspect(|slot| placement.begin(*slot))
        };
        assert_eq!(placement.add(QUEUE), 1);
        assert_eq!([choose(&mut placement), choose(&mut placement)], [Some(0), None]);
        assert_eq!((placement.room(), placement.idle(), placement.is_uneven()), (0, 0, false));
        placement.open(1);
        assert_eq!((placement.room(), placement.idle(), placement.is_uneven()), (2, 1, true));
        assert!(placement.close(0) && !placement.close(0) && !placement.is_resting(0));
        assert_eq!([choose(&mut placement), choose(&mut placement)], [Some(1), Some(1)]);
        placement.end(0);
        assert_eq!((placement.room(), choose(&mut placement)), (0, None));
        assert!(placement.is_resting(0) && !placement.is_open(0));
        placement.open(0);
        assert_eq!(choose(&mut placement), Some(0));
    }

    #[test]
    fn a_scheduler_may_name_any_slot_with_room() {
        let mut placement = PlacementPolicy::new([ONE, QUEUE, ONE].into_iter());
        placement.begin(1);
        placement.begin(2);
        let contained = |free: FreeSlots<'_>| [0, 1, 2, 3].map(|slot| free.contains(slot));
        assert_eq!(contained(FreeSlots::any(0, &placement)), [true, true, false, false]);
        assert_eq!(contained(FreeSlots::only(1)), [false, true, false, false]);
    }
}
