//! Asks a step's model as its ensemble does: dimensions fitted, batches that are too large in parts.

use std::{collections::HashMap, future::Future, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::time;
use tonic::{Code, Status};

use super::capture::Value;
use crate::{Client, Headers, connect, headers, print, told, with};
use troupe_base::{
    request::{Parameter, Request},
    tap::manifest,
    tensor::{DataType, Shape, Tensor},
};
use troupe_engine::ensemble::{BatchFit, adapt_batch_dim, batch_fit};
use troupe_options::Replay;
use troupe_proto::inference::{
    InferParameter, ModelConfig, ModelConfigRequest, ModelInferRequest, ModelInferResponse,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

/// The server whose models are asked.
pub(super) struct Models {
    client: Client,
    url: String,
    headers: Headers,
    /// How long a step may take.
    timeout: Option<Duration>,
    configs: HashMap<(String, i64), ModelConfig>,
}

/// What a step's model said.
#[derive(Debug)]
pub(super) struct Answer {
    /// Tensors of the ensemble; of a decoupled model any number of times, else once.
    pub(super) responses: Vec<HashMap<String, Value>>,
    /// The version that answered; empty if none was asked.
    pub(super) version: String,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The model said so.
    Answered(String),
    /// The model could not be asked; the server's text, and all that is to be said.
    Unasked(String, String),
}

type Named = Vec<(String, Tensor)>;

impl Models {
    /// Those behind the `--url` of the command line.
    pub(super) async fn connect(arguments: &Replay) -> Result<Models, String> {
        let headers = headers(&arguments.header)?;
        let client = connect(&arguments.url).await?;
        let (url, timeout) = (arguments.url.clone(), arguments.timeout);
        Ok(Models { client, url, headers, timeout, configs: HashMap::new() })
    }

    /// Asks the model of a step with these inputs, by the names of the model.
    pub(super) async fn ask(
        &mut self,
        step: &manifest::ManifestStep,
        request: &manifest::ManifestRequest,
        inputs: Vec<(String, Value)>,
    ) -> Result<Answer, Failure> {
        let config = self.config(step).await?;
        let dims = |name: &str| config.input.iter().find(|it| it.name == name).map(|it| &*it.dims);
        let fitted = |(name, value): (String, Value)| {
            let Value { tensor, batch } = value;
            let dims = dims(&name).unwrap_or_default();
            let tensor = adapt_batch_dim(tensor, batch, 0 < config.max_batch_size, dims);
            (name, tensor)
        };
        let inputs: Named = inputs.into_iter().map(fitted).collect();
        let most = u32::try_from(config.max_batch_size).unwrap_or(0);
        let all = inputs.iter().map(|(_, it)| Some(it.clone())).collect();
        let (fit, batch) = batch_fit(most, &Request { inputs: all, ..Request::default() });
        let (version, outputs) = match fit {
            BatchFit::Empty => (String::new(), vec![empty(step, &config)?]),
            _ if step.decoupled => self.stream(message(step, request, &inputs)).await?,
            BatchFit::Fits => self.unary(message(step, request, &inputs)).await?,
            BatchFit::Split => self.parts(step, request, (inputs, most as usize)).await?,
        };
        let named = |it: Named| {
            let tensor = |(output, tensor): (String, Tensor)| {
                let to = step.outputs.iter().find(|it| it.0 == output)?.1.clone();
                Some((to, Value { tensor, batch }))
            };
            it.into_iter().filter_map(tensor).collect()
        };
        Ok(Answer { responses: outputs.into_iter().map(named).collect(), version })
    }

    async fn config(&mut self, step: &manifest::ManifestStep) -> Result<ModelConfig, Failure> {
        let key = (step.model.clone(), step.model_version);
        if let Some(known) = self.configs.get(&key) {
            return Ok(known.clone());
        }
        let asked = ModelConfigRequest { name: step.model.clone(), version: version(step) };
        let asked = with(asked, &self.headers);
        let answer = self.client.model_config(asked).await;
        let answer = answer.map_err(|it| unasked(&self.url, &it))?.into_inner();
        let config = answer.config.unwrap_or_default();
        self.configs.insert(key, config.clone());
        Ok(config)
    }

    async fn unary(&mut self, message: ModelInferRequest) -> Result<(String, Vec<Named>), Failure> {
        let (url, limit) = (self.url.clone(), self.timeout);
        let asked = with(message, &self.headers);
        let answer = within(limit, &url, self.client.model_infer(asked)).await?.into_inner();
        Ok((answer.model_version.clone(), vec![tensors(&answer, &url)?]))
    }

    async fn stream(
        &mut self,
        message: ModelInferRequest,
    ) -> Result<(String, Vec<Named>), Failure> {
        let (url, limit) = (self.url.clone(), self.timeout);
        let asked = with(tokio_stream::once(message), &self.headers);
        let all = within(limit, &url, async {
            let mut stream = self.client.model_stream_infer(asked).await?.into_inner();
            let mut all = Vec::new();
            while let Some(message) = stream.message().await? {
                all.push(message);
            }
            Ok(all)
        });
        let (mut version, mut outputs) = (String::new(), Vec::new());
        for message in all.await? {
            if !message.error_message.is_empty() {
                return Err(Failure::Answered(message.error_message));
            }
            let Some(answer) = message.infer_response else { continue };
            version.clone_from(&answer.model_version);
            outputs.push(tensors(&answer, &url)?);
        }
        Ok((version, outputs))
    }

    /// As many rows at once as the model takes.
    async fn parts(
        &mut self,
        step: &manifest::ManifestStep,
        request: &manifest::ManifestRequest,
        (mut inputs, most): (Named, usize),
    ) -> Result<(String, Vec<Named>), Failure> {
        let rows = inputs.first().map_or(0, |it| it.1.rows());
        let (mut version, mut whole) = (String::new(), Vec::new());
        for start in (0..rows).step_by(most) {
            let size = most.min(rows - start);
            let part: Named =
                inputs.iter_mut().map(|it| (it.0.clone(), it.1.split_to_rows(size))).collect();
            let (by, outputs) = self.unary(message(step, request, &part)).await?;
            version = by;
            whole.extend(outputs);
        }
        Ok((version, vec![joined(whole).map_err(Failure::Answered)?]))
    }
}

async fn within<T>(
    limit: Option<Duration>,
    url: &str,
    asked: impl Future<Output = Result<T, Status>>,
) -> Result<T, Failure> {
    let answer = match limit {
        None => asked.await,
        Some(limit) => time::timeout(limit, asked).await.map_err(|_| {
            let text = format!("no answer from {url} within {limit:?}");
            Failure::Unasked(text.clone(), text)
        })?,
    };
    answer.map_err(|status| match status.code() {
        Code::InvalidArgument | Code::Internal | Code::Unknown | Code::Cancelled
            if std::error::Error::source(&status).is_none() =>
        {
            Failure::Answered(status.message().to_owned())
        }
        _ => unasked(url, &status),
    })
}

fn unasked(url: &str, status: &Status) -> Failure {
    Failure::Unasked(status.message().to_owned(), told(url, status))
}

fn version(step: &manifest::ManifestStep) -> String {
    if step.model_version < 0 { String::new() } else { step.model_version.to_string() }
}

fn message(
    step: &manifest::ManifestStep,
    request: &manifest::ManifestRequest,
    inputs: &[(String, Tensor)],
) -> ModelInferRequest {
    let input = |(name, tensor): &(String, Tensor)| InferInputTensor {
        name: name.clone(),
        datatype: tensor.dtype().as_str().to_owned(),
        shape: tensor.shape().to_vec(),
        ..InferInputTensor::default()
    };
    let output = |(name, _): &(String, String)| InferRequestedOutputTensor {
        name: name.clone(),
        ..InferRequestedOutputTensor::default()
    };
    let parameters = request.parameters();
    ModelInferRequest {
        model_name: step.model.clone(),
        model_version: version(step),
        id: request.id.clone(),
        parameters: parameters.into_iter().map(|(key, it)| (key.into_owned(), of(it))).collect(),
        inputs: inputs.iter().map(input).collect(),
        outputs: step.outputs.iter().map(output).collect(),
        raw_input_contents: inputs.iter().map(|it| it.1.data().clone()).collect(),
    }
}

fn of(parameter: Parameter) -> InferParameter {
    let choice = match parameter {
        Parameter::Bool(it) => ParameterChoice::BoolParam(it),
        Parameter::Int(it) => ParameterChoice::Int64Param(it),
        Parameter::Uint(it) => ParameterChoice::Uint64Param(it),
        Parameter::Double(it) => ParameterChoice::DoubleParam(it),
        Parameter::String(it) => ParameterChoice::StringParam(it),
    };
    InferParameter { parameter_choice: Some(choice) }
}

fn tensors(answer: &ModelInferResponse, url: &str) -> Result<Named, Failure> {
    let all = print::tensors(answer);
    let all = all.map_err(|it| Failure::Unasked(String::new(), format!("{url}: {it}")))?;
    Ok(all.into_iter().map(|(name, it)| (name.to_owned(), it)).collect())
}

/// What stands for the answer to no rows; where a dimension varies it is 0.
fn empty(step: &manifest::ManifestStep, config: &ModelConfig) -> Result<Named, Failure> {
    let of_step = |name: &str| step.outputs.iter().any(|it| it.0 == name);
    let outputs = config.output.iter().filter(|it| of_step(&it.name)).map(|output| {
        let dims = output.dims.iter().map(|it| (*it).max(0));
        let shape: Shape = std::iter::once(0).chain(dims).collect();
        let dtype = DataType::from_proto(output.data_type);
        let dtype = dtype.ok_or_else(|| format!("the unknown type {}", output.data_type))?;
        let tensor = Tensor::new(dtype, shape, Bytes::new()).map_err(|it| it.to_string())?;
        Ok((output.name.clone(), tensor))
    });
    outputs.collect::<Result<Named, String>>().map_err(Failure::Answered)
}

/// The rows of all parts, one behind the other.
fn joined(parts: Vec<Named>) -> Result<Named, String> {
    let names: Vec<String> = parts.first().into_iter().flatten().map(|it| it.0.clone()).collect();
    let join = |name: String| {
        let of = |part: &Named| part.iter().find(|it| it.0 == name).map(|it| it.1.clone());
        let all: Option<Vec<Tensor>> = parts.iter().map(of).collect();
        let all = all.filter(|it| !it.is_empty()).ok_or(format!("a part has no `{name}`"))?;
        let (mut shape, mut data) = (Shape::from_slice(all[0].shape()), BytesMut::new());
        all.iter().for_each(|it| data.extend_from_slice(it.data()));
        if let Some(rows) = shape.first_mut() {
            *rows = all.iter().map(|it| it.rows() as i64).sum();
        }
        let whole = Tensor::new(all[0].dtype(), shape, data.freeze());
        Ok((name, whole.map_err(|it| it.to_string())?))
    };
    names.into_iter().map(join).collect()
}
