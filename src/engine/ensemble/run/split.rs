//! Batches that do not fit a step's model: too many rows run in parts, no rows do not run at all.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::scatter::{Gather, scatter};
use troupe_base::{
    config::ModelConfig,
    error::{Error, Result},
    model::Model,
    request::{Reply, Request, Response},
    tensor::{Shape, Tensor, shape_text},
};

/// The most parts of one batch.
const MAX_PARTS: usize = 1 << 14;
/// The same of a batch without a byte: it may claim any number of rows.
const MAX_EMPTY_PARTS: usize = 16;

/// What a batching model would say to no rows; where a dimension varies it is 0.
pub(super) fn empty(config: &ModelConfig) -> Result<Response> {
    let outputs = config.outputs.iter().map(|output| {
        let dims = output.dims.iter().map(|it| (*it).max(0));
        let shape: Shape = std::iter::once(0).chain(dims).collect();
        Tensor::new(output.dtype, shape, Bytes::new()).map(Some)
    });
    Ok(Response { outputs: outputs.collect::<Result<_>>()?, ..Response::default() })
}

/// Asks the model for parts of at most its largest batch, all at once, and answers with all rows
/// in order. The first part that fails is the answer; whoever gets it cancels the others.
pub(super) fn infer(model: &Arc<Model>, request: Request, reply: Reply) {
    let Request { context, inputs: mut rest, wanted, .. } = request;
    let most = model.config.max_batch_size as usize;
    let rows = rest.iter().flatten().next().map_or(0, Tensor::rows);
    let count = rows.div_ceil(most);
    let has_bytes = rest.iter().flatten().any(|tensor| !tensor.data().is_empty());
    let most_parts = if has_bytes { MAX_PARTS } else { MAX_EMPTY_PARTS };
    if most_parts < count {
        return reply.answer(Err(Error::invalid(format!(
            "a batch of {rows} rows would take {count} executions of model '{}', which takes up to \
             {most} rows at once; at most {most_parts} are allowed",
            model.name()
        ))));
    }
    let parts = (0..count).map(|part| {
        let size = part_rows(part, most, rows);
        let inputs =
            rest.iter_mut().map(|tensor| tensor.as_mut().map(|tensor| tensor.split_to_rows(size)));
        let (context, wanted) = (context.clone(), wanted.clone());
        Request { context, inputs: inputs.collect(), wanted, batch: 0 }
    });
    scatter(model, parts, RowParts { model: model.clone(), rows }, reply);
}

/// A batch in parts of as many rows as its model takes at once.
struct RowParts {
    model: Arc<Model>,
    rows: usize,
}

/// The rows of one of the parts, counted from 0.
fn part_rows(part: usize, most: usize, rows: usize) -> usize {
    most.min(rows - part * most)
}

impl Gather for RowParts {
    fn check(&self, part: usize, response: Response) -> Result<Response> {
        let config = &self.model.config;
        let size = part_rows(part, config.max_batch_size as usize, self.rows);
        check_rows(config, response, size)
    }

    fn gather(&self, parts: Vec<Response>) -> Result<Response> {
        gather(&self.model.config, parts, self.rows)
    }
}

/// Every output has the rows of its part, else nobody could tell which are whose.
fn check_rows(config: &ModelConfig, response: Response, size: usize) -> Result<Response> {
    for (output, tensor) in config.outputs.iter().zip(&response.outputs) {
        if let Some(tensor) =
            tensor.as_ref().filter(|it| it.shape().first() != Some(&(size as i64)))
        {
            return Err(Error::internal(format!(
                "output '{}' of model '{}' has shape {}, expected {size} rows",
                output.name,
                config.name,
                shape_text(tensor.shape())
            )));
        }
    }
    Ok(response)
}

/// One response of all parts, in order; its parameters are those of the first part.
fn gather(config: &ModelConfig, parts: Vec<Response>, rows: usize) -> Result<Response> {
    let mut outputs = Vec::with_capacity(config.outputs.len());
    for (index, output) in config.outputs.iter().enumerate() {
        let tensors = || parts.iter().filter_map(|it| it.outputs.get(index)?.as_ref());
        let differ = |what: String| {
            let (output, model) = (&output.name, &config.name);
            Error::internal(format!(
                "output '{output}' of model '{model}' differs between the parts of a batch: {what}"
            ))
        };
        let Some(first) = tensors().next() else {
            outputs.push(None);
            continue;
        };
        let given = tensors().count();
        if given != parts.len() {
            return Err(differ(format!("given by {given} of {}", parts.len())));
        }
        let is_like =
            |it: &&Tensor| it.dtype() == first.dtype() && it.shape()[1..] == first.shape()[1..];
        if let Some(other) = tensors().find(|it| !is_like(it)) {
            let of = |it: &Tensor| format!("{}{}", it.dtype().as_str(), shape_text(it.shape()));
            return Err(differ(format!("{} and {}", of(first), of(other))));
        }
        // The one copy of a split step's outputs: its readers want one tensor.
        let mut data = BytesMut::with_capacity(tensors().map(|it| it.data().len()).sum());
        tensors().for_each(|it| data.extend_from_slice(it.data()));
        let mut shape: Shape = first.shape().into();
        shape[0] = rows as i64;
        outputs.push(Some(Tensor::new(first.dtype(), shape, data.freeze())?));
    }
    let left_out_by = parts.iter().find_map(|it| it.left_out_by.clone());
    let parameters = parts.into_iter().next().map(|it| it.parameters).unwrap_or_default();
    Ok(Response { outputs, parameters, left_out_by, ..Response::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::{
        config::{ServerFeatures, read_text},
        request::Parameter,
        tensor::DataType,
    };

    fn config() -> ModelConfig {
        let text = "name: 'm' backend: 'native' max_batch_size: 4 \
                    input { name: 'x' data_type: TYPE_UINT8 dims: -1 } \
                    output { name: 'y' data_type: TYPE_UINT8 dims: [ -1, 2 ] } \
                    output { name: 'z' data_type: TYPE_STRING dims: 1 }";
        read_text(text, "f").unwrap().finish(&ServerFeatures::default()).unwrap()
    }

    fn tensor(shape: &[i64]) -> Option<Tensor> {
        let bytes = vec![0u8; shape.iter().product::<i64>() as usize];
        Some(Tensor::new(DataType::Uint8, shape.into(), bytes.into()).unwrap())
    }

    #[test]
    fn no_rows_give_outputs_without_rows() {
        let outputs = empty(&config()).unwrap().outputs;
        let shapes: Vec<_> = outputs.iter().flatten().map(|it| it.shape().to_vec()).collect();
        assert_eq!(shapes, [vec![0, 0, 2], vec![0, 1]]);
    }

    fn part(outputs: Vec<Option<Tensor>>) -> Response {
        Response { outputs, ..Response::default() }
    }

    #[test]
    fn the_first_part_speaks_for_all() {
        let say = |number| Response {
            parameters: vec![("sequence_id".into(), Parameter::Int(number))],
            ..part(vec![None, None])
        };
        let gathered = gather(&config(), vec![say(1), say(2)], 8).unwrap();
        assert_eq!(gathered.parameters, say(1).parameters);
        assert!(gathered.outputs.iter().all(Option::is_none));
    }

    #[test]
    fn parts_that_differ_cannot_be_one_answer() {
        let error = |parts| gather(&config(), parts, 4).unwrap_err().to_string();
        let start = "output 'y' of model 'm' differs between the parts of a batch: ";
        assert_eq!(
            error(vec![part(vec![tensor(&[2, 3, 2])]), part(vec![tensor(&[2, 4, 2])])]),
            format!("{start}UINT8[2,3,2] and UINT8[2,4,2]")
        );
        assert_eq!(
            error(vec![part(vec![tensor(&[2, 3, 2])]), part(vec![None])]),
            format!("{start}given by 1 of 2")
        );
        assert_eq!(
            check_rows(&config(), part(vec![tensor(&[2, 3, 2])]), 4).unwrap_err().to_string(),
            "output 'y' of model 'm' has shape [2,3,2], expected 4 rows"
        );
    }
}
