//! Tensors that are needed and were not made: which step left them out, and what it says of that.

use crate::ensemble::plan::{Plan, SlotIndex};
use troupe_base::{
    error::Error,
    request::{Request, Wanted},
};

/// The request of step `reader` lacks an input, which would lie in this slot. `None` if the client
/// left it out: then the step refuses the request itself.
pub(super) fn input(
    plan: &Plan,
    reader: usize,
    slot: SlotIndex,
    request: &mut Request,
) -> Option<(usize, Error)> {
    let (maker, output) = plan.maker(slot)?;
    let step = &plan.steps[reader];
    let refusal = step.model.fits(request).err()?;
    let position = step.inputs.iter().position(|read| *read == Some(slot))?;
    let text = format!(
        "output '{}' is missing, which step {reader} (model '{}') needs as input '{}': {refusal}",
        plan.steps[maker].model.config.outputs[output].name,
        step.model.name(),
        step.model.config.inputs[position].name,
    );
    Some((maker, Error::new(refusal.kind(), text)))
}

/// Not one of the outputs that the client wants was made.
pub(super) fn outputs(
    plan: &Plan,
    wanted: &Wanted,
    is_made: impl Fn(SlotIndex) -> bool,
) -> Option<(usize, Error)> {
    let asked = plan.outputs.iter().enumerate().filter(|(index, _)| wanted.has(*index));
    if asked.clone().any(|(_, slot)| is_made(*slot)) {
        return None;
    }
    let (index, slot) = asked.clone().next()?;
    let (maker, output) = plan.maker(*slot)?;
    let text = format!(
        "output '{}' is missing, and with it output '{}' of ensemble '{}', which has no other to \
         answer with",
        plan.steps[maker].model.config.outputs[output].name,
        plan.config.outputs[index].name,
        plan.config.name,
    );
    Some((maker, Error::internal(text)))
}
