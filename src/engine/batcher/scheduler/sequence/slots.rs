//! Sequence slots: each instance has some, and a sequence keeps one from its first request to its
//! last.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Instant,
};

use troupe_base::request::{Context, Correlation, Pending, SequenceStates, StateSet};

/// Which slot of which instance; the order in which free ones are given to sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotPlace {
    /// Its number in the instance: the row of the batch, where rows belong to sequences.
    pub(super) row: usize,
    pub(super) instance: usize,
}

/// The slots of all instances of a model.
pub(super) struct SequenceSlots {
    instances: Vec<InstanceSlots>,
    free: BTreeSet<SlotPlace>,
    /// What the server keeps for sequences; `None`: the instances do.
    pub(super) kept: Option<Arc<StateSet>>,
}

/// Those of one instance.
pub(super) struct InstanceSlots {
    rows: Vec<Slot>,
    /// Those that have requests that wait.
    with_waiting: BTreeSet<usize>,
    /// Those that have one in flight, or had when it was put back.
    begun: Vec<usize>,
    /// It executes.
    pub(super) is_busy: bool,
    /// It stays down.
    is_down: bool,
}

/// A place for one sequence.
pub(super) struct Slot {
    /// The requests of the sequence that wait, in their order.
    waiting: VecDeque<Pending>,
    /// By which further requests of the sequence come; `None` once the id is forgotten.
    pub(super) id: Option<Correlation>,
    /// A sequence has it.
    is_taken: bool,
    /// The instance has been given a request of the sequence.
    has_begun: bool,
    /// The address of the context of the request that is executed: tells which one is put back.
    in_flight: Option<usize>,
    /// The instance that has the request in flight has forgotten those before it.
    is_lost: bool,
    /// What the server keeps for the sequence, once a request of it was executed.
    pub(super) states: Option<Arc<SequenceStates>>,
    /// When a request of it last came or was executed.
    pub(super) last: Instant,
}

/// The next request of a slot.
#[derive(Clone, Copy)]
pub(super) struct SlotFront<'a> {
    pub(super) row: usize,
    pub(super) pending: &'a Pending,
    /// Since when it waits: since it came, or since its last execution.
    pub(super) since: Instant,
}

impl SequenceSlots {
    /// So many free slots for each instance.
    pub(super) fn new(instances: usize, rows: usize, now: Instant) -> SequenceSlots {
        let slot = || Slot {
            waiting: VecDeque::new(),
            id: None,
            is_taken: false,
            has_begun: false,
            in_flight: None,
            is_lost: false,
            states: None,
            last: now,
        };
        let instance = || InstanceSlots {
            rows: (0..rows).map(|_| slot()).collect(),
            with_waiting: BTreeSet::new(),
            begun: Vec::new(),
            is_busy: false,
            is_down: false,
        };
        let all = (0..instances).flat_map(|it| (0..rows).map(move |row| (row, it)));
        let free = all.map(|(row, instance)| SlotPlace { row, instance }).collect();
        SequenceSlots { instances: (0..instances).map(|_| instance()).collect(), free, kept: None }
    }

    /// How many instances there are.
    pub(super) fn instances(&self) -> usize {
        self.instances.len()
    }

    pub(super) fn instance(&self, instance: usize) -> &InstanceSlots {
        &self.instances[instance]
    }

    pub(super) fn slot(&self, place: SlotPlace) -> &Slot {
        &self.instances[place.instance].rows[place.row]
    }

    pub(super) fn slot_mut(&mut self, place: SlotPlace) -> &mut Slot {
        &mut self.instances[place.instance].rows[place.row]
    }

    /// Gives a sequence the free slot with the lowest number.
    pub(super) fn take(&mut self, id: Option<Correlation>, now: Instant) -> Option<SlotPlace> {
        let place = self.take_free()?;
        self.occupy(place, id, VecDeque::new(), now);
        Some(place)
    }

    /// Takes the free slot with the lowest number of the instances that sequences may begin at.
    pub(super) fn take_free(&mut self) -> Option<SlotPlace> {
        let place = self.free.iter().copied().find(|it| self.is_offered(it.instance))?;
        self.free.remove(&place);
        Some(place)
    }

    /// May sequences begin at this instance? Where all stay down they do, and are told so.
    pub(super) fn is_offered(&self, instance: usize) -> bool {
        !self.instances[instance].is_down || self.instances.iter().all(|it| it.is_down)
    }

    /// The instance stays down, or is up again.
    pub(super) fn set_up(&mut self, instance: usize, is_up: bool) {
        self.instances[instance].is_down = !is_up;
    }

    /// Gives a slot that nobody has to a sequence with these requests.
    pub(super) fn occupy(
        &mut self,
        place: SlotPlace,
        id: Option<Correlation>,
        waiting: VecDeque<Pending>,
        now: Instant,
    ) {
        if !waiting.is_empty() {
            self.instances[place.instance].with_waiting.insert(place.row);
        }
        let slot = self.slot_mut(place);
        slot.waiting = waiting;
        slot.id = id;
        slot.states = None;
        (slot.is_taken, slot.has_begun, slot.last) = (true, false, now);
    }

    /// Gives the free slot `to` to the sequence of `from`, nothing of which is in flight.
    pub(super) fn relocate(&mut self, from: SlotPlace, to: SlotPlace) {
        let waiting = self.drain(from);
        let slot = self.slot_mut(from);
        let (id, last) = (slot.id.take(), slot.last);
        let (states, has_begun) = (slot.states.take(), slot.has_begun);
        self.release(from);
        self.occupy(to, id, waiting, last);
        let slot = self.slot_mut(to);
        (slot.states, slot.has_begun) = (states, has_begun);
    }

    /// Nobody has the slot any more.
    pub(super) fn release(&mut self, place: SlotPlace) {
        let slot = self.slot_mut(place);
        (slot.is_taken, slot.states) = (false, None);
        self.free.insert(place);
    }

    pub(super) fn push_back(&mut self, place: SlotPlace, pending: Pending) {
        let instance = &mut self.instances[place.instance];
        let slot = &mut instance.rows[place.row];
        instance.with_waiting.insert(place.row);
        slot.waiting.push_back(pending);
    }

    /// Queues a request that was in flight before the others of its sequence.
    pub(super) fn push_front(&mut self, place: SlotPlace, pending: Pending) {
        let instance = &mut self.instances[place.instance];
        let slot = &mut instance.rows[place.row];
        instance.with_waiting.insert(place.row);
        slot.in_flight = None;
        slot.waiting.push_front(pending);
    }

    /// Takes the next request of a slot out, to be executed. Its answer goes by the states of its
    /// sequence.
    pub(super) fn begin(&mut self, place: SlotPlace) -> Option<Pending> {
        let instance = &mut self.instances[place.instance];
        let slot = &mut instance.rows[place.row];
        let mut pending = slot.waiting.pop_front()?;
        if slot.waiting.is_empty() {
            instance.with_waiting.remove(&place.row);
        }
        instance.begun.push(place.row);
        instance.is_busy = true;
        slot.has_begun = true;
        slot.in_flight = Some(address(&pending.request.context));
        if let Some(kept) = &self.kept
            && pending.reply.state_keeper().is_none()
        {
            let states = slot.states.get_or_insert_with(|| kept.begin());
            let keeper = states.keeper(&mut pending.request);
            pending.reply = pending.reply.keeping(keeper);
        }
        Some(pending)
    }

    /// Takes out all requests that wait in a slot.
    pub(super) fn drain(&mut self, place: SlotPlace) -> VecDeque<Pending> {
        self.drain_until(place, |_| false)
    }

    /// Takes out those before the first one that `stays`.
    pub(super) fn drain_until(
        &mut self,
        place: SlotPlace,
        stays: impl FnMut(&Pending) -> bool,
    ) -> VecDeque<Pending> {
        let instance = &mut self.instances[place.instance];
        let slot = &mut instance.rows[place.row];
        let first = slot.waiting.iter().position(stays).unwrap_or(slot.waiting.len());
        let rest = slot.waiting.split_off(first);
        let drained = std::mem::replace(&mut slot.waiting, rest);
        if slot.waiting.is_empty() {
            instance.with_waiting.remove(&place.row);
        }
        drained
    }

    /// The instance executes nothing any more: answers the slots that had something in it.
    pub(super) fn ended(&mut self, instance: usize, now: Instant) -> Vec<SlotPlace> {
        let of = &mut self.instances[instance];
        of.is_busy = false;
        let begun = of.begun.drain(..).map(|row| SlotPlace { row, instance });
        let begun: Vec<SlotPlace> = begun.collect();
        for place in &begun {
            let slot = self.slot_mut(*place);
            if slot.in_flight.take().is_some() {
                slot.last = now;
            }
            slot.is_lost = false;
        }
        begun
    }

    /// The slot whose request in flight this is.
    pub(super) fn of_in_flight(&self, pending: &Pending) -> Option<SlotPlace> {
        let wanted = Some(address(&pending.request.context));
        let mut all = self.instances.iter().enumerate();
        all.find_map(|(instance, of)| {
            let row = of.rows.iter().position(|it| it.in_flight == wanted)?;
            Some(SlotPlace { row, instance })
        })
    }

    /// All that wait in slots.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Pending> {
        self.instances.iter().flat_map(|it| &it.rows).flat_map(|it| &it.waiting)
    }

    /// How many slots there are, and how many of them sequences have.
    pub(super) fn count(&self) -> (usize, usize) {
        let all: usize = self.instances.iter().map(|it| it.rows.len()).sum();
        (all, all - self.free.len())
    }

    /// The slots that sequences have.
    pub(super) fn taken(&self) -> Vec<SlotPlace> {
        let of = |(instance, it): (usize, &InstanceSlots)| {
            let rows = it.rows.iter().enumerate().filter(|(_, slot)| slot.is_taken);
            rows.map(|(row, _)| SlotPlace { row, instance }).collect::<Vec<_>>()
        };
        self.instances.iter().enumerate().flat_map(of).collect()
    }
}

impl InstanceSlots {
    /// The next request of each row that has one, in the order of the rows.
    pub(super) fn fronts(&self) -> impl Iterator<Item = SlotFront<'_>> {
        self.with_waiting.iter().filter_map(|row| {
            let slot = &self.rows[*row];
            let pending = slot.front()?;
            Some(SlotFront { row: *row, pending, since: pending.reply.waits_since() })
        })
    }

    /// Does a request wait?
    pub(super) fn has_waiting(&self) -> bool {
        !self.with_waiting.is_empty()
    }
}

impl Slot {
    /// The next request of the sequence.
    pub(super) fn front(&self) -> Option<&Pending> {
        self.waiting.front()
    }

    /// The requests of the sequence that wait.
    pub(super) fn waiting(&self) -> &VecDeque<Pending> {
        &self.waiting
    }

    /// Has the sequence something to do?
    pub(super) fn is_active(&self) -> bool {
        !self.waiting.is_empty() || self.in_flight.is_some()
    }

    /// Is a request of the sequence executed?
    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Has the sequence gone, and can another one have the slot?
    pub(super) fn is_through(&self) -> bool {
        self.is_taken && self.id.is_none() && !self.is_active()
    }

    /// Does the instance know more of the sequence than the requests that wait will tell it?
    pub(super) fn has_begun(&self) -> bool {
        self.is_taken && self.has_begun
    }

    /// What the instance was given of the sequence was put back.
    pub(super) fn begins_anew(&mut self) {
        self.has_begun = false;
    }

    /// What the instance was given of the sequence is lost.
    pub(super) fn lose(&mut self) {
        self.has_begun = false;
        self.is_lost = self.in_flight.is_some();
    }

    /// Is what came before the request in flight lost?
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }
}

/// Nobody else has it as long as the request is in flight.
fn address(context: &Arc<Context>) -> usize {
    Arc::as_ptr(context).addr()
}
