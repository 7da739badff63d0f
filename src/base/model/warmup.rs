//! Warm-up: requests made from a config's `model_warmup`, run before the model is called ready.

mod data;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::{check, reshape};
use crate::{
    config::{ModelConfig, Problem, Warmup, WarmupData, WarmupInput},
    error::{Error, Result},
    request::{CancelOnDrop, Context, Pending, Reply, Request, zero_bytes},
    tensor::{DataType, Shape, Tensor, element_count, shape_text},
};

/// Bytes that one input, and all requests of a sample together, may take.
const MAX_SAMPLE_BYTES: usize = 2 << 30;
/// A request costs at least so much memory, however small its tensors.
const REQUEST_COST_BYTES: usize = 1 << 10;
/// A run that takes longer is logged: it may be one that never ends.
const SLOW_SAMPLE_TIME: Duration = Duration::from_secs(10);

/// The contents of a file of the `warmup` folder: its first so many bytes, or all of them; at most
/// `MAX_SAMPLE_BYTES`. Fails with a text for users.
pub type ReadFile<'a> = &'a dyn Fn(&str, ReadLimit) -> Result<Bytes, String>;

/// How much of a file is needed.
#[derive(Clone, Copy, Debug)]
pub enum ReadLimit {
    /// Exactly so many bytes, from its beginning.
    Exactly(usize),
    /// All there are, up to so many.
    AtMost(usize),
}

/// Requests that form one execution, checked and as the model wants them.
#[derive(Clone)]
pub struct WarmupSample {
    name: String,
    count: u32,
    requests: Vec<Request>,
}

/// Every sample that is not skipped, or every problem. May block: `read` does.
///
/// A model gets `batch_size` requests of one row that share their bytes; an ensemble, which does
/// not batch by itself, gets one request of so many rows.
pub fn samples(
    config: &ModelConfig,
    read: ReadFile<'_>,
) -> Result<Vec<WarmupSample>, Vec<Problem>> {
    let mut samples = Vec::new();
    let mut problems = Vec::new();
    for (index, warmup) in config.warmup.iter().enumerate() {
        let name = &warmup.name;
        if warmup.batch_size == 0 {
            let model = &config.name;
            tracing::warn!("warmup sample '{name}' of '{model}' is skipped: its batch_size is 0");
            continue;
        }
        let at = format!("model_warmup[{index}]");
        let mut problem = |path: &str, text: String| {
            problems
                .push(config.source_map.problem(path, format!("warmup sample '{name}': {text}")));
        };
        let mut inputs = vec![None; config.inputs.len()];
        let mut is_complete = true;
        for input in &warmup.inputs {
            match tensor(config, input, read) {
                Ok((place, tensor)) => inputs[place] = Some(tensor),
                Err(text) => {
                    problem(&format!("{at}.inputs[\"{}\"]", input.name), text);
                    is_complete = false;
                }
            }
        }
        if !is_complete {
            continue;
        }
        made_by_sequences(config, &mut inputs);
        match requests(config, warmup, inputs) {
            Ok(requests) => {
                samples.push(WarmupSample { name: name.clone(), count: warmup.count, requests });
            }
            Err(text) => problem(&at, text),
        }
    }
    if problems.is_empty() { Ok(samples) } else { Err(problems) }
}

/// One row of an input, and its position in the config.
fn tensor(
    config: &ModelConfig,
    input: &WarmupInput,
    read: ReadFile<'_>,
) -> Result<(usize, Tensor), String> {
    let WarmupInput { name, dtype, dims, data } = input;
    let place = config.input_index(name).ok_or_else(|| {
        format!("unexpected inference input '{name}' for model '{}'", config.name)
    })?;
    let elements = element_count(dims).map_err(|error| format!("input '{name}': {error}"))?;
    let size = elements.checked_mul(dtype.size().unwrap_or(4)).filter(|it| *it <= MAX_SAMPLE_BYTES);
    let size = size.ok_or_else(|| {
        let shape = shape_text(dims);
        format!("shape {shape} of input '{name}' takes more than {MAX_SAMPLE_BYTES} bytes")
    })?;
    let bytes = match (data, dtype) {
        (WarmupData::File(file), DataType::Bytes) => {
            read(file, ReadLimit::AtMost(MAX_SAMPLE_BYTES))?
        }
        (WarmupData::File(file), _) => read(file, ReadLimit::Exactly(size))?,
        // A string of no characters is four zeros; as in Triton, random ones are not made up.
        (WarmupData::Zero, _) | (WarmupData::Random, DataType::Bytes) => vec![0; size].into(),
        (WarmupData::Random, dtype) => data::random(*dtype, elements).into(),
    };
    let batch = (0 < config.max_batch_size).then_some(1);
    let shape: Shape = batch.into_iter().chain(dims.iter().copied()).collect();
    let tensor = Tensor::new(*dtype, shape, bytes);
    let tensor = tensor.map_err(|error| match data {
        WarmupData::File(file) => format!("input '{name}' from '{file}': {error}"),
        _ => format!("input '{name}': {error}"),
    })?;
    Ok((place, tensor))
}

/// Zeros for control inputs and states that the sample leaves out.
fn made_by_sequences(config: &ModelConfig, inputs: &mut [Option<Tensor>]) {
    if config.sequences().is_none() {
        return;
    }
    let pairs = config.inputs.iter().zip(inputs).skip(config.proto.input.len());
    for (input, tensor) in pairs.filter(|(_, tensor)| tensor.is_none()) {
        let batch = (0 < config.max_batch_size).then_some(1);
        let dims = input.dims.iter().map(|it| (*it).max(1));
        let shape: Shape = batch.into_iter().chain(dims).collect();
        let zeros = zero_bytes(input.dtype, &shape);
        *tensor = zeros.and_then(|it| Tensor::new(input.dtype, shape, it)).ok();
    }
}

/// What forms one execution, as `Model::infer` would hand it on.
fn requests(
    config: &ModelConfig,
    warmup: &Warmup,
    inputs: Vec<Option<Tensor>>,
) -> Result<Vec<Request>, String> {
    let Warmup { batch_size, .. } = *warmup;
    if config.max_batch_size.max(1) < batch_size {
        return Err(format!(
            "batch size {batch_size} for '{}', max allowed is {}",
            config.name, config.max_batch_size
        ));
    }
    let bytes: usize = inputs.iter().flatten().map(|it| it.data().len()).sum();
    let total = bytes.max(REQUEST_COST_BYTES).checked_mul(batch_size as usize);
    if total.is_none_or(|it| MAX_SAMPLE_BYTES < it) {
        return Err(format!("batch size {batch_size} takes more than {MAX_SAMPLE_BYTES} bytes"));
    }
    let (count, rows) = if config.is_ensemble() { (1, batch_size) } else { (batch_size, 1) };
    let repeated = |it: Tensor| data::repeated(it, rows as usize);
    let inputs = inputs.into_iter().map(|it| it.map(repeated).transpose());
    let inputs = inputs.collect::<Result<Vec<_>>>().map_err(|it| it.to_string())?;
    let mut request = Request { inputs, ..Request::default() };
    check::check(config, &mut request)?;
    reshape::inputs(config, &mut request.inputs).map_err(|it| it.to_string())?;
    Ok(vec![request; count as usize])
}

/// Runs every sample as often as it says, one execution after another; `run` starts one.
///
/// `target` names who is warmed, for the log. When this is dropped, what still runs is cancelled.
pub async fn run(samples: &[WarmupSample], target: &str, run: impl Fn(Vec<Pending>)) -> Result<()> {
    for sample in samples {
        for iteration in 1..=sample.count {
            let name = &sample.name;
            tracing::debug!("{target} is running warmup sample '{name}' for iteration {iteration}");
            sample.run(target, &run).await?;
        }
    }
    Ok(())
}

impl WarmupSample {
    async fn run(&self, target: &str, run: impl Fn(Vec<Pending>)) -> Result<()> {
        let context = Arc::new(Context { is_warmup: true, ..Context::default() });
        let _cancel = CancelOnDrop::new(context.clone());
        let mut group = Vec::with_capacity(self.requests.len());
        let mut answers = Vec::with_capacity(self.requests.len());
        for request in &self.requests {
            let (reply, answer) = Reply::drained();
            let request = Request { context: context.clone(), ..request.clone() };
            group.push(Pending { request, reply });
            answers.push(answer);
        }
        run(group);
        let mut all = std::pin::pin!(join_all(answers));
        let answers = match timeout(SLOW_SAMPLE_TIME, &mut all).await {
            Ok(answers) => answers,
            Err(_) => {
                let (name, seconds) = (&self.name, SLOW_SAMPLE_TIME.as_secs());
                tracing::info!("{target} runs warmup sample '{name}' for more than {seconds} s");
                all.await
            }
        };
        let mut causes: Vec<String> = Vec::new();
        for answer in answers {
            let stopped = |_| Err(Error::internal("no answer"));
            if let Err(error) = answer.unwrap_or_else(stopped) {
                let cause = error.to_string();
                // A batch fails as one, and once is enough to say it.
                if !causes.contains(&cause) {
                    causes.push(cause);
                }
            }
        }
        if causes.is_empty() {
            return Ok(());
        }
        let (name, causes) = (&self.name, causes.join("; "));
        Err(Error::invalid(format!("failed to run warmup sample '{name}': {causes}")))
    }
}

#[cfg(test)]
mod tests;
