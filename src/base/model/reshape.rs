//! Reshapes tensors as `reshape` of a config says: clients see `dims`, the model sees
//! `reshape.shape`.

use std::{sync::Arc, time::Instant};

use crate::{
    config::ModelConfig,
    error::Result,
    request::{Answer, Part, Reply, Response},
    statistics::Timing,
    tensor::{Shape, Tensor},
};

/// Gives inputs the shapes that the model wants.
pub(super) fn inputs(config: &ModelConfig, tensors: &mut [Option<Tensor>]) -> Result<()> {
    for (input, tensor) in config.inputs.iter().zip(tensors) {
        if let Some(to) = &input.reshape {
            convert(config, &input.dims, to, tensor)?;
        }
    }
    Ok(())
}

/// A reply that gives outputs the shapes that clients see.
pub(super) fn reply(config: Arc<ModelConfig>, reply: Reply) -> Reply {
    let since = reply.since();
    Reply::new_at(ReshapedReply { config, reply }, since)
}

struct ReshapedReply {
    config: Arc<ModelConfig>,
    reply: Reply,
}

impl Answer for ReshapedReply {
    fn answer(self: Box<Self>, result: Result<Response>, now: Instant) {
        let result = result.and_then(|mut response| {
            outputs(&self.config, &mut response.outputs)?;
            Ok(response)
        });
        self.reply.answer_at(result, now);
    }

    /// The reply behind it counts for the same model.
    fn uncount(&mut self) {
        self.reply.uncount();
    }

    fn takes_many(&self) -> bool {
        self.reply.takes_many()
    }

    fn part(&mut self, part: Part, _: Instant) {
        let config = &self.config;
        let result = part.result.and_then(|mut response| {
            outputs(config, &mut response.outputs)?;
            Ok(response)
        });
        self.reply.part(Part { result, ..part });
    }

    fn end(self: Box<Self>, timing: Timing, _: Instant) {
        self.reply.end(timing);
    }
}

/// Gives outputs the shapes that clients see.
fn outputs(config: &ModelConfig, tensors: &mut [Option<Tensor>]) -> Result<()> {
    for (output, tensor) in config.outputs.iter().zip(tensors) {
        if let Some(from) = &output.reshape {
            convert(config, from, &output.dims, tensor)?;
        }
    }
    Ok(())
}

/// Whether any tensor of the config has a `reshape`.
pub(super) fn is_needed(config: &ModelConfig) -> bool {
    config.inputs.iter().any(|it| it.reshape.is_some())
        || config.outputs.iter().any(|it| it.reshape.is_some())
}

/// Gives a tensor with dimensions `from` the dimensions `to`, behind the batch dimension if there
/// is one.
fn convert(
    config: &ModelConfig,
    from: &[i64],
    to: &[i64],
    tensor: &mut Option<Tensor>,
) -> Result<()> {
    let Some(old) = tensor.take() else { return Ok(()) };
    let lead = usize::from(0 < config.max_batch_size);
    let mut shape: Shape = old.shape().iter().take(lead).copied().collect();
    // The n-th variable dimension of one side is the n-th of the other.
    let mut variable =
        old.shape().iter().skip(lead).zip(from).filter(|(_, dim)| **dim == -1).map(|(got, _)| *got);
    shape.extend(to.iter().map(|dim| if *dim == -1 { variable.next().unwrap_or(1) } else { *dim }));
    *tensor = Some(old.reshaped(shape)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::Error, statistics::Statistics};

    /// Does a request that failed count for its model?
    fn check(is_counted: bool) {
        let config = crate::config::read_text(
            "name: 'm' backend: 'native' input { name: 'x' data_type: TYPE_UINT8 dims: 1 } \
             output { name: 'y' data_type: TYPE_UINT8 dims: 1 }",
            "f",
        );
        let config = config.unwrap().finish(&Default::default()).unwrap();
        let stats = Arc::new(Statistics::default());
        let (counted, mut answer) = Reply::channel();
        let reshaped = reply(Arc::new(config), counted.counted(stats.clone()));
        let reshaped = if is_counted { reshaped } else { reshaped.uncounted() };
        reshaped.answer(Err(Error::cancelled()));
        assert!(answer.try_recv().unwrap().is_err());
        assert_eq!(stats.fail().count, u64::from(is_counted));
    }

    #[test]
    fn what_was_refused_counts_nowhere_behind_a_reshaped_reply_either() {
        check(true);
        check(false);
    }
}
