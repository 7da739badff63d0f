//! Joins the inputs of several requests into one execution and splits the outputs back.

use bytes::{Bytes, BytesMut};

use super::batch_input;
use troupe_base::{
    backend::Tensors,
    budget::Kind,
    config::{Input, ModelConfig},
    error::{Error, Result},
    request::{Request, Wanted},
    tensor::{Shape, Tensor, element_count, shape_text},
};

/// An error says what was expected of an output instead.
type SplitResult = std::result::Result<(), String>;

/// Inputs of one execution: the one copy batching costs.
///
/// Only a model with batch inputs or ragged ones has a single request joined.
pub(super) fn join(config: &ModelConfig, requests: &[Request]) -> Result<Tensors> {
    let join = |(index, input): (usize, &Input)| match input.ragged {
        true => join_flat(requests, index),
        false => join_rows(requests, index),
    };
    let mut inputs: Tensors = config.inputs.iter().enumerate().map(join).collect::<Result<_>>()?;
    for source in config.outputs.iter().filter_map(|it| it.scatter) {
        requests.iter().try_for_each(|it| batch_input::source(config, source, it).map(drop))?;
    }
    for computed in &config.batch_inputs {
        let tensor = batch_input::compute(config, computed, requests)?;
        inputs.extend(computed.names.iter().map(|_| Some(tensor.clone())));
    }
    Ok(inputs)
}

/// The rows of all requests below each other.
fn join_rows(requests: &[Request], index: usize) -> Result<Option<Tensor>> {
    let parts = || requests.iter().filter_map(|it| it.inputs[index].as_ref());
    let Some(first) = parts().next() else { return Ok(None) };
    let mut shape: Shape = first.shape().into();
    if let Some(rows) = shape.first_mut() {
        *rows = parts().map(|it| it.rows() as i64).sum();
    }
    let joined = Tensor::new(first.dtype(), shape, joined(requests, parts()))?;
    Ok(Some(joined.of_counted()))
}

/// The elements of all requests, whatever their shapes, in one dimension.
fn join_flat(requests: &[Request], index: usize) -> Result<Option<Tensor>> {
    let parts = || requests.iter().filter_map(|it| it.inputs[index].as_ref());
    let Some(first) = parts().next() else { return Ok(None) };
    let mut elements = 0;
    for part in parts() {
        elements += element_count(part.shape())? as i64;
    }
    let shape: Shape = [elements].into_iter().collect();
    if parts().nth(1).is_none() {
        return first.clone().reshaped(shape).map(Some);
    }
    let joined = Tensor::new(first.dtype(), shape, joined(requests, parts()))?;
    Ok(Some(joined.of_counted()))
}

/// The copy counts beside what it was copied from: the requests keep that until they are answered.
fn joined<'a>(requests: &[Request], parts: impl Iterator<Item = &'a Tensor> + Clone) -> Bytes {
    let mut data = BytesMut::with_capacity(parts.clone().map(|it| it.data().len()).sum());
    parts.for_each(|it| data.extend_from_slice(it.data()));
    let mut charges = requests.iter().map(|it| &it.context.charge);
    match charges.find(|it| it.counts_anything()) {
        Some(charge) => charge.over_for_all(Kind::Tensors, data.freeze()),
        None => data.freeze(),
    }
}

/// Gives each request its part of the outputs it asked for.
pub(super) fn split(
    config: &ModelConfig,
    requests: &[Request],
    outputs: Tensors,
) -> Result<Vec<Tensors>> {
    check_count(config, &outputs)?;
    let mut answers = vec![Tensors::with_capacity(outputs.len()); requests.len()];
    for (output, tensor) in config.outputs.iter().zip(outputs) {
        let Some(tensor) = tensor else {
            answers.iter_mut().for_each(|it| it.push(None));
            continue;
        };
        let shape = shape_text(tensor.shape());
        let result = match output.scatter {
            Some(source) => scatter(tensor, requests, source, &mut answers),
            None => split_rows(tensor, requests, &mut answers),
        };
        result.map_err(|expected| {
            let (output, model) = (&output.name, &config.name);
            let text = format!("output '{output}' of model '{model}' has shape {shape}");
            Error::internal(format!("{text}, expected {expected}"))
        })?;
    }
    let picked = requests.iter().zip(answers).map(|(it, answer)| pick(&it.wanted, answer));
    Ok(picked.collect())
}

/// Each request has as many rows as it sent. The error says what was expected.
fn split_rows(mut tensor: Tensor, requests: &[Request], answers: &mut [Tensors]) -> SplitResult {
    if let [alone] = answers {
        // All of it, as it is for any request that runs alone.
        alone.push(Some(tensor));
        return Ok(());
    }
    let total: u32 = requests.iter().map(Request::rows).sum();
    if tensor.rows() != total as usize {
        return Err(format!("{total} rows"));
    }
    for (request, answer) in requests.iter().zip(answers) {
        answer.push(Some(tensor.split_to_rows(request.rows() as usize)));
    }
    Ok(())
}

/// Each request has as many elements as its input `source`, in that shape.
fn scatter(
    tensor: Tensor,
    requests: &[Request],
    source: usize,
    answers: &mut [Tensors],
) -> SplitResult {
    let shape = |request: &Request| -> Shape {
        request.inputs[source].as_ref().expect("`join` has looked for it").shape().into()
    };
    let shapes: Vec<Shape> = requests.iter().map(shape).collect();
    let counts = shapes.iter().map(|it| element_count(it).map_err(|error| error.to_string()));
    let counts: Vec<usize> = counts.collect::<std::result::Result<_, _>>()?;
    let total: usize = counts.iter().sum();
    let expected = |_| format!("{total} elements");
    let mut flat = tensor.reshaped([total as i64].into_iter().collect()).map_err(expected)?;
    for ((count, shape), answer) in counts.into_iter().zip(shapes).zip(answers) {
        answer.push(Some(flat.split_to_rows(count).reshaped(shape).map_err(expected)?));
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::{
        config::{ServerFeatures, read_text},
        tensor::DataType,
    };

    /// A ragged input `r`, an ordinary one `o`, and outputs of which the first is scattered.
    fn config() -> ModelConfig {
        let text = "name: 'm' backend: 'native' max_batch_size: 8 \
                    input { name: 'r' data_type: TYPE_UINT8 dims: -1 allow_ragged_batch: true } \
                    input { name: 'o' data_type: TYPE_UINT8 dims: 1 } \
                    output { name: 'R' data_type: TYPE_UINT8 dims: -1 } \
                    output { name: 'O' data_type: TYPE_UINT8 dims: 1 } \
                    batch_input { target_name: ['n', 'N'] data_type: TYPE_INT32 source_input: 'r' } \
                    batch_output { target_name: 'R' source_input: 'r' }";
        read_text(text, "f").unwrap().finish(&ServerFeatures::default()).unwrap()
    }

    fn tensor(shape: &[i64], bytes: &'static [u8]) -> Option<Tensor> {
        Some(Tensor::new(DataType::Uint8, shape.into(), Bytes::from_static(bytes)).unwrap())
    }

    fn request(rows: u32, r: (&[i64], &'static [u8]), o: &'static [u8]) -> Request {
        let inputs = vec![tensor(r.0, r.1), tensor(&[i64::from(rows), 1], o)];
        Request { inputs, batch: rows, ..Request::default() }
    }

    fn requests() -> Vec<Request> {
        vec![request(1, (&[1, 3], b"abc"), b"x"), request(2, (&[2, 2], b"defg"), b"yz")]
    }

    fn contents(tensors: Tensors) -> Vec<(Vec<i64>, Bytes)> {
        tensors.into_iter().flatten().map(|it| (it.shape().to_vec(), it.data().clone())).collect()
    }

    #[test]
    fn ragged_inputs_lie_flat_beside_ordinary_ones() {
        let joined = contents(join(&config(), &requests()).unwrap());
        let counts = (vec![2], Bytes::from_static(&[3, 0, 0, 0, 4, 0, 0, 0]));
        let flat = (vec![7], "abcdefg".into());
        assert_eq!(joined, [flat, (vec![3, 1], "xyz".into()), counts.clone(), counts]);
    }

    #[test]
    fn a_single_ragged_request_lies_flat_too_without_a_copy() {
        let alone = [request(2, (&[2, 2], b"defg"), b"yz")];
        let joined = join(&config(), &alone).unwrap();
        let flat = joined[0].as_ref().unwrap();
        assert_eq!(flat.shape(), [4]);
        assert_eq!(flat.data().as_ptr(), alone[0].inputs[0].as_ref().unwrap().data().as_ptr());
    }

    #[test]
    fn a_scattered_output_has_the_shapes_of_its_input() {
        let outputs = || vec![tensor(&[7], b"ABCDEFG"), tensor(&[3, 1], b"XYZ")];
        let mut parts = split(&config(), &requests(), outputs()).unwrap().into_iter().map(contents);
        let first = [(vec![1, 3], "ABC".into()), (vec![1, 1], "X".into())];
        let second = [(vec![2, 2], "DEFG".into()), (vec![2, 1], "YZ".into())];
        assert_eq!((parts.next().unwrap(), parts.next().unwrap()), (first.into(), second.into()));
        let mut requests = requests();
        requests[1].wanted = Wanted::Only([1].into_iter().collect());
        let answers = split(&config(), &requests, outputs()).unwrap();
        assert_eq!(contents(answers[1].clone()), [(vec![2, 1], "YZ".into())]);
    }

    #[test]
    fn outputs_of_another_size_are_errors() {
        let error = |outputs| split(&config(), &requests(), outputs).unwrap_err().to_string();
        assert_eq!(
            error(vec![tensor(&[6], b"ABCDEF"), None]),
            "output 'R' of model 'm' has shape [6], expected 7 elements"
        );
        assert_eq!(
            error(vec![None, tensor(&[2, 1], b"XY")]),
            "output 'O' of model 'm' has shape [2,1], expected 3 rows"
        );
        assert_eq!(error(vec![None]), "model 'm' gave 1 outputs, expected 2");
    }
}
