//! `concat`: all inputs in one output, along the first dimension after the batch.

use bytes::BytesMut;

use super::{
    elements,
    op::{Op, expect},
};
use troupe_base::{
    backend::Tensors,
    config::ModelConfig,
    error::{Error, Result},
    tensor::{Shape, Tensor, shape_text},
};

pub(super) fn prepare(config: &ModelConfig) -> Result<Op> {
    let is_so = config.outputs.len() == 1
        && config.inputs.iter().all(|it| it.dtype == config.outputs[0].dtype)
        && config.inputs.iter().all(|it| !it.dims.is_empty());
    expect(config, is_so, "inputs of at least one dimension and one output of one type")?;
    Ok(Op::new(elements::placement_by_rows(config), run))
}

fn run(inputs: Tensors, rows: u32) -> Result<Tensors> {
    let parts: Vec<Tensor> = inputs.into_iter().flatten().collect();
    let Some(first) = parts.first() else { return Ok(vec![None]) };
    let axis = usize::from(rows != 0);
    let mut shape: Shape = first.shape().into();
    shape[axis] = 0;
    for part in &parts {
        let rest = |of: &Tensor| of.shape().iter().skip(axis + 1).copied().collect::<Shape>();
        if rest(part) != rest(first) {
            return Err(Error::invalid(format!(
                "cannot concat shapes {} and {}",
                shape_text(first.shape()),
                shape_text(part.shape())
            )));
        }
        shape[axis] += part.shape()[axis];
    }
    let mut data = BytesMut::with_capacity(parts.iter().map(|it| it.data().len()).sum());
    for row in 0..rows.max(1) as usize {
        for part in &parts {
            match rows {
                0 => data.extend_from_slice(part.data()),
                _ => data.extend_from_slice(part.slice_rows(row, row + 1).data()),
            }
        }
    }
    Ok(vec![Some(Tensor::new(first.dtype(), shape, data.freeze())?)])
}
