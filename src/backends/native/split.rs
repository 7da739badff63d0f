//! `split`: one input in equal parts, one an output, along the first dimension after the batch.

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
    let is_so = config.inputs.len() == 1
        && !config.outputs.is_empty()
        && config.outputs.iter().all(|it| it.dtype == config.inputs[0].dtype)
        && !config.inputs[0].dims.is_empty();
    expect(config, is_so, "one input of at least one dimension and outputs of its type")?;
    let parts = config.outputs.len();
    Ok(Op::new(elements::placement_by_rows(config), move |inputs, rows| run(parts, inputs, rows)))
}

fn run(parts: usize, inputs: Tensors, rows: u32) -> Result<Tensors> {
    let Some(Some(whole)) = inputs.into_iter().next() else { return Ok(vec![None; parts]) };
    let axis = usize::from(rows != 0);
    let length = whole.shape()[axis] as usize;
    if !length.is_multiple_of(parts) {
        return Err(Error::invalid(format!(
            "cannot split shape {} into {parts} equal parts",
            shape_text(whole.shape())
        )));
    }
    let part = length / parts;
    (0..parts).map(|index| slice(&whole, axis, index * part, part).map(Some)).collect()
}

fn slice(whole: &Tensor, axis: usize, start: usize, length: usize) -> Result<Tensor> {
    if axis == 0 {
        return Ok(whole.slice_rows(start, start + length));
    }
    // Below the batch the parts of the rows lie apart: they are copied together.
    let mut data = BytesMut::new();
    for row in 0..whole.rows() {
        let row = whole.slice_rows(row, row + 1);
        let inner: Shape = row.shape()[1..].into();
        data.extend_from_slice(row.reshaped(inner)?.slice_rows(start, start + length).data());
    }
    let mut shape: Shape = whole.shape().into();
    shape[axis] = length as i64;
    Tensor::new(whole.dtype(), shape, data.freeze())
}
