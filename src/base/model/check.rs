//! A request against its model's config, in Triton's words.

use crate::{
    config::{Input, ModelConfig},
    request::Request,
    tensor::{Tensor, shape_text},
};

/// Parameters of a request that an error lists.
const MAX_LISTED_PARAMETERS: usize = 8;

/// Sets the batch size, or says in Triton's words what is wrong.
pub(super) fn check(config: &ModelConfig, request: &mut Request) -> Result<(), String> {
    let required = config.inputs.iter().filter(|it| !it.optional).count();
    let mut batch = None;
    let mut found = 0;
    let mut missing = 0;
    for (input, tensor) in config.inputs.iter().zip(&request.inputs) {
        match tensor {
            Some(tensor) => {
                found += 1;
                check_tensor(config, input, tensor, &mut batch)?;
            }
            None if !input.optional => missing += 1,
            None => (),
        }
    }
    if missing != 0 || request.inputs.len() != config.inputs.len() {
        return Err(missing_inputs(config, request, found, required));
    }
    request.batch = batch.unwrap_or(u32::from(0 < config.max_batch_size));
    if 0 < config.max_batch_size && request.batch == 0 {
        return Err(format!("inference request batch-size must be >= 1 for '{}'", config.name));
    }
    if config.max_batch_size < request.batch {
        return Err(format!(
            "inference request batch-size must be <= {} for '{}', got {}",
            config.max_batch_size, config.name, request.batch
        ));
    }
    Ok(())
}

fn check_tensor(
    config: &ModelConfig,
    input: &Input,
    tensor: &Tensor,
    batch: &mut Option<u32>,
) -> Result<(), String> {
    if tensor.dtype() != input.dtype {
        return Err(format!(
            "inference input '{}' data-type is '{}', but model '{}' expects '{}'",
            input.name,
            tensor.dtype().as_str(),
            config.name,
            input.dtype.as_str()
        ));
    }
    let mut dims = tensor.shape();
    if 0 < config.max_batch_size {
        let Some((&rows, rest)) = dims.split_first() else {
            return Err(format!(
                "input '{}' has no shape but model requires batch dimension for '{}'",
                input.name, config.name
            ));
        };
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let others = *batch.get_or_insert(rows);
        if others != rows {
            return Err(format!(
                "input '{}' batch size does not match other inputs for '{}': got {rows}, others \
                 have {others}",
                input.name, config.name
            ));
        }
        dims = rest;
    }
    if fits(dims, &input.dims) { Ok(()) } else { Err(wrong_shape(config, input, tensor)) }
}

fn fits(got: &[i64], wanted: &[i64]) -> bool {
    got.len() == wanted.len()
        && got.iter().zip(wanted).all(|(got, want)| *want == -1 || got == want)
}

fn wrong_shape(config: &ModelConfig, input: &Input, tensor: &Tensor) -> String {
    let expected = config.full_dims(input);
    let note = if 0 < config.max_batch_size {
        " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension \
         to be prepended to each input shape. If you want to specify the full shape including the \
         batch dim in your input dims config, try setting max_batch_size to zero. See the model \
         configuration docs for more info on max_batch_size."
    } else {
        ""
    };
    let got = tensor.shape();
    // A batch of one row whose first dimension was forgotten.
    let row = if 0 < config.max_batch_size && fits(got, &input.dims) {
        let row: Vec<i64> = [1].iter().chain(got).copied().collect();
        format!(" One row of {} is a batch of shape {}.", shape_text(got), shape_text(&row))
    } else {
        String::new()
    };
    format!(
        "unexpected shape for input '{}' for model '{}'. Expected {}, got {}.{note}{row}",
        input.name,
        config.name,
        shape_text(&expected),
        shape_text(got)
    )
}

fn missing_inputs(
    config: &ModelConfig,
    request: &Request,
    found: usize,
    required: usize,
) -> String {
    let names = |wanted: &dyn Fn(&Input, bool) -> bool| -> String {
        let has = |index: usize| request.inputs.get(index).is_some_and(Option::is_some);
        let picked = config.inputs.iter().enumerate().filter(|(i, it)| wanted(it, has(*i)));
        picked.map(|(_, it)| format!("'{}'", it.name)).collect::<Vec<_>>().join(",")
    };
    let total = config.inputs.len();
    let expected = if required == total {
        format!("expected {total} inputs")
    } else {
        format!("expected number of inputs between {required} and {total}")
    };
    let parameters = request.context.parameters.iter().take(MAX_LISTED_PARAMETERS);
    let parameters: Vec<String> = parameters.map(|(key, _)| format!("'{key}'")).collect();
    let not_inputs = if parameters.is_empty() {
        String::new()
    } else {
        format!(" Got parameters that are no inputs: {}.", parameters.join(","))
    };
    format!(
        "{expected} but got {found} inputs for model '{}'. Got input(s) [{}], but missing required \
         input(s) [{}]. Please provide all required input(s).{not_inputs}",
        config.name,
        names(&|_, has| has),
        names(&|it, has| !has && !it.optional)
    )
}
