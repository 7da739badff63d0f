//! `mul`: two inputs of one type and shape; their product.

use super::{
    elements::{self, Arithmetic, TYPES},
    op::{Op, expect},
};
use troupe_base::{config::ModelConfig, error::Result};

pub(super) fn prepare(config: &ModelConfig) -> Result<Op> {
    let is_so = config.inputs.len() == 2
        && config.outputs.len() == 1
        && config.inputs.iter().all(|it| it.dtype == config.outputs[0].dtype)
        && TYPES.contains(&config.outputs[0].dtype);
    expect(config, is_so, "two inputs and one output of one numeric type")?;
    Ok(Op::new(elements::placement(config), |inputs, _| {
        let [Some(a), Some(b)] = &inputs[..] else { return Ok(vec![None]) };
        Ok(vec![Some(elements::compute(Arithmetic::Mul, a, b)?)])
    }))
}
