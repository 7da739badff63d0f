//! Resolves the names in a request to positions in the model's config.

use std::{borrow::Cow, sync::Arc, time::Instant};

use smallvec::SmallVec;

use troupe_base::{
    budget::Charge,
    config::ModelConfig,
    error::{Error, Result},
    model::{pick_outputs, place_inputs},
    request::{Context, Correlation, Parameter, Parameters, Request, SEQUENCE_END, SEQUENCE_START},
    tensor::{Tensor, charge_inputs},
};

/// What a client asks, in its names.
#[derive(Debug, Default)]
pub struct NamedRequest<'a> {
    /// Empty if the client sent none.
    pub id: Cow<'a, str>,
    /// All of them; `resolve` takes out the reserved ones.
    pub parameters: Parameters,
    /// In the client's order.
    pub inputs: SmallVec<[(Cow<'a, str>, Tensor); 4]>,
    /// Empty: all of the model's.
    pub outputs: SmallVec<[Cow<'a, str>; 4]>,
    /// When the client stops waiting, if it said so.
    pub deadline: Option<Instant>,
    /// What its memory is counted by.
    pub charge: Charge,
}

impl NamedRequest<'_> {
    /// Finds every name in the model's config.
    pub fn resolve(self, config: &ModelConfig) -> Result<Request> {
        let mut context = context(self.parameters)?;
        context.id = self.id.into_owned();
        context.deadline = self.deadline;
        context.charge = self.charge;
        let mut inputs = place_inputs(config, self.inputs, &context)?;
        charge_inputs(&mut inputs, &context.charge)?;
        let wanted = pick_outputs(config, &self.outputs, &context)?;
        Ok(Request { context: Arc::new(context), inputs, wanted, batch: 0 })
    }
}

/// Sorts the reserved parameters out; everything else is the model's to see.
fn context(parameters: Parameters) -> Result<Context> {
    let mut context = Context::default();
    for (key, value) in parameters {
        match &*key {
            "sequence_id" => context.correlation = correlation(value)?,
            "sequence_start" => context.flags |= SEQUENCE_START * truth(&key, &value)?,
            "sequence_end" => context.flags |= SEQUENCE_END * truth(&key, &value)?,
            "priority" => context.priority = count(&key, value)?,
            "timeout" => context.timeout_us = count(&key, value)?,
            _ if key.starts_with("triton_") => return Err(reserved()),
            _ => context.parameters.push((key, value)),
        }
    }
    Ok(context)
}

fn reserved() -> Error {
    Error::invalid(
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be \
         specified.",
    )
}

fn correlation(value: Parameter) -> Result<Correlation> {
    match value {
        Parameter::String(text) => Correlation::of_text(text),
        // As Triton says it over HTTP, though not as its 500: it is the client's mistake.
        Parameter::Int(..0) => Err(Error::invalid(
            "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
        )),
        Parameter::Int(_) | Parameter::Uint(_) => {
            Ok(Correlation::of_number(count("sequence_id", value)?))
        }
        _ => Err(wrong_type("sequence_id", "int64_param or string_param")),
    }
}

fn truth(key: &str, value: &Parameter) -> Result<u32> {
    match value {
        Parameter::Bool(it) => Ok(u32::from(*it)),
        _ => Err(wrong_type(key, "bool_param")),
    }
}

fn count(key: &str, value: Parameter) -> Result<u64> {
    match value {
        Parameter::Uint(it) => Ok(it),
        Parameter::Int(it) => u64::try_from(it).map_err(|_| {
            Error::invalid(format!("invalid value {it} for '{key}' parameter, expected >= 0"))
        }),
        _ => Err(wrong_type(key, "int64_param")),
    }
}

fn wrong_type(key: &str, expected: &str) -> Error {
    Error::invalid(format!("invalid value type for '{key}' parameter, expected {expected}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str, value: Parameter) -> Result<Context, String> {
        context(vec![(key.to_owned().into(), value)]).map_err(|it| it.to_string())
    }

    #[test]
    fn reserved_parameters_are_not_shown_to_the_model() {
        let text = || Parameter::String("s".to_owned());
        for (key, value, seen) in [
            ("priority", Parameter::Int(3), "3 0 0 None"),
            ("timeout", Parameter::Uint(9), "0 9 0 None"),
            ("sequence_start", Parameter::Bool(true), "0 0 1 None"),
            ("sequence_end", Parameter::Bool(true), "0 0 2 None"),
            ("sequence_end", Parameter::Bool(false), "0 0 0 None"),
            ("sequence_id", Parameter::Int(5), "0 0 0 Number(5)"),
            ("sequence_id", Parameter::Int(0), "0 0 0 None"),
            ("sequence_id", text(), "0 0 0 Text(\"s\")"),
        ] {
            let it = read(key, value).unwrap();
            let got =
                format!("{} {} {} {:?}", it.priority, it.timeout_us, it.flags, it.correlation);
            assert_eq!((&*got, it.parameters.len()), (seen, 0), "{key}");
        }
        assert_eq!(read("mine", text()).unwrap().parameters, [("mine".into(), text())]);
    }

    #[test]
    fn reserved_parameters_have_types() {
        for (key, value, error) in [
            (
                "sequence_id",
                Parameter::Bool(true),
                "invalid value type for 'sequence_id' parameter, expected int64_param or \
                 string_param.",
            ),
            (
                "sequence_id",
                Parameter::Int(-1),
                "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
            ),
            (
                "sequence_id",
                Parameter::String("é".repeat(129)),
                "string correlation ID cannot be longer than 128 characters",
            ),
            (
                "sequence_start",
                Parameter::Int(1),
                "invalid value type for 'sequence_start' parameter, expected bool_param.",
            ),
            (
                "timeout",
                Parameter::Double(1.),
                "invalid value type for 'timeout' parameter, expected int64_param.",
            ),
            (
                "priority",
                Parameter::Int(-1),
                "invalid value -1 for 'priority' parameter, expected >= 0",
            ),
            (
                "triton_x",
                Parameter::Int(1),
                "parameter keys starting with 'triton_' are reserved for Triton usage and should \
                 not be specified.",
            ),
        ] {
            assert_eq!(read(key, value).unwrap_err(), error);
        }
    }
}
