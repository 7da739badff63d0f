//! Null rows of a batch are memory that no client sent: the request whose shape they have is charged
//! for them.

use std::sync::{Arc, atomic::Ordering};

use super::actor::Batcher;
use troupe_base::{
    budget::{Hold, Kind, is_worth_counting},
    error::{Error, Result},
    request::Pending,
};

impl Batcher {
    /// Charges the first request of a batch for the zeros of its null rows, until those are answered,
    /// and gives the batch back. Where there is no room for them that request is refused, and the
    /// others wait for the next batch.
    pub(super) fn charge_null_rows(
        &mut self,
        batch: Vec<Pending>,
        null_rows: usize,
    ) -> Option<Vec<Pending>> {
        if null_rows == 0 {
            return Some(batch);
        }
        let error = match charge(&batch, null_rows) {
            Ok(None) => return Some(batch),
            Ok(Some(held)) => {
                return Some(batch.into_iter().map(|it| holding(it, &held)).collect());
            }
            Err(error) => error,
        };
        let model = &self.config.name;
        let error = Error::new(
            error.kind(),
            format!(
                "model '{model}' would execute this request beside {null_rows} rows of zeros in its \
                 shape, for sequences without a request: {error}"
            ),
        );
        let mut asked = batch.into_iter().filter(|it| !it.request.context.is_null);
        if let Some(refused) = asked.next() {
            refused.reply.answer(Err(error));
        }
        for pending in asked {
            self.stats.pending.fetch_add(1, Ordering::Relaxed);
            self.scheduler.put_back(pending);
        }
        None
    }
}

/// What the zeros hold of the budget, if that is worth counting.
fn charge(batch: &[Pending], null_rows: usize) -> Result<Option<Arc<Hold>>> {
    let real = batch.iter().find(|it| !it.request.context.is_null);
    let null = batch.iter().find(|it| it.request.context.is_null);
    let (Some(real), Some(null)) = (real, null) else { return Ok(None) };
    let inputs: usize = null.request.inputs.iter().flatten().map(|it| it.data().len()).sum();
    let states = real.reply.state_keeper().map_or(0, |it| it.states().bytes());
    let bytes = inputs.saturating_add(states).saturating_mul(null_rows);
    if !is_worth_counting(bytes) {
        return Ok(None);
    }
    let mut hold = real.request.context.charge.hold(Kind::Tensors);
    hold.grow(bytes)?;
    Ok(Some(Arc::new(hold)))
}

/// A null request keeps what is held until it is answered.
fn holding(pending: Pending, held: &Arc<Hold>) -> Pending {
    let Pending { request, reply } = pending;
    let reply = if request.context.is_null { reply.holding(held.clone()) } else { reply };
    Pending { request, reply }
}
