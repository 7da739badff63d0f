//! Turns what the command line says of inputs into tensors.

use std::fs;

use bytes::Bytes;

use super::{
    literal::{self, push_string},
    shape::ShapeHints,
};
use troupe_base::{
    numpy::npy,
    tensor::{DataType, Shape, Tensor},
};
use troupe_options::RequestArguments;
use troupe_proto::inference::{ModelConfig, ModelInput};

/// Every `--input`, by name, in the order of the command line.
pub(super) fn inputs(
    arguments: &RequestArguments,
    config: &ModelConfig,
) -> Result<Vec<(String, Tensor)>, String> {
    let mut shapes = Vec::new();
    for text in &arguments.shape {
        let (input, dims) = named(text, config)?;
        let wrong = |_| format!("--shape {text}: expected numbers with commas between them");
        let dims = dims.split(',').map(|it| it.trim().parse().map_err(wrong));
        shapes.push((&*input.name, dims.collect::<Result<Vec<i64>, _>>()?));
    }
    let mut inputs = Vec::new();
    for text in &arguments.input {
        let (input, value) = named(text, config)?;
        let given = shapes.iter().find(|it| it.0 == input.name).map(|it| &*it.1);
        let tensor = tensor(input, 0 < config.max_batch_size, value, given);
        let tensor = tensor.map_err(|why| format!("input `{}`: {why}", input.name))?;
        inputs.push((input.name.clone(), tensor));
    }
    let has_data = |name: &str| inputs.iter().any(|it| it.0 == name);
    if let Some((name, _)) = shapes.iter().find(|it| !has_data(it.0)) {
        return Err(format!("--shape {name}: there is no --input for it"));
    }
    Ok(inputs)
}

/// The input that `NAME=VALUE` is about; the name may be missing if there is only one.
pub(super) fn named<'a, 'b>(
    text: &'b str,
    config: &'a ModelConfig,
) -> Result<(&'a ModelInput, &'b str), String> {
    let value = |name: &str| text.strip_prefix(name)?.strip_prefix('=');
    let found = config.input.iter().filter_map(|it| Some((it, value(&it.name)?)));
    // One name may be the beginning of another.
    if let Some(found) = found.max_by_key(|it| it.0.name.len()) {
        return Ok(found);
    }
    let is_name = |it: &str| {
        let is_part = |it: char| it.is_alphanumeric() || "_-.:/".contains(it);
        !it.is_empty() && it.chars().all(is_part)
    };
    let looks_named = text.split_once('=').is_some_and(|(name, _)| is_name(name));
    match &config.input[..] {
        [only] if !looks_named => Ok((only, text)),
        [] => Err(format!("`{}` has no inputs: its config names none", config.name)),
        all => {
            let names: Vec<_> = all.iter().map(|it| format!("`{}`", it.name)).collect();
            let (model, names) = (&config.name, names.join(", "));
            Err(format!("`{text}` begins with no input's name: those of `{model}` are {names}"))
        }
    }
}

/// The tensor of one `--input`: JSON, text or a file; `given` are the dimensions of `--shape`.
pub(super) fn tensor(
    input: &ModelInput,
    is_batched: bool,
    value: &str,
    given: Option<&[i64]>,
) -> Result<Tensor, String> {
    let dtype = DataType::from_proto(input.data_type)
        .ok_or_else(|| format!("the model gives it the unknown type {}", input.data_type))?;
    let InputData { own, count, bytes } = match value.strip_prefix('@') {
        Some(path) => read(dtype, path).map_err(|why| format!("{path}: {why}"))?,
        None => {
            let literal = literal::read(dtype, value)?;
            InputData { own: Some(literal.shape), count: literal.count, bytes: literal.data.into() }
        }
    };
    let own = own.as_deref();
    let shape = ShapeHints { dims: &input.dims, is_batched, given, own, count }.full()?;
    Tensor::new(dtype, Shape::from_vec(shape), bytes).map_err(|it| it.to_string())
}

/// What an input gets.
struct InputData {
    /// The data's own shape, if it has one.
    own: Option<Shape>,
    count: usize,
    bytes: Bytes,
}

fn read(dtype: DataType, path: &str) -> Result<InputData, String> {
    let file = Bytes::from(fs::read(path).map_err(|it| it.to_string())?);
    if path.ends_with(".npy") {
        return array(dtype, &file);
    }
    let Some(size) = dtype.size() else {
        let mut bytes = Vec::with_capacity(4 + file.len());
        push_string(&file, &mut bytes)?;
        return Ok(InputData { own: None, count: 1, bytes: bytes.into() });
    };
    if file.len() % size != 0 {
        let (length, dtype) = (file.len(), dtype.as_str());
        return Err(format!("{length} bytes are no whole number of elements of {dtype}"));
    }
    Ok(InputData { own: None, count: file.len() / size, bytes: file })
}

fn array(dtype: DataType, file: &Bytes) -> Result<InputData, String> {
    let array = npy::read(file)?;
    if array.dtype != dtype {
        let (found, expected) = (array.dtype.as_str(), dtype.as_str());
        return Err(format!("it holds {found}, expected {expected}"));
    }
    let count = array.data.len() / dtype.size().unwrap_or(1);
    Ok(InputData { own: Some(array.shape), count, bytes: array.data })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(names: &[&str]) -> ModelConfig {
        let input = |name: &&str| ModelInput { name: (*name).to_owned(), ..Default::default() };
        let input = names.iter().map(input).collect();
        ModelConfig { name: "m".to_owned(), input, ..Default::default() }
    }

    #[test]
    fn a_value_belongs_to_an_input() {
        for (text, names, expected) in [
            ("x=1", &["x", "y"][..], ("x", "1")),
            ("x=", &["x"], ("x", "")),
            ("x=a=b", &["x", "x=a"], ("x=a", "b")),
            ("@some=file", &["x"], ("x", "@some=file")),
            ("[1, 2]", &["x"], ("x", "[1, 2]")),
            ("what does a=b mean", &["x"], ("x", "what does a=b mean")),
        ] {
            let config = config(names);
            let (input, value) = named(text, &config).unwrap();
            assert_eq!((&*input.name, value), expected);
        }
        for (text, names, expected) in [
            ("z=1", &["x"][..], "`z=1` begins with no input's name: those of `m` are `x`"),
            ("1", &["x", "y"], "`1` begins with no input's name: those of `m` are `x`, `y`"),
        ] {
            assert_eq!(named(text, &config(names)).unwrap_err(), expected);
        }
    }
}
