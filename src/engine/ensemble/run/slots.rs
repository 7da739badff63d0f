//! The tensors of a run: what lies in each slot, and how many steps are still to read it.

use std::{mem, sync::Arc};

use crate::ensemble::plan::SlotIndex;
use troupe_base::{request::Context, tensor::Tensor};

/// The slots of one run.
pub(super) struct Slots(Vec<TensorSlot>);

struct TensorSlot {
    value: SlotValue,
    /// How many are still to read it.
    readers: u16,
}

/// What lies in a slot.
enum SlotValue {
    /// Nothing yet, as its maker has not finished; or nothing any more, as the last reader took it.
    Empty,
    /// Its maker has finished and gave none, or the client sent none: it is left out downstream.
    Absent,
    Held(HeldTensor),
}

/// A tensor on its way.
#[derive(Clone)]
pub(super) struct HeldTensor {
    pub(super) tensor: Tensor,
    /// The batch size of the request that made it; 0: its maker does not batch, or had no rows.
    pub(super) batch: u32,
    /// What its maker said of sequences.
    pub(super) sequence: Option<Arc<Context>>,
}

/// The tensors a run begins with, and where they go.
pub(crate) struct RunInputs<T> {
    /// Pairs of a slot and what goes there.
    pub(crate) tensors: T,
    /// The batch size of the request that made them; 0: their maker does not batch.
    pub(crate) batch: u32,
    /// What their maker said of sequences.
    pub(crate) sequence: Option<Arc<Context>>,
}

impl Slots {
    /// All empty, each with so many readers.
    pub(super) fn new(readers: &[u16]) -> Slots {
        let slots =
            readers.iter().map(|readers| TensorSlot { value: SlotValue::Empty, readers: *readers });
        Slots(slots.collect())
    }

    /// The maker of a tensor has finished, with or without it. A tensor that nobody reads is not
    /// kept; says whether this one is.
    pub(super) fn fill(&mut self, index: SlotIndex, held: Option<HeldTensor>) -> bool {
        let slot = &mut self.0[index];
        let is_kept = held.is_some() && slot.readers != 0;
        slot.value = match held {
            Some(held) if is_kept => SlotValue::Held(held),
            _ => SlotValue::Absent,
        };
        is_kept
    }

    /// Reads a tensor for a step: the last reader takes it, earlier ones share it. `None` if it is
    /// absent.
    pub(super) fn read(&mut self, index: SlotIndex) -> Option<HeldTensor> {
        let slot = &mut self.0[index];
        slot.readers -= 1;
        if slot.readers == 0 {
            return self.take(index);
        }
        match &slot.value {
            SlotValue::Held(held) => Some(held.clone()),
            SlotValue::Empty | SlotValue::Absent => None,
        }
    }

    /// Takes a tensor, whoever else was to read it.
    pub(super) fn take(&mut self, index: SlotIndex) -> Option<HeldTensor> {
        match mem::replace(&mut self.0[index].value, SlotValue::Empty) {
            SlotValue::Held(held) => Some(held),
            SlotValue::Empty | SlotValue::Absent => None,
        }
    }

    pub(super) fn is_held(&self, index: SlotIndex) -> bool {
        matches!(self.0[index].value, SlotValue::Held(_))
    }

    /// All that are held, by slot.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (SlotIndex, &Tensor)> {
        self.0.iter().enumerate().filter_map(|(index, slot)| match &slot.value {
            SlotValue::Held(held) => Some((index, &held.tensor)),
            SlotValue::Empty | SlotValue::Absent => None,
        })
    }

    /// Lets go of all.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::tensor::DataType;

    fn held(number: u8) -> HeldTensor {
        let shape = [1].into_iter().collect();
        let tensor = Tensor::new(DataType::Uint8, shape, vec![number].into()).unwrap();
        HeldTensor { tensor, batch: 0, sequence: None }
    }

    fn number(held: Option<HeldTensor>) -> Option<u8> {
        held.map(|held| held.tensor.data()[0])
    }

    #[test]
    fn the_last_reader_takes_a_tensor() {
        let mut slots = Slots::new(&[2]);
        assert!(!slots.is_held(0));
        assert!(slots.fill(0, Some(held(7))));
        assert_eq!((number(slots.read(0)), slots.is_held(0)), (Some(7), true));
        assert_eq!((number(slots.read(0)), slots.is_held(0)), (Some(7), false));
    }

    #[test]
    fn what_nobody_reads_is_not_kept() {
        let mut slots = Slots::new(&[0, 1]);
        assert!(!slots.fill(0, Some(held(7))));
        assert!(slots.fill(1, Some(held(8))));
        assert_eq!(slots.tensors().map(|(index, _)| index).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn what_was_left_out_is_absent_and_what_is_not_made_yet_is_empty() {
        let mut slots = Slots::new(&[2, 1]);
        assert!(!slots.fill(0, None));
        assert!(matches!(slots.0[0].value, SlotValue::Absent));
        assert!(matches!(slots.0[1].value, SlotValue::Empty));
        assert_eq!(number(slots.read(0)), None);
        assert!(matches!(slots.0[0].value, SlotValue::Absent));
    }
}
