//! `reshape` of a config: clients see `dims`, the model sees `reshape.shape`.

use std::{sync::Arc, time::Instant};

use crate::{
    config::ModelConfig,
    error::Result,
    request::{Answer, Part, Reply, Response},
    statistics::Timing,
    tensor::{Shape, Tensor},
};

/// Inputs as the model wants them.
pub(super) fn inputs(config: &ModelConfig, tensors: &mut [Option<Tensor>]) -> Result<()> {
    for (input, tensor) in config.inputs.iter().zip(tensors) {
        if let Some(to) = &input.reshape {
            convert(config, (&input.dims, to), tensor)?;
        }
    }
    Ok(())
}

/// A reply that gives outputs their outer shapes.
pub(super) fn reply(config: Arc<ModelConfig>, reply: Reply) -> Reply {
    let since = reply.since();
    Reply::new_at(Outer { config, reply }, since)
}

struct Outer {
    config: Arc<ModelConfig>,
    reply: Reply,
}

impl Answer for Outer {
    fn answer(self: Box<Self>, result: Result<Response>, now: Instant) {
        let result = result.and_then(|mut response| {
            outputs(&self.config, &mut response.outputs)?;
            Ok(response)
        });
        self.reply.answer_at(result, now);
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

/// Outputs as clients want them.
fn outputs(config: &ModelConfig, tensors: &mut [Option<Tensor>]) -> Result<()> {
    for (output, tensor) in config.outputs.iter().zip(tensors) {
        if let Some(from) = &output.reshape {
            convert(config, (from, &output.dims), tensor)?;
        }
    }
    Ok(())
}

/// Does any tensor of the config have a `reshape`?
pub(super) fn is_needed(config: &ModelConfig) -> bool {
    config.inputs.iter().any(|it| it.reshape.is_some())
        || config.outputs.iter().any(|it| it.reshape.is_some())
}

fn convert(
    config: &ModelConfig,
    (from, to): (&[i64], &[i64]),
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
