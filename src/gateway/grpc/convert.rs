//! Turns `ModelInferRequest` into a request and a response into `ModelInferResponse`.

use std::{
    borrow::{Borrow, Cow},
    collections::HashMap,
    sync::Arc,
    time::Instant,
};

use tokio::task::spawn_blocking;

use super::{
    contents::pack,
    message::{InferMessage, InputHead, ItemBudget, OutputHead, RawContent},
    parameters,
};
use crate::{
    inference::{Deliveries, Delivery, Encoding, InferParams, MAX_BYTES_ON_THREAD},
    resolve::NamedRequest,
    shared_memory::{RegionAccess, RegionSlice},
    size_error::{InputContext, explain, unknown_dtype},
};
use bytes::Bytes;
use troupe_base::{
    budget::{Charge, Kind},
    config::ModelConfig,
    error::{Error, Result},
    model::{Model, unexpected_input},
    request::Response,
    tensor::{DataType, Tensor},
};
use troupe_proto::inference::{ModelInferResponse, model_infer_response::InferOutputTensor};

/// Is decoding this so much work that it would hold up other connections?
pub(super) fn is_long(
    message: &InferMessage,
    config: &ModelConfig,
    regions: &RegionAccess,
) -> bool {
    let has_strings = config.inputs.iter().any(|it| it.dtype == DataType::Bytes);
    let in_regions = if regions.is_none() { 0 } else { bytes_in_regions(message) };
    MAX_BYTES_ON_THREAD < message.effort(has_strings).saturating_add(in_regions)
}

/// About how many bytes of regions the request reads.
fn bytes_in_regions(message: &InferMessage) -> usize {
    let mut items = ItemBudget::default();
    let inputs = message.inputs.iter().filter_map(|it| InputHead::read(it, &mut items).ok());
    inputs.map(|it| parameters::bytes_in_region(&it.parameters)).fold(0, usize::saturating_add)
}

/// What is asked of the model until the deadline; decoded on a thread that may be held up if that
/// is much work.
pub(super) async fn request_off_thread(
    message: impl Borrow<InferMessage> + Send + 'static,
    model: &Arc<Model>,
    deadline: Option<Instant>,
    regions: RegionAccess,
) -> Result<InferParams> {
    if !is_long(message.borrow(), &model.config, &regions) {
        return request(message.borrow(), &model.config, deadline, &regions);
    }
    let model = model.clone();
    let read = move || request(message.borrow(), &model.config, deadline, &regions);
    let decoded = spawn_blocking(read).await;
    decoded.map_err(|_| Error::unavailable("no thread is left for a big request"))?
}

/// What is asked of the model until the deadline, and how its outputs are delivered. Raw contents
/// stay where they were received; typed ones are packed; what lies in regions is copied.
pub(super) fn request(
    message: &InferMessage,
    config: &ModelConfig,
    deadline: Option<Instant>,
    regions: &RegionAccess,
) -> Result<InferParams> {
    let mut items = ItemBudget::default();
    let mut named = NamedRequest {
        id: Cow::Borrowed(&message.id),
        parameters: parameters::read(message.parameters()?)?,
        deadline,
        charge: message.charge.clone(),
        ..NamedRequest::default()
    };
    let mut raw = RawContents { all: &message.raw_input_contents, taken: 0 };
    let mut slices = Vec::new();
    for entry in &message.inputs {
        let input = InputHead::read(entry, &mut items)?;
        let about = InputContext { input: input.name, model: &config.name, id: &message.id };
        let reader = InputReader { input: &input, entry, about, charge: &message.charge };
        let tensor = match parameters::region(&input.parameters, input.name)? {
            None => reader.tensor(&mut raw, config)?,
            Some(range) => {
                let slice = regions.slice(&range)?;
                let tensor = reader.in_region(&slice, regions, config)?;
                slices.push(slice);
                tensor
            }
        };
        named.inputs.push((Cow::Borrowed(input.name), tensor));
    }
    if raw.next().is_some() {
        return Err(Error::invalid(format!(
            "unexpected additional input data for model '{}'",
            config.name
        )));
    }
    let mut deliveries = Vec::with_capacity(message.outputs.len());
    for entry in &message.outputs {
        let output = OutputHead::read(entry, &mut items)?;
        let options = parameters::output(&output.parameters, output.name)?;
        deliveries.push(match options.range {
            Some(range) => Delivery::Region(regions.slice(&range)?),
            None => Delivery::new(Encoding::Bytes, options.classes),
        });
        named.outputs.push(Cow::Borrowed(output.name));
    }
    let request = named.resolve(config)?;
    let deliveries = Deliveries::new(&request.wanted, deliveries, Encoding::Bytes);
    Ok(InferParams { request, deliveries: deliveries.with_inputs(slices) })
}

/// `raw_input_contents`, which belong to the inputs in their order.
struct RawContents<'a> {
    all: &'a [RawContent],
    taken: usize,
}

impl<'a> RawContents<'a> {
    fn next(&mut self) -> Option<&'a RawContent> {
        let next = self.all.get(self.taken)?;
        self.taken += 1;
        Some(next)
    }
}

struct InputReader<'a> {
    input: &'a InputHead<'a>,
    /// What the input is a slice of.
    entry: &'a Bytes,
    about: InputContext<'a>,
    charge: &'a Charge,
}

impl InputReader<'_> {
    fn tensor(&self, raw: &mut RawContents, config: &ModelConfig) -> Result<Tensor> {
        let InputReader { input, entry, about, charge } = self;
        let dtype = data_type(input, about, config)?;
        let InputContext { input: name, model, .. } = about;
        let shape = input.shape.clone();
        let (tensor, data) = match &input.contents {
            Some(_) if !raw.all.is_empty() => {
                return Err(Error::invalid(format!(
                    "contents field must not be specified when using raw_input_contents for \
                     '{name}' for model '{model}'"
                )));
            }
            Some(contents) => {
                // Is there room for it? Whoever resolves the request counts what it is.
                let mut room = charge.hold(Kind::Tensors);
                room.grow(contents.most_packed(dtype))?;
                let data = pack(contents, entry, dtype, about)?;
                (Tensor::new(dtype, shape, data.clone()), data)
            }
            None => {
                let content = raw.next().ok_or_else(|| {
                    Error::invalid(format!(
                        "unable to find data for input tensor '{name}' for model '{model}' in \
                         request."
                    ))
                })?;
                match content.tensor(dtype, shape) {
                    Ok(tensor) => return Ok(tensor),
                    Err(error) => (Err(error), content.bytes()?),
                }
            }
        };
        tensor.map_err(|_| explain(dtype, &input.shape, &data, about))
    }

    fn in_region(
        &self,
        slice: &RegionSlice,
        regions: &RegionAccess,
        config: &ModelConfig,
    ) -> Result<Tensor> {
        let InputReader { input, about, charge, .. } = self;
        if input.contents.is_some() {
            let InputContext { input: name, model, .. } = about;
            return Err(Error::invalid(format!(
                "unexpected 'content' provided when using shared memory for input tensor '{name}' \
                 for model '{model}'"
            )));
        }
        let dtype = data_type(input, about, config)?;
        regions.read(slice, dtype, input.shape.clone(), about, charge)
    }
}

fn data_type(
    input: &InputHead<'_>,
    about: &InputContext,
    config: &ModelConfig,
) -> Result<DataType> {
    DataType::parse(input.datatype).ok_or_else(|| match config.input_index(input.name) {
        Some(index) => about.tagged(&format!(
            "inference input '{}' data-type is '<invalid>', but model '{}' expects '{}': unknown \
             datatype '{}'{}",
            input.name,
            config.name,
            config.inputs[index].dtype.as_str(),
            input.datatype,
            unknown_dtype(input.datatype)
        )),
        None => about.tagged(&unexpected_input(config, input.name)),
    })
}

/// Outputs in the order of the config, their bytes shared with the response; none of those that lie
/// in regions.
pub(super) fn response(
    model: &Model,
    id: String,
    response: Response,
    deliveries: &Deliveries,
) -> ModelInferResponse {
    let mut message = ModelInferResponse {
        model_name: model.name().to_string(),
        model_version: model.version.to_string(),
        id,
        parameters: parameters::write(response.parameters),
        outputs: Vec::with_capacity(response.outputs.len()),
        raw_output_contents: Vec::with_capacity(response.outputs.len()),
    };
    let outputs = model.config.outputs.iter().zip(response.outputs).enumerate();
    for (index, (output, tensor)) in outputs {
        let Some(tensor) = tensor else { continue };
        let (parameters, contents) = match deliveries.of(index) {
            Delivery::Region(slice) => {
                (parameters::of_region(slice, tensor.data().len()), Bytes::new())
            }
            Delivery::Inline(_) | Delivery::Classes(..) => (HashMap::new(), tensor.data().clone()),
        };
        message.outputs.push(InferOutputTensor {
            name: output.name.to_string(),
            datatype: tensor.dtype().as_str().to_owned(),
            shape: tensor.shape().to_vec(),
            parameters,
            ..InferOutputTensor::default()
        });
        message.raw_output_contents.push(contents);
    }
    message
}
