//! Joins the inputs of several requests into one execution and splits the outputs back.

use bytes::BytesMut;

use crate::{
    backend::Tensors,
    config::ModelConfig,
    error::{Error, Result},
    request::{Request, Wanted},
    tensor::Tensor,
};

/// Inputs of one execution: the one copy batching costs.
pub(super) fn join(requests: &[Request]) -> Result<Tensors> {
    let Some(first) = requests.first() else { return Ok(Tensors::new()) };
    (0..first.inputs.len()).map(|index| join_input(requests, index)).collect()
}

fn join_input(requests: &[Request], index: usize) -> Result<Option<Tensor>> {
    let parts = || requests.iter().filter_map(|it| it.inputs[index].as_ref());
    let Some(first) = parts().next() else { return Ok(None) };
    let mut shape: crate::tensor::Shape = first.shape().iter().copied().collect();
    if let Some(rows) = shape.first_mut() {
        *rows = parts().map(|it| it.rows() as i64).sum();
    }
    let mut data = BytesMut::with_capacity(parts().map(|it| it.data().len()).sum());
    parts().for_each(|it| data.extend_from_slice(it.data()));
    Tensor::new(first.dtype(), shape, data.freeze()).map(Some)
}

/// Gives each request its rows of the outputs it asked for.
pub(super) fn split(
    config: &ModelConfig,
    requests: &[Request],
    outputs: Tensors,
) -> Result<Vec<Tensors>> {
    check_count(config, &outputs)?;
    let total: u32 = requests.iter().map(|it| it.rows()).sum();
    for (output, tensor) in config.outputs.iter().zip(&outputs) {
        if let Some(tensor) = tensor.as_ref().filter(|it| it.rows() != total as usize) {
            return Err(Error::internal(format!(
                "output '{}' of model '{}' has shape {}, expected {total} rows",
                output.name,
                config.name,
                crate::tensor::shape_text(tensor.shape())
            )));
        }
    }
    let mut start = 0;
    let of = |request: &Request| {
        let (from, to) = (start, start + request.rows() as usize);
        start = to;
        let rows = outputs.iter().map(|it| it.as_ref().map(|it| it.slice_rows(from, to)));
        pick(&request.wanted, rows.collect())
    };
    Ok(requests.iter().map(of).collect())
}

/// A place for every output of the config.
pub(super) fn check_count(config: &ModelConfig, outputs: &Tensors) -> Result<()> {
    if outputs.len() == config.outputs.len() {
        return Ok(());
    }
    Err(Error::internal(format!(
        "model '{}' gave {} outputs, expected {}",
        config.name,
        outputs.len(),
        config.outputs.len()
    )))
}

/// Only the outputs asked for.
pub(super) fn pick(wanted: &Wanted, mut outputs: Tensors) -> Tensors {
    if *wanted == Wanted::All {
        return outputs;
    }
    for (index, output) in outputs.iter_mut().enumerate() {
        if !wanted.has(index) {
            *output = None;
        }
    }
    outputs
}
