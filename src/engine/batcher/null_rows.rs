//! Null rows of a batch are memory that no client sent: the request whose shape they have is charged
//! for them.

use super::actor::Batcher;
use troupe_base::{
    budget::Kind,
    error::{Error, Result},
    request::Pending,
};

impl Batcher {
    /// Charges the first request of a batch for the zeros of its null rows, and gives the batch back.
    /// Where there is no room for them its requests are refused.
    pub(super) fn charge_null_rows(
        &self,
        batch: Vec<Pending>,
        null_rows: usize,
    ) -> Option<Vec<Pending>> {
        let Err(error) = charge(&batch, null_rows) else { return Some(batch) };
        let model = &self.config.name;
        let error = Error::new(
            error.kind(),
            format!(
                "model '{model}' would execute this request beside {null_rows} rows of zeros in its \
                 shape, for sequences without a request: {error}"
            ),
        );
        for Pending { reply, .. } in batch {
            reply.answer(Err(error.clone()));
        }
        None
    }
}

fn charge(batch: &[Pending], null_rows: usize) -> Result<()> {
    let real = batch.iter().find(|it| !it.request.context.is_null);
    let null = batch.iter().find(|it| it.request.context.is_null);
    let (Some(real), Some(null)) = (real, null) else { return Ok(()) };
    let inputs: usize = null.request.inputs.iter().flatten().map(|it| it.data().len()).sum();
    let states = real.reply.state_keeper().map_or(0, |it| it.states().bytes());
    let bytes = inputs.saturating_add(states).saturating_mul(null_rows);
    real.request.context.charge.add(Kind::Tensors, bytes)
}
