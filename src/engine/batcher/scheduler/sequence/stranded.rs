//! Moves sequences away from instances that stay down, where nothing of them is lost by that: their
//! states are kept by the server, or they have not begun.

use super::{
    Sequences,
    slots::{SequenceSlots, SlotPlace},
    table::SequenceHome,
};

impl Sequences {
    /// Moves those that wait at an instance that stays down to free slots of others, those that have
    /// waited longest first.
    pub(super) fn move_stranded(&mut self) {
        while let Some(from) = self.slots.stranded()
            && let Some(to) = self.slots.take_free()
        {
            self.slots.relocate(from, to);
            if let Some(id) = &self.slots.slot(to).id {
                self.table.moved(id, SequenceHome::Slot(to));
            }
        }
    }
}

impl SequenceSlots {
    /// The sequence that has waited longest of those that could go on elsewhere.
    pub(super) fn stranded(&self) -> Option<SlotPlace> {
        let mut down = (0..self.instances()).filter(|it| !self.is_offered(*it)).peekable();
        down.peek()?;
        let waiting = down.flat_map(|instance| {
            let fronts = self.instance(instance).fronts();
            fronts.map(move |it| (it.since, SlotPlace { row: it.row, instance }))
        });
        let movable = waiting.filter(|(_, place)| {
            let slot = self.slot(*place);
            !slot.is_in_flight() && (self.kept.is_some() || !slot.has_begun())
        });
        movable.min().map(|(_, place)| place)
    }
}
