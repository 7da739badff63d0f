//! Turns a body into a request for a model: JSON, JSON with binary tensors, or one raw tensor.

use std::{borrow::Cow, ops::Range};

use super::{
    body::Body,
    elements, hints,
    infer_json::{Envelope, InputJson, OutputJson},
    json,
    json_values::{self, Scalar},
};
use crate::{
    inference::{Deliveries, Delivery, Encoding, InferParams},
    resolve::NamedRequest,
    shared_memory::{
        OFFSET_PARAMETER, REGION_PARAMETER, RegionAccess, RegionRange, RegionSlice, SIZE_PARAMETER,
    },
    size_error::{InputContext, explain, unknown_dtype},
};
use troupe_base::{
    config::ModelConfig,
    error::{Error, Result},
    tensor::{DataType, Shape, Tensor, element_count},
};

/// What `Inference-Header-Content-Length` says about a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLayout {
    /// No such header: all of it is JSON.
    Json,
    /// So many bytes of JSON, then tensors.
    Mixed(usize),
    /// The tensor of the only input, nothing else.
    Raw,
}

/// Reads `body` for the model of `config`; no tensor may take more than `limit` bytes, but for
/// those in `regions`.
pub(super) fn decode(
    body: &Body,
    layout: BodyLayout,
    config: &ModelConfig,
    limit: usize,
    regions: &RegionAccess,
) -> Result<InferParams> {
    let length = body.bytes.len();
    let reader = |is_mixed, at| {
        let slices = Vec::new();
        InferReader { body, config, limit, regions, slices, is_mixed, at }
    };
    match layout {
        BodyLayout::Raw => raw(body, config),
        BodyLayout::Json => reader(false, length).read(length),
        BodyLayout::Mixed(header) if header <= length => reader(true, header).read(header),
        BodyLayout::Mixed(header) => Err(Error::invalid(format!(
            "inference header size should be in range (0, {length}), got: {header}"
        ))),
    }
}

struct InferReader<'a> {
    body: &'a Body,
    config: &'a ModelConfig,
    limit: usize,
    regions: &'a RegionAccess,
    /// Where inputs lie in regions.
    slices: Vec<RegionSlice>,
    /// The client said where the JSON ends.
    is_mixed: bool,
    /// Where the next binary tensor begins.
    at: usize,
}

impl InferReader<'_> {
    fn read(mut self, header: usize) -> Result<InferParams> {
        let text = &self.body.bytes[..header];
        // Serde would take a list for the members of the object, in their order.
        if text.trim_ascii_start().starts_with(b"[") {
            let error = Error::invalid("attempt to access JSON non-object as object");
            return Err(hints::of_inputs(error, self.config, text));
        }
        match json_values::parse(text) {
            Ok(envelope) => self.request(envelope, text),
            Err(error) => match json::quote_non_finite(text) {
                Cow::Borrowed(_) => Err(error),
                Cow::Owned(text) => self.request(json_values::parse(&text)?, &text),
            },
        }
    }

    /// Reads what the JSON `text` says.
    fn request(&mut self, envelope: Envelope<'_>, text: &[u8]) -> Result<InferParams> {
        let config = self.config;
        let charge = self.body.charge.clone();
        let mut named = NamedRequest { charge, ..NamedRequest::default() };
        if envelope.id != Scalar::Absent {
            named.id = envelope.id.into_text("id")?;
        }
        let mut is_binary = false;
        for (key, value) in envelope.parameters.into_list("parameters")? {
            if key == "binary_data_output" {
                is_binary = value.bool(&key)?;
            } else {
                let value = value.into_parameter(&key)?;
                named.parameters.push((key.into_owned().into(), value));
            }
        }
        let inputs = envelope.inputs.required("inputs");
        for input in inputs.map_err(|it| hints::of_inputs(it, config, text))? {
            let (name, tensor) = self.input(&named.id, input, text)?;
            named.inputs.push((name, tensor));
        }
        if self.at < self.body.bytes.len() {
            return Err(Error::invalid(format!(
                "unexpected additional input data for model '{}'",
                self.config.name
            )));
        }
        let encoding = encoding_of(is_binary);
        let mut deliveries = Vec::new();
        for output in envelope.outputs.optional("outputs")? {
            let options = OutputOptions::of(&output, self.regions)?;
            deliveries.push(match options.range {
                Some(range) => Delivery::Region(self.regions.slice(&range)?),
                None => {
                    let encoding = options.as_bytes.map_or(encoding, encoding_of);
                    Delivery::new(encoding, options.classes)
                }
            });
            named.outputs.push(output.name.into_text("name")?);
        }
        let request = named.resolve(self.config)?;
        let deliveries = Deliveries::new(&request.wanted, deliveries, encoding);
        let deliveries = deliveries.with_inputs(std::mem::take(&mut self.slices));
        Ok(InferParams { request, deliveries })
    }

    fn input<'b>(
        &mut self,
        id: &str,
        input: InputJson<'b>,
        text: &[u8],
    ) -> Result<(Cow<'b, str>, Tensor)> {
        let name = input.name.into_text("name");
        let name = name.map_err(|it| hints::of_inputs(it, self.config, text))?;
        let told = |error| hints::of_input(error, self.config, &name);
        let dtype = parse_dtype(&name, input.datatype.text("datatype").map_err(told)?)?;
        let shape = input.shape.into_shape().map_err(told)?;
        let elements = element_count(&shape)
            .map_err(|it| Error::invalid(format!("invalid shape for input '{name}': {it}")))?;
        let parameters = input.parameters.list("parameters").map_err(told)?;
        let find = |name| parameters.iter().find(|(key, _)| key == name);
        let size = find("binary_data_size");
        let size = size.map(|(key, value)| value.count(key)).transpose().map_err(told)?;
        let is_shared = find(REGION_PARAMETER).is_some();
        check_source(input.data.is_some(), size.is_some(), is_shared).map_err(told)?;
        check_byte_size(&name, elements, dtype)?;
        let about = InputContext { input: &name, model: &self.config.name, id };
        let tensor = match (input.data, size) {
            (Some(data), _) => {
                let limit = self.limit;
                let wanted = elements::ElementSpec { name: &name, dtype, elements, limit };
                Tensor::new(dtype, shape, elements::read(&wanted, data.get())?.into())?
            }
            (None, Some(size)) => {
                let range = self.next_binary(&name, size)?;
                let data = &self.body.bytes[range.clone()];
                let tensor = self.body.tensor(dtype, shape.clone(), range);
                tensor.map_err(|_| explain(dtype, &shape, data, &about))?
            }
            (None, None) => {
                let slice = self.regions.slice(&region_range(parameters, self.regions)?)?;
                let tensor = self.regions.read(&slice, dtype, shape, &about, &self.body.charge)?;
                self.slices.push(slice);
                tensor
            }
        };
        Ok((name, tensor))
    }

    fn next_binary(&mut self, name: &str, size: u64) -> Result<Range<usize>> {
        if !self.is_mixed && size != 0 {
            return Err(Error::invalid(
                "must specify valid 'Infer-Header-Content-Length' in request header and \
                 'binary_data_size' when passing inputs in binary data format",
            ));
        }
        let left = (self.body.bytes.len() - self.at) as u64;
        if left < size {
            return Err(Error::invalid(format!(
                "unexpected size for input '{name}', expecting {} additional bytes for model '{}'",
                size - left,
                self.config.name
            )));
        }
        let start = self.at;
        self.at += size as usize;
        Ok(start..self.at)
    }
}

fn parse_dtype(name: &str, text: &str) -> Result<DataType> {
    DataType::parse(text).ok_or_else(|| {
        let hint = unknown_dtype(text);
        Error::invalid(format!("unknown datatype '{text}' of inference input '{name}'{hint}"))
    })
}

fn check_source(has_data: bool, has_size: bool, is_shared: bool) -> Result<()> {
    let set: Vec<&str> = [
        (has_data, "'data'"),
        (has_size, "'binary_data_size'"),
        (is_shared, "'shared_memory_region'"),
    ]
    .into_iter()
    .filter_map(|(is_set, name)| is_set.then_some(name))
    .collect();
    if set.len() == 1 {
        return Ok(());
    }
    let but = if set.is_empty() {
        "no field is set".to_owned()
    } else {
        format!("set {}", set.join(" "))
    };
    Err(Error::invalid(format!(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in \
         'parameters', 'shared_memory_region' in 'parameters'. But {but}"
    )))
}

fn check_byte_size(name: &str, elements: usize, dtype: DataType) -> Result<()> {
    let each = dtype.size().unwrap_or(1);
    let most = i64::MAX as usize;
    if elements.checked_mul(each).is_some_and(|it| it <= most) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "byte size overflow for input '{name}': element count ({elements}) * data type size \
         ({each}) exceeds maximum allowed size ({most})"
    )))
}

/// Where the parameters of a tensor say that it lies.
fn region_range<'a>(
    parameters: &'a [(Cow<'_, str>, Scalar<'_>)],
    regions: &RegionAccess,
) -> Result<RegionRange<'a>> {
    regions.allowed()?;
    let find = |key| parameters.iter().find(|it| it.0 == key).map_or(&Scalar::Absent, |it| &it.1);
    let offset = match find(OFFSET_PARAMETER) {
        Scalar::Absent => 0,
        offset => offset.count(OFFSET_PARAMETER)?,
    };
    Ok(RegionRange {
        region: find(REGION_PARAMETER).text(REGION_PARAMETER)?,
        offset,
        byte_size: find(SIZE_PARAMETER).count(SIZE_PARAMETER)?,
    })
}

/// How the client wants one output.
#[derive(Default)]
struct OutputOptions<'a> {
    /// `None`: as the request says for all.
    as_bytes: Option<bool>,
    /// 0: the output itself.
    classes: u64,
    /// Where it is to be written, if not into the response.
    range: Option<RegionRange<'a>>,
}

impl<'a> OutputOptions<'a> {
    fn of(output: &'a OutputJson<'_>, regions: &RegionAccess) -> Result<OutputOptions<'a>> {
        let parameters = output.parameters.list("parameters")?;
        let has = |key: &str| parameters.iter().any(|it| it.0 == key);
        let mut options = OutputOptions::default();
        if has(REGION_PARAMETER) {
            check_shared(has("classification"), parameters)?;
            options.range = Some(region_range(parameters, regions)?);
        }
        for (key, value) in parameters {
            match &**key {
                "binary_data" => options.as_bytes = Some(value.bool(key)?),
                "classification" => options.classes = value.count(key)?,
                _ => (),
            }
        }
        Ok(options)
    }
}

fn check_shared(is_classified: bool, parameters: &[(Cow<'_, str>, Scalar<'_>)]) -> Result<()> {
    let is_binary = (Cow::Borrowed("binary_data"), Scalar::Bool(true));
    let other = match () {
        () if is_classified => "classification",
        () if parameters.contains(&is_binary) => "binary_data",
        () => return Ok(()),
    };
    Err(Error::invalid(format!("Output can't set both 'shared_memory_region' and '{other}'")))
}

fn encoding_of(is_binary: bool) -> Encoding {
    if is_binary { Encoding::Bytes } else { Encoding::Text }
}

/// The whole body is the only input; its shape is what the config leaves open.
fn raw(body: &Body, config: &ModelConfig) -> Result<InferParams> {
    let [input] = &config.inputs[..] else {
        let count = config.inputs.len();
        return Err(Error::invalid(format!(
            "Raw request must only have 1 input (found {count}) to be deduced but got {count} \
             inputs in '{}' model configuration",
            config.name
        )));
    };
    let length = body.bytes.len();
    let batch = (0 < config.max_batch_size).then_some(1);
    let mut shape: Shape = batch.into_iter().chain(input.dims.iter().copied()).collect();
    let tensor = if let Some(size) = input.dtype.size() {
        deduce(&input.name, &mut shape, length / size)?;
        body.tensor(input.dtype, shape, 0..length)?
    } else {
        if !matches!(input.dims[..], [1 | -1]) {
            return Err(Error::invalid(format!(
                "For BYTE datatype raw input '{}', the model must have input shape [1]",
                input.name
            )));
        }
        deduce(&input.name, &mut shape, 1)?;
        let mut prefixed = Vec::with_capacity(4 + length);
        prefixed.extend_from_slice(&(length as u32).to_le_bytes());
        prefixed.extend_from_slice(&body.bytes);
        Tensor::new(input.dtype, shape, prefixed.into())?
    };
    let named = NamedRequest {
        inputs: [(Cow::Borrowed(&*input.name), tensor)].into_iter().collect(),
        charge: body.charge.clone(),
        ..Default::default()
    };
    let request = named.resolve(config)?;
    Ok(InferParams { request, deliveries: Deliveries::inline(Encoding::Bytes) })
}

fn deduce(name: &str, shape: &mut Shape, elements: usize) -> Result<()> {
    let known = shape.iter().filter(|it| **it != -1).product::<i64>().max(1) as usize;
    let mut open = shape.iter_mut().filter(|it| **it == -1);
    if let Some(dim) = open.next() {
        *dim = (elements / known) as i64;
    }
    if open.next().is_some() {
        return Err(Error::invalid(format!(
            "The shape of the raw input '{name}' can not be deduced because there are more than \
             one variable-sized dimension"
        )));
    }
    Ok(())
}
