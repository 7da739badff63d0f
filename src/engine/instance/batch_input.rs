//! Batch inputs (`batch_input` of a config): element counts and shapes of a batch's requests.

use troupe_base::{
    config::{BatchInput, BatchInputKind, ModelConfig},
    error::{Error, Result},
    request::Request,
    tensor::{DataType, Shape, Tensor, element_count},
};

/// The tensor of one `batch_input` for the batch these requests make.
pub(super) fn compute(
    config: &ModelConfig,
    wanted: &BatchInput,
    requests: &[Request],
) -> Result<Tensor> {
    let shape = |it| Ok(Shape::from(source(config, wanted.source, it)?.shape()));
    let shapes: Vec<Shape> = requests.iter().map(shape).collect::<Result<_>>()?;
    let (shape, values) = match wanted.kind {
        BatchInputKind::ItemShape | BatchInputKind::ItemShapeFlatten => {
            item_shapes(&shapes, wanted.kind)
        }
        _ => counts(&shapes, wanted.kind)?,
    };
    let mut data = Vec::with_capacity(values.len() * 4);
    for value in values {
        let bytes = match wanted.dtype {
            DataType::Fp32 => (value as f32).to_le_bytes(),
            _ => i32::try_from(value).map_err(|_| too_large(config, value))?.to_le_bytes(),
        };
        data.extend_from_slice(&bytes);
    }
    Tensor::new(wanted.dtype, shape, data.into())
}

/// Adds the batch inputs behind the inputs of each request, for a model that sees each by itself.
pub(super) fn extend(config: &ModelConfig, requests: &mut [Request]) -> Result<()> {
    // One that was handed over before has those of another batch.
    requests.iter_mut().for_each(|it| it.inputs.truncate(config.inputs.len()));
    for wanted in &config.batch_inputs {
        let tensor = compute(config, wanted, requests)?;
        for request in &mut *requests {
            request.inputs.extend(wanted.names.iter().map(|_| Some(tensor.clone())));
        }
    }
    Ok(())
}

/// The input a batch input is made of, or a batch output is shaped by: it may not be left out.
pub(super) fn source<'a>(
    config: &ModelConfig,
    index: usize,
    request: &'a Request,
) -> Result<&'a Tensor> {
    request.inputs[index].as_ref().ok_or_else(|| {
        let (name, model) = (&config.inputs[index].name, &config.name);
        let text = format!("input '{name}' of model '{model}' cannot be left out");
        Error::invalid(format!("{text}: its batch_input or batch_output is made of it"))
    })
}

/// One value per request, the batch dimension counted in, as Triton does.
fn counts(shapes: &[Shape], kind: BatchInputKind) -> Result<(Shape, Vec<i64>)> {
    let counts = shapes.iter().map(|it| Ok(element_count(it)? as i64));
    let mut values = counts.collect::<Result<Vec<i64>>>()?;
    let mut end = 0;
    let mut accumulate = |count: &i64| {
        end += count;
        end
    };
    match kind {
        BatchInputKind::AccumulatedElementCount => {
            values = values.iter().map(accumulate).collect();
        }
        BatchInputKind::AccumulatedElementCountWithZero => {
            values = [0].iter().chain(&values).map(&mut accumulate).collect();
        }
        BatchInputKind::MaxElementCountAsShape => {
            // No more than the largest request has sent.
            values = vec![0; values.iter().max().copied().unwrap_or(0) as usize];
        }
        _ => (),
    }
    Ok(([values.len() as i64].into_iter().collect(), values))
}

/// For each row the dimensions after the batch: a batch of 2 × `[3, 1]` and one of `[2, 2]` make
/// `[3, 1], [3, 1], [2, 2]`.
fn item_shapes(shapes: &[Shape], kind: BatchInputKind) -> (Shape, Vec<i64>) {
    let mut values = Vec::new();
    let (mut rows, mut rank) = (0, 0);
    for shape in shapes {
        let Some((of, item)) = shape.split_first() else { continue };
        rows += of;
        rank = item.len() as i64;
        (0..*of).for_each(|_| values.extend_from_slice(item));
    }
    let shape = match kind {
        BatchInputKind::ItemShape => [rows, rank].into_iter().collect(),
        _ => [rows * rank].into_iter().collect(),
    };
    (shape, values)
}

fn too_large(config: &ModelConfig, value: i64) -> Error {
    let model = &config.name;
    Error::invalid(format!("{value} does not fit an INT32 batch input of model '{model}'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::config::{ServerFeatures, read_text};

    /// What the batch input `kind` of type INT32 says of requests with these shapes.
    fn of(kind: &str, shapes: &[&[i64]]) -> Result<Tensor> {
        check_type(kind, "TYPE_INT32", shapes)
    }

    fn check_type(kind: &str, dtype: &str, shapes: &[&[i64]]) -> Result<Tensor> {
        let text = format!(
            "name: 'm' backend: 'native' max_batch_size: 8 input {{ name: 'x' data_type: \
             TYPE_UINT8 dims: [ -1 ] optional: true }} batch_input {{ kind: {kind} target_name: 'n' \
             data_type: {dtype} source_input: 'x' }}"
        );
        let config = read_text(&text, "f").unwrap().finish(&ServerFeatures::default()).unwrap();
        let request = |shape: &&[i64]| {
            let bytes = vec![0u8; element_count(shape).unwrap()];
            let input = Tensor::new(DataType::Uint8, Shape::from(*shape), bytes.into()).unwrap();
            let inputs = vec![Some(input).filter(|_| !shape.is_empty())];
            Request { inputs, ..Request::default() }
        };
        let requests: Vec<Request> = shapes.iter().map(request).collect();
        compute(&config, &config.batch_inputs[0], &requests)
    }

    #[track_caller]
    fn check(kind: &str, shapes: &[&[i64]], expected: (&[i64], &[i32])) {
        let tensor = of(kind, shapes).unwrap();
        let (values, _) = tensor.data().as_chunks::<4>();
        let values: Vec<i32> = values.iter().map(|it| i32::from_le_bytes(*it)).collect();
        assert_eq!((tensor.shape(), &*values), expected, "{kind} of {shapes:?}");
    }

    const SHAPES: &[&[i64]] = &[&[1, 3], &[1, 4], &[1, 5]];

    #[test]
    fn elements_are_counted_for_each_request() {
        check("BATCH_ELEMENT_COUNT", SHAPES, (&[3], &[3, 4, 5]));
        check("BATCH_ELEMENT_COUNT", &[&[2, 3], &[1, 0]], (&[2], &[6, 0]));
    }

    #[test]
    fn counts_accumulate() {
        check("BATCH_ACCUMULATED_ELEMENT_COUNT", SHAPES, (&[3], &[3, 7, 12]));
        let with_zero = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO";
        check(with_zero, SHAPES, (&[4], &[0, 3, 7, 12]));
        check(with_zero, &[&[1, 3]], (&[2], &[0, 3]));
    }

    #[test]
    fn the_largest_count_is_a_shape() {
        check("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", SHAPES, (&[5], &[0; 5]));
        check("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", &[&[2, 0]], (&[0], &[]));
    }

    #[test]
    fn every_row_has_its_shape() {
        let shapes: &[&[i64]] = &[&[2, 3, 1], &[1, 2, 2]];
        check("BATCH_ITEM_SHAPE", shapes, (&[3, 2], &[3, 1, 3, 1, 2, 2]));
        check("BATCH_ITEM_SHAPE_FLATTEN", shapes, (&[6], &[3, 1, 3, 1, 2, 2]));
    }

    #[test]
    fn counts_may_be_floats() {
        let kind = "BATCH_ACCUMULATED_ELEMENT_COUNT";
        let tensor = check_type(kind, "TYPE_FP32", SHAPES).unwrap();
        let expected: Vec<u8> = [3f32, 7., 12.].iter().flat_map(|it| it.to_le_bytes()).collect();
        assert_eq!((tensor.dtype(), tensor.data()), (DataType::Fp32, &expected.into()));
    }

    #[test]
    fn what_cannot_be_told_is_an_error() {
        assert_eq!(
            of("BATCH_ELEMENT_COUNT", &[&[]]).unwrap_err().to_string(),
            "input 'x' of model 'm' cannot be left out: its batch_input or batch_output is made of \
             it"
        );
        let huge = &[1, 0, 1 << 40];
        assert_eq!(
            of("BATCH_ITEM_SHAPE", &[huge]).unwrap_err().to_string(),
            format!("{} does not fit an INT32 batch input of model 'm'", 1_i64 << 40)
        );
    }
}
