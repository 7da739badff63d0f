//! `identity`: every output is the input of the same position, its bytes shared; batch inputs come
//! after the other inputs.

use super::op::{Op, expect};
use troupe_base::{backend::Placement, config::ModelConfig, error::Result};

pub(super) fn prepare(config: &ModelConfig) -> Result<Op> {
    let inputs = config.executor_inputs().map(|(_, dtype)| dtype);
    let is_so = inputs.eq(config.outputs.iter().map(|it| it.dtype));
    expect(config, is_so, "as many outputs as inputs, of the same types")?;
    Ok(Op::new(Placement::Shared, |inputs, _| Ok(inputs)).with_batch_io())
}
