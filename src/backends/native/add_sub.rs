//! `add_sub`: two inputs of one type and shape; their sum and their difference.

use super::{
    elements::{self, Arithmetic, TYPES},
    op::{Op, expect},
};
use troupe_base::{config::ModelConfig, error::Result};

pub(super) fn prepare(config: &ModelConfig) -> Result<Op> {
    let types =
        config.inputs.iter().map(|it| it.dtype).chain(config.outputs.iter().map(|it| it.dtype));
    let mut types: Vec<_> = types.collect();
    types.dedup();
    let is_so = config.inputs.len() == 2
        && config.outputs.len() == 2
        && types.len() == 1
        && TYPES.contains(&types[0]);
    expect(config, is_so, "two inputs and two outputs of one numeric type")?;
    Ok(Op::new(elements::placement(config), |inputs, _| {
        let [Some(a), Some(b)] = &inputs[..] else { return Ok(vec![None, None]) };
        let sum = elements::compute(Arithmetic::Add, a, b)?;
        let difference = elements::compute(Arithmetic::Sub, a, b)?;
        Ok(vec![Some(sum), Some(difference)])
    }))
}
