//! Sends a step's request to its model as the ensemble does: the batch dimension adapted, batches
//! that are too large split.

use std::{collections::HashMap, future::Future, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::time;
use tonic::{Code, Status};

use super::capture::EdgeTensor;
use crate::{
    client::{Client, Headers, connect, error_text, headers, with},
    print,
};
use troupe_base::{
    request::{BatchFit, Request, batch_fit},
    tap::manifest,
    tensor::{DataType, Shape, Tensor, adapt_batch_dim},
};
use troupe_options::ReplayArguments;
use troupe_proto::inference::{
    ModelConfig, ModelConfigRequest, ModelInferRequest, ModelInferResponse,
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

/// The responses of a step's model.
#[derive(Debug)]
pub(super) struct ModelReply {
    /// Tensors of the ensemble; of a decoupled model any number of times, else once.
    pub(super) responses: Vec<HashMap<String, EdgeTensor>>,
    /// The version that answered; empty if none was asked.
    pub(super) version: String,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum AskFailure {
    /// The model's own error.
    Model(String),
    /// The request did not reach the model.
    Connection {
        /// The server's text; empty where there is none.
        text: String,
        /// The text with the address and the cause.
        explained: String,
    },
}

type NamedTensors = Vec<(String, Tensor)>;

/// The tensors of all responses, by the names of the model, and the version that answered.
struct StepResponses {
    version: String,
    outputs: Vec<NamedTensors>,
}

impl Models {
    /// Those behind the `--url` of the command line.
    pub(super) async fn connect(arguments: &ReplayArguments) -> Result<Models, String> {
        let headers = headers(&arguments.connection.header)?;
        let client = connect(&arguments.connection).await?;
        let (url, timeout) = (arguments.connection.url.clone(), arguments.timeout);
        Ok(Models { client, url, headers, timeout, configs: HashMap::new() })
    }

    /// Asks the model of a step with these inputs, by the names of the model.
    pub(super) async fn infer(
        &mut self,
        step: &manifest::ManifestStep,
        request: &manifest::ManifestRequest,
        inputs: Vec<(String, EdgeTensor)>,
    ) -> Result<ModelReply, AskFailure> {
        let config = self.config(step).await?;
        let dims = |name: &str| config.input.iter().find(|it| it.name == name).map(|it| &*it.dims);
        let fitted = |(name, value): (String, EdgeTensor)| {
            let EdgeTensor { tensor, batch } = value;
            let dims = dims(&name).unwrap_or_default();
            let tensor = adapt_batch_dim(tensor, batch, 0 < config.max_batch_size, dims);
            (name, tensor)
        };
        let inputs: NamedTensors = inputs.into_iter().map(fitted).collect();
        let most = u32::try_from(config.max_batch_size).unwrap_or(0);
        let all = inputs.iter().map(|(_, it)| Some(it.clone())).collect();
        let (fit, batch) = batch_fit(most, &Request { inputs: all, ..Request::default() });
        let StepResponses { version, outputs } = match fit {
            BatchFit::Empty => {
                StepResponses { version: String::new(), outputs: vec![empty(step, &config)?] }
            }
            _ if step.decoupled => self.stream(message(step, request, &inputs)).await?,
            BatchFit::Fits => self.unary(message(step, request, &inputs)).await?,
            BatchFit::Split => self.split(step, request, inputs, most as usize).await?,
        };
        let named = |it: NamedTensors| {
            let tensor = |(output, tensor): (String, Tensor)| {
                let to = step.outputs.iter().find(|it| it.0 == output)?.1.clone();
                Some((to, EdgeTensor { tensor, batch }))
            };
            it.into_iter().filter_map(tensor).collect()
        };
        Ok(ModelReply { responses: outputs.into_iter().map(named).collect(), version })
    }

    async fn config(&mut self, step: &manifest::ManifestStep) -> Result<ModelConfig, AskFailure> {
        let key = (step.model.clone(), step.model_version);
        if let Some(known) = self.configs.get(&key) {
            return Ok(known.clone());
        }
        let question = ModelConfigRequest { name: step.model.clone(), version: version(step) };
        let question = with(question, &self.headers);
        let answer = self.client.model_config(question).await;
        let answer = answer.map_err(|status| connection_failure(&self.url, &status))?.into_inner();
        let config = answer.config.unwrap_or_default();
        self.configs.insert(key, config.clone());
        Ok(config)
    }

    async fn unary(&mut self, message: ModelInferRequest) -> Result<StepResponses, AskFailure> {
        let (url, limit) = (self.url.clone(), self.timeout);
        let message = with(message, &self.headers);
        let answer = within(limit, &url, self.client.model_infer(message)).await?.into_inner();
        let outputs = vec![tensors(&answer, &url)?];
        Ok(StepResponses { version: answer.model_version, outputs })
    }

    async fn stream(&mut self, message: ModelInferRequest) -> Result<StepResponses, AskFailure> {
        let (url, limit) = (self.url.clone(), self.timeout);
        let messages = with(tokio_stream::once(message), &self.headers);
        let all = within(limit, &url, async {
            let mut stream = self.client.model_stream_infer(messages).await?.into_inner();
            let mut all = Vec::new();
            while let Some(message) = stream.message().await? {
                all.push(message);
            }
            Ok(all)
        });
        let (mut version, mut outputs) = (String::new(), Vec::new());
        for message in all.await? {
            if !message.error_message.is_empty() {
                return Err(AskFailure::Model(message.error_message));
            }
            let Some(answer) = message.infer_response else { continue };
            version.clone_from(&answer.model_version);
            outputs.push(tensors(&answer, &url)?);
        }
        Ok(StepResponses { version, outputs })
    }

    /// At most `most` rows at once.
    async fn split(
        &mut self,
        step: &manifest::ManifestStep,
        request: &manifest::ManifestRequest,
        mut inputs: NamedTensors,
        most: usize,
    ) -> Result<StepResponses, AskFailure> {
        let rows = inputs.first().map_or(0, |it| it.1.rows());
        let (mut version, mut whole) = (String::new(), Vec::new());
        for start in (0..rows).step_by(most) {
            let size = most.min(rows - start);
            let part: NamedTensors =
                inputs.iter_mut().map(|it| (it.0.clone(), it.1.split_to_rows(size))).collect();
            let responses = self.unary(message(step, request, &part)).await?;
            version = responses.version;
            whole.extend(responses.outputs);
        }
        let outputs = vec![joined(whole).map_err(AskFailure::Model)?];
        Ok(StepResponses { version, outputs })
    }
}

async fn within<T>(
    limit: Option<Duration>,
    url: &str,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, AskFailure> {
    let answer = match limit {
        None => answer.await,
        Some(limit) => time::timeout(limit, answer).await.map_err(|_| {
            let text = format!("no answer from {url} within {limit:?}");
            AskFailure::Connection { text: text.clone(), explained: text }
        })?,
    };
    answer.map_err(|status| match status.code() {
        Code::InvalidArgument | Code::Internal | Code::Unknown | Code::Cancelled
            if std::error::Error::source(&status).is_none() =>
        {
            AskFailure::Model(status.message().to_owned())
        }
        _ => connection_failure(url, &status),
    })
}

fn connection_failure(url: &str, status: &Status) -> AskFailure {
    let text = status.message().to_owned();
    AskFailure::Connection { text, explained: error_text(url, status) }
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
        parameters: parameters.into_iter().map(|(key, it)| (key.into_owned(), it.into())).collect(),
        inputs: inputs.iter().map(input).collect(),
        outputs: step.outputs.iter().map(output).collect(),
        raw_input_contents: inputs.iter().map(|it| it.1.data().clone()).collect(),
    }
}

fn tensors(answer: &ModelInferResponse, url: &str) -> Result<NamedTensors, AskFailure> {
    let all = print::tensors(answer);
    let all = all.map_err(|why| AskFailure::Connection {
        text: String::new(),
        explained: format!("{url}: {why}"),
    })?;
    Ok(all.into_iter().map(|(name, it)| (name.to_owned(), it)).collect())
}

/// The response to a batch without rows; a dynamic dimension is 0.
fn empty(step: &manifest::ManifestStep, config: &ModelConfig) -> Result<NamedTensors, AskFailure> {
    let of_step = |name: &str| step.outputs.iter().any(|it| it.0 == name);
    let outputs = config.output.iter().filter(|it| of_step(&it.name)).map(|output| {
        let dims = output.dims.iter().map(|it| (*it).max(0));
        let shape: Shape = std::iter::once(0).chain(dims).collect();
        let dtype = DataType::from_proto(output.data_type);
        let dtype = dtype.ok_or_else(|| format!("the unknown type {}", output.data_type))?;
        let tensor = Tensor::new(dtype, shape, Bytes::new()).map_err(|it| it.to_string())?;
        Ok((output.name.clone(), tensor))
    });
    outputs.collect::<Result<NamedTensors, String>>().map_err(AskFailure::Model)
}

/// The rows of all parts, one behind the other.
fn joined(parts: Vec<NamedTensors>) -> Result<NamedTensors, String> {
    let names: Vec<String> = parts.first().into_iter().flatten().map(|it| it.0.clone()).collect();
    let join = |name: String| {
        let of = |part: &NamedTensors| part.iter().find(|it| it.0 == name).map(|it| it.1.clone());
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
