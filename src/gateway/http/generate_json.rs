//! The generate extension's JSON: one flat object of tensors and parameters, as request and as
//! response.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{
    body::Body,
    elements::{self, append, count_flat, read_flat},
    encode::append_parameter,
    flat_json::shape,
    hints, json,
    json_values::{self, Members, Scalar},
};
use crate::resolve::NamedRequest;
use troupe_base::{
    budget::Charge,
    config::{Input, ModelConfig},
    error::{Error, Result},
    model::Model,
    request::{Request, Response},
    tensor::{Tensor, element_count, shape_text},
};

/// Members whose types depend on the model.
type Object<'a> = Members<'a, &'a RawValue>;

/// Reads `body` for the model of `config`: a member is the input of its name, or else a parameter.
/// No tensor may take more than `limit` bytes.
pub(super) fn decode(body: &Body, config: &ModelConfig, limit: usize) -> Result<Request> {
    let (text, charge) = (&body.bytes[..], &body.charge);
    let reader = GenerateReader { config, limit, charge };
    match json_values::parse(text) {
        Ok(object) => reader.request(object),
        Err(error) => match json::quote_non_finite(text) {
            Cow::Borrowed(_) => Err(error),
            Cow::Owned(text) => reader.request(json_values::parse(&text)?),
        },
    }
}

struct GenerateReader<'a> {
    config: &'a ModelConfig,
    limit: usize,
    charge: &'a Charge,
}

impl GenerateReader<'_> {
    fn request(&self, object: Object<'_>) -> Result<Request> {
        let members =
            members(object).map_err(|why| hints::of_flat(Error::invalid(why), self.config))?;
        let charge = self.charge.clone();
        let mut named = NamedRequest { charge, ..NamedRequest::default() };
        for (key, value) in members {
            let is_input = self.config.input_index(&key).is_some();
            match &*key {
                "parameters" if is_input => {
                    return Err(Error::invalid(format!(
                        "Keyword '{key}' for nested schema also given as input tensor name"
                    )));
                }
                "parameters" => self.nested(value, &mut named)?,
                "id" if !is_input => named.id = scalar(value)?.into_text(&key)?,
                _ => self.member(key, value, &mut named)?,
            }
        }
        named.resolve(self.config)
    }

    /// The members of `parameters` count as if they stood beside it.
    fn nested<'t>(&self, value: &'t RawValue, named: &mut NamedRequest<'t>) -> Result<()> {
        let object = json_values::parse(value.get().as_bytes())?;
        let members = members(object).map_err(|why| {
            Error::invalid(format!("Expected JSON object for keyword: 'parameters': {why}"))
        })?;
        for (key, value) in members {
            self.member(key, value, named).map_err(|error| {
                Error::new(error.kind(), format!("Converting keyword: 'parameters': {error}"))
            })?;
        }
        Ok(())
    }

    fn member<'t>(
        &self,
        key: Cow<'t, str>,
        value: &'t RawValue,
        named: &mut NamedRequest<'t>,
    ) -> Result<()> {
        match self.config.input_index(&key) {
            // As in Python, None is what is not given.
            Some(index) if self.config.inputs[index].optional && value.get() == "null" => (),
            Some(index) => {
                let tensor = self.tensor(&self.config.inputs[index], value.get())?;
                named.inputs.push((key, tensor));
            }
            None => {
                let value = scalar(value)?.into_parameter(&key);
                let value = value.map_err(|it| hints::of_parameter(it, self.config, &key))?;
                named.parameters.push((key.into_owned().into(), value));
            }
        }
        Ok(())
    }

    fn tensor(&self, input: &Input, text: &str) -> Result<Tensor> {
        let dims = self.config.full_dims(input);
        let unfit = |why: String| {
            Error::invalid(format!(
                "The schema can not convert input '{}' to tensor with proper shape: {why}",
                input.name
            ))
        };
        let elements = count_flat(text).ok_or_else(|| {
            let shape = shape_text(&dims);
            unfit(format!("its shape is {shape}, whose elements stand in one list, not in several"))
        })?;
        let wanted = elements::ElementSpec {
            name: &input.name,
            dtype: input.dtype,
            elements,
            limit: self.limit,
        };
        let data = read_flat(&wanted, text)?;
        let shape = shape(&dims, elements).ok_or_else(|| {
            unfit(format!("its shape is {}, but it got {elements} elements", shape_text(&dims)))
        })?;
        Tensor::new(input.dtype, shape, data.into())
    }
}

fn members<V>(object: Members<'_, V>) -> Result<Vec<(Cow<'_, str>, V)>, &'static str> {
    match object {
        Members::Of(members) => Ok(members),
        Members::Absent | Members::Wrong => Err("attempt to access JSON non-object as object"),
    }
}

fn scalar(value: &RawValue) -> Result<Scalar<'_>> {
    json_values::parse(value.get().as_bytes())
}

/// Appends a response as one object. An output hides a parameter of its name, and both hide what
/// the client knows anyway: the id and the model.
pub(super) fn encode(
    model: &Model,
    id: &str,
    response: &Response,
    json: &mut Vec<u8>,
) -> Result<()> {
    let outputs = || {
        let named = model.config.outputs.iter().zip(&response.outputs);
        named.filter_map(|(output, tensor)| Some((&*output.name, tensor.as_ref()?)))
    };
    let is_output = |key: &str| outputs().any(|(name, _)| name == key);
    let parameters = &response.parameters;
    let is_said = |key: &str| is_output(key) || parameters.iter().any(|it| it.0 == key);
    json.push(b'{');
    let version = model.version.to_string();
    for (key, value) in [("id", id), ("model_name", model.name()), ("model_version", &version)] {
        if !value.is_empty() && !is_said(key) {
            member(key, json);
            append(value, json);
        }
    }
    for (key, value) in parameters.iter().filter(|it| !is_output(&it.0)) {
        member(key, json);
        append_parameter(value, json);
    }
    for (name, tensor) in outputs() {
        member(name, json);
        let start = json.len();
        elements::write(name, tensor, json)?;
        if element_count(tensor.shape()) == Ok(1) {
            // One element stands without its brackets.
            json.remove(start);
            json.pop();
        }
    }
    json.push(b'}');
    Ok(())
}

fn member(key: &str, json: &mut Vec<u8>) {
    if json.last() != Some(&b'{') {
        json.push(b',');
    }
    append(key, json);
    json.push(b':');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_open_dimension_takes_what_is_left() {
        for (dims, elements, expected) in [
            (&[1][..], 1, Some(&[1][..])),
            (&[], 1, Some(&[])),
            (&[], 2, None),
            (&[-1], 0, Some(&[0])),
            (&[-1], 5, Some(&[5])),
            (&[-1, 1], 3, Some(&[3, 1])),
            (&[-1, -1], 3, Some(&[1, 3])),
            (&[-1, 4, -1], 8, Some(&[1, 4, 2])),
            (&[2, 3], 6, Some(&[2, 3])),
            (&[2, 3], 12, None),
            (&[2, 3], 5, None),
            (&[2], 0, None),
            (&[0], 0, None),
            (&[-1, 2], 3, None),
        ] {
            let got = shape(dims, elements);
            assert_eq!(got.as_deref(), expected, "{elements} elements as {dims:?}");
        }
    }
}
