//! Turns `ModelInferRequest` into a request and a response into `ModelInferResponse`.

use std::{borrow::Cow, time::Instant};

use bytes::Bytes;

use super::{contents::pack, parameters};
use crate::{
    inference::{Deliveries, Delivery, Encoding, InferParams},
    resolve::NamedRequest,
    size_error::{InputContext, explain},
};
use troupe_base::{
    budget::{Charge, Kind},
    config::ModelConfig,
    error::{Error, Result},
    model::Model,
    request::Response,
    tensor::{DataType, Shape, Tensor},
};
use troupe_proto::inference::{
    ModelInferRequest, ModelInferResponse, model_infer_request::InferInputTensor,
    model_infer_response::InferOutputTensor,
};

/// A message that has arrived.
pub(super) struct NamedMessage {
    pub(super) message: ModelInferRequest,
    /// What its memory is counted by.
    pub(super) charge: Charge,
    /// When its client stops waiting, if it said so.
    pub(super) deadline: Option<Instant>,
}

/// What is asked of the model, and how its outputs are delivered. Raw contents stay slices of the
/// received message; typed ones are packed.
pub(super) fn request(message: NamedMessage, config: &ModelConfig) -> Result<InferParams> {
    let NamedMessage { message, charge, deadline } = message;
    charge.add(Kind::Received, message.raw_input_contents.iter().map(Bytes::len).sum())?;
    let mut named = NamedRequest {
        parameters: parameters::read(message.parameters)?,
        deadline,
        ..NamedRequest::default()
    };
    let mut raw = RawContents {
        any: !message.raw_input_contents.is_empty(),
        left: message.raw_input_contents.into_iter(),
    };
    for input in message.inputs {
        let mut tensor = tensor(
            &input,
            &mut raw,
            &InputContext { input: &input.name, model: &config.name, id: &message.id },
            config,
        )?;
        if raw.any {
            tensor = tensor.of_counted();
        }
        named.inputs.push((Cow::Owned(input.name), tensor));
    }
    if raw.left.next().is_some() {
        return Err(Error::invalid(format!(
            "unexpected additional input data for model '{}'",
            config.name
        )));
    }
    let mut deliveries = Vec::with_capacity(message.outputs.len());
    for output in message.outputs {
        let classes = parameters::classes(&output.parameters, &output.name)?;
        deliveries.push(Delivery::new(Encoding::Bytes, classes));
        named.outputs.push(Cow::Owned(output.name));
    }
    named.id = Cow::Owned(message.id);
    named.charge = charge;
    let request = named.resolve(config)?;
    let deliveries = Deliveries::new(&request.wanted, &deliveries, Encoding::Bytes);
    Ok(InferParams { request, deliveries })
}

/// What `raw_input_contents` still holds.
struct RawContents {
    any: bool,
    left: std::vec::IntoIter<Bytes>,
}

fn tensor(
    input: &InferInputTensor,
    raw: &mut RawContents,
    about: &InputContext,
    config: &ModelConfig,
) -> Result<Tensor> {
    parameters::check_input(&input.parameters, &input.name)?;
    let dtype = data_type(input, about, config)?;
    let InputContext { input: name, model, .. } = about;
    let data = match &input.contents {
        Some(_) if raw.any => {
            return Err(Error::invalid(format!(
                "contents field must not be specified when using raw_input_contents for '{name}' \
                 for model '{model}'"
            )));
        }
        Some(contents) => pack(contents, dtype, about)?,
        None => raw.left.next().ok_or_else(|| {
            Error::invalid(format!(
                "unable to find data for input tensor '{name}' for model '{model}' in request."
            ))
        })?,
    };
    Tensor::new(dtype, Shape::from_slice(&input.shape), data.clone())
        .map_err(|_| explain(dtype, &input.shape, &data, about))
}

fn data_type(
    input: &InferInputTensor,
    about: &InputContext,
    config: &ModelConfig,
) -> Result<DataType> {
    DataType::parse(&input.datatype).ok_or_else(|| match config.input_index(&input.name) {
        Some(index) => about.tagged(&format!(
            "inference input '{}' data-type is '<invalid>', but model '{}' expects '{}'",
            input.name,
            config.name,
            config.inputs[index].dtype.as_str()
        )),
        None => about.tagged(&format!(
            "unexpected inference input '{}' for model '{}'",
            input.name, config.name
        )),
    })
}

/// Outputs in the order of the config, their bytes shared with the response.
pub(super) fn response(model: &Model, id: String, response: Response) -> ModelInferResponse {
    let mut message = ModelInferResponse {
        model_name: model.name().to_string(),
        model_version: model.version.to_string(),
        id,
        parameters: parameters::write(response.parameters),
        outputs: Vec::with_capacity(response.outputs.len()),
        raw_output_contents: Vec::with_capacity(response.outputs.len()),
    };
    for (output, tensor) in model.config.outputs.iter().zip(response.outputs) {
        let Some(tensor) = tensor else { continue };
        message.outputs.push(InferOutputTensor {
            name: output.name.to_string(),
            datatype: tensor.dtype().as_str().to_owned(),
            shape: tensor.shape().to_vec(),
            ..InferOutputTensor::default()
        });
        message.raw_output_contents.push(tensor.data().clone());
    }
    message
}
