//! The request that is sent over and over: built once, its tensors given or made up.

use bytes::Bytes;
use prost::Message;

use super::super::{input, literal::push_string};
use troupe_base::tensor::{DataType, Shape, Tensor, element_count};
use troupe_options::BenchArguments;
use troupe_proto::inference::{
    InferParameter, ModelConfig, ModelInferRequest, ModelInput, infer_parameter::ParameterChoice,
    model_infer_request::InferInputTensor,
};

/// A request larger than this is no message of gRPC.
const MAX_REQUEST_BYTES: usize = i32::MAX as usize;

/// The request as it is on the wire.
pub(super) fn build(arguments: &BenchArguments, config: &ModelConfig) -> Result<Bytes, String> {
    let batch = batch(arguments, config)?;
    let shapes = shapes(arguments, config)?;
    let mut given = Vec::new();
    for text in &arguments.input {
        let (input, value) = input::named(text, config)?;
        let shape = shapes.iter().find(|it| it.0 == input.name).map(|it| &*it.1);
        let tensor = input::tensor(input, batch.is_some(), value, shape);
        let tensor = tensor.and_then(|it| repeated(it, batch));
        given.push((&input.name, tensor.map_err(|why| format!("input `{}`: {why}", input.name))?));
    }
    let mut request = ModelInferRequest {
        model_name: arguments.model.clone(),
        model_version: arguments.model_version.clone(),
        ..ModelInferRequest::default()
    };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for input in &config.input {
        let shape = shapes.iter().find(|it| it.0 == input.name).map(|it| &*it.1);
        let tensor = match given.iter().position(|it| *it.0 == input.name) {
            Some(index) => given.swap_remove(index).1,
            None if input.optional && shape.is_none() => continue,
            None => made_up(arguments, input, shape, batch, &mut random)
                .map_err(|why| format!("input `{}`: {why}", input.name))?,
        };
        request.inputs.push(InferInputTensor {
            name: input.name.clone(),
            datatype: tensor.dtype().as_str().to_owned(),
            shape: tensor.shape().to_vec(),
            ..InferInputTensor::default()
        });
        request.raw_input_contents.push(tensor.data().clone());
    }
    if let Some((name, _)) = given.first() {
        return Err(format!("--input {name}: it is given more than once"));
    }
    if is_decoupled(config) {
        // Without it nothing says when a request without responses has ended.
        let yes = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
        request.parameters.insert("triton_enable_empty_final_response".to_owned(), yes);
    }
    let size = request.encoded_len();
    if MAX_REQUEST_BYTES < size {
        return Err(format!("a request of {size} bytes, expected at most {MAX_REQUEST_BYTES}"));
    }
    Ok(request.encode_to_vec().into())
}

/// Does it answer a request as often as it likes?
pub(super) fn is_decoupled(config: &ModelConfig) -> bool {
    config.model_transaction_policy.is_some_and(|it| it.decoupled)
}

/// Rows of the request; `None` if the model takes no batches.
fn batch(arguments: &BenchArguments, config: &ModelConfig) -> Result<Option<u32>, String> {
    let (rows, most) = (arguments.batch_size, config.max_batch_size.max(0).unsigned_abs());
    let name = &config.name;
    match most {
        0 if 1 < rows => {
            let remedy = match &*config.backend {
                "python" => "; a plain function does under `@model(max_batch_size=…)`",
                _ => "",
            };
            Err(format!(
                "--batch-size {rows}: model `{name}` takes no batches (max_batch_size 0){remedy}"
            ))
        }
        0 => Ok(None),
        most if most < rows => Err(format!(
            "--batch-size {rows}: model `{name}` takes at most {most} rows (max_batch_size)"
        )),
        _ => Ok(Some(rows)),
    }
}

/// What `--shape` says, by the input's name.
fn shapes<'a>(
    arguments: &BenchArguments,
    config: &'a ModelConfig,
) -> Result<Vec<(&'a str, Vec<i64>)>, String> {
    let one = |text: &String| {
        let dims = |name: &str| text.strip_prefix(name)?.strip_prefix([':', '=']);
        let found = config.input.iter().filter_map(|it| Some((&*it.name, dims(&it.name)?)));
        let (name, dims) = found.max_by_key(|it| it.0.len()).ok_or_else(|| {
            let names: Vec<_> = config.input.iter().map(|it| format!("`{}`", it.name)).collect();
            let (model, names) = (&config.name, names.join(", "));
            format!("--shape {text}: expected `NAME:1,2`, the inputs of `{model}` are {names}")
        })?;
        let wrong = |_| format!("--shape {text}: expected numbers with commas between them");
        let dims = dims.split(',').map(|it| it.trim().parse().map_err(wrong));
        Ok((name, dims.collect::<Result<Vec<i64>, _>>()?))
    };
    arguments.shape.iter().map(one).collect()
}

/// A given tensor with as many rows as are asked for.
fn repeated(tensor: Tensor, batch: Option<u32>) -> Result<Tensor, String> {
    let Some(rows) = batch.map(|it| it as usize) else { return Ok(tensor) };
    match tensor.shape().first() {
        Some(1) if 1 < rows => {
            let shape = [rows as i64].into_iter().chain(tensor.shape()[1..].iter().copied());
            let size = tensor.data().len().checked_mul(rows).filter(|it| *it <= MAX_REQUEST_BYTES);
            size.ok_or_else(|| format!("{rows} rows of it are too large"))?;
            let data = tensor.data().repeat(rows).into();
            Tensor::new(tensor.dtype(), shape.collect(), data).map_err(|it| it.to_string())
        }
        Some(got) if *got != rows as i64 && rows != 1 => {
            Err(format!("its data has {got} rows, expected 1 or those of --batch-size, {rows}"))
        }
        _ => Ok(tensor),
    }
}

fn made_up(
    arguments: &BenchArguments,
    input: &ModelInput,
    given: Option<&[i64]>,
    batch: Option<u32>,
    random: &mut Random,
) -> Result<Tensor, String> {
    let dtype = DataType::from_proto(input.data_type)
        .ok_or_else(|| format!("the model gives it the unknown type {}", input.data_type))?;
    let dims = given.unwrap_or(&input.dims);
    if dims.iter().any(|it| *it < 0) {
        let open: Vec<_> = dims.iter().map(i64::to_string).collect();
        let (name, dims) = (&input.name, open.join(","));
        return Err(format!(
            "its dimensions [{dims}] are open: give --shape {name}:… or data by --input"
        ));
    }
    let shape: Shape = batch.map(i64::from).into_iter().chain(dims.iter().copied()).collect();
    let count = element_count(&shape).map_err(|it| it.to_string())?;
    let length = if arguments.zero_input { 0 } else { arguments.string_length as usize };
    let size = count.checked_mul(dtype.size().unwrap_or(4 + length));
    if size.is_none_or(|it| MAX_REQUEST_BYTES < it) {
        return Err(format!("{count} elements are too many for one request"));
    }
    let mut data = Vec::with_capacity(size.unwrap_or(0));
    for _ in 0..count {
        match dtype.size() {
            Some(size) if arguments.zero_input => data.resize(data.len() + size, 0),
            _ => element(dtype, length, random, &mut data)?,
        }
    }
    Tensor::new(dtype, shape, data.into()).map_err(|it| it.to_string())
}

/// Something harmless: a fraction, a byte, a 0 or 1 for what may be an index, a text of letters.
fn element(
    dtype: DataType,
    length: usize,
    random: &mut Random,
    data: &mut Vec<u8>,
) -> Result<(), String> {
    let bits = random.next();
    let fraction = (bits >> 40) as f32 / (1u64 << 24) as f32;
    let bit = bits & 1;
    match dtype {
        DataType::Bool | DataType::Int8 => data.push(bit as u8),
        DataType::Uint8 => data.push(bits as u8),
        DataType::Uint16 | DataType::Int16 => data.extend((bit as u16).to_le_bytes()),
        DataType::Uint32 | DataType::Int32 => data.extend((bit as u32).to_le_bytes()),
        DataType::Uint64 | DataType::Int64 => data.extend(bit.to_le_bytes()),
        DataType::Fp16 => data.extend(half::f16::from_f32(fraction).to_le_bytes()),
        DataType::Bf16 => data.extend(half::bf16::from_f32(fraction).to_le_bytes()),
        DataType::Fp32 => data.extend(fraction.to_le_bytes()),
        DataType::Fp64 => data.extend(f64::from(fraction).to_le_bytes()),
        DataType::Bytes => {
            let text: Vec<u8> = (0..length).map(|_| b'a' + (random.next() % 26) as u8).collect();
            push_string(&text, data)?;
        }
    }
    Ok(())
}

/// The same numbers in every run: two runs are to be compared.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The low bits of the state alone follow a pattern.
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(32)
    }
}
