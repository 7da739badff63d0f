//! Parameters of requests, responses and their tensors, from and to protobuf.

use std::collections::HashMap;

use crate::{
    error::{Error, Result},
    proto::inference::{InferParameter, infer_parameter::ParameterChoice},
    request::{Parameter, Parameters},
};

/// For the gateway, not for the model; only answers of decoupled models depend on it.
const EMPTY_FINAL: &str = "triton_enable_empty_final_response";

/// Does the client want the end of a decoupled request told, when no response comes with it?
pub(super) fn wants_empty_final(map: &HashMap<String, InferParameter>) -> bool {
    let choice = map.get(EMPTY_FINAL).and_then(|it| it.parameter_choice.as_ref());
    matches!(choice, Some(ParameterChoice::BoolParam(true)))
}

/// A request's parameters, sorted by name: protobuf maps have no order.
pub(super) fn read(map: HashMap<String, InferParameter>) -> Result<Parameters> {
    let mut parameters = Parameters::with_capacity(map.len());
    for (name, value) in map {
        let value = match value.parameter_choice {
            Some(value) if name == EMPTY_FINAL => match value {
                ParameterChoice::BoolParam(_) => continue,
                _ => return Err(wrong_type(&name, "bool_param")),
            },
            Some(ParameterChoice::BoolParam(it)) => Parameter::Bool(it),
            Some(ParameterChoice::Int64Param(it)) => Parameter::Int(it),
            Some(ParameterChoice::Uint64Param(it)) => Parameter::Uint(it),
            Some(ParameterChoice::DoubleParam(it)) => Parameter::Double(it),
            Some(ParameterChoice::StringParam(it)) => Parameter::String(it),
            None => return Err(wrong_type(&name, "int64_param, bool_param, or string_param")),
        };
        parameters.push((name.into(), value));
    }
    parameters.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(parameters)
}

fn wrong_type(name: &str, expected: &str) -> Error {
    Error::invalid(format!("invalid value type for '{name}' parameter, expected {expected}."))
}

/// A response's parameters.
pub(super) fn write(parameters: Parameters) -> HashMap<String, InferParameter> {
    parameters.into_iter().map(|(name, value)| (name.into_owned(), one(value))).collect()
}

/// One value.
pub(super) fn one(value: Parameter) -> InferParameter {
    let choice = match value {
        Parameter::Bool(it) => ParameterChoice::BoolParam(it),
        Parameter::Int(it) => ParameterChoice::Int64Param(it),
        Parameter::Uint(it) => ParameterChoice::Uint64Param(it),
        Parameter::Double(it) => ParameterChoice::DoubleParam(it),
        Parameter::String(it) => ParameterChoice::StringParam(it),
    };
    InferParameter { parameter_choice: Some(choice) }
}

/// Refuses what a tensor's parameters ask for and nobody does yet; says what is wrong with them.
pub(super) fn check_tensor(map: &HashMap<String, InferParameter>, tensor: &str) -> Result<()> {
    if map.is_empty() {
        return Ok(());
    }
    check_shared_memory(map, tensor)?;
    let Some(classes) = map.get("classification") else { return Ok(()) };
    let wrong = |text: &str| Error::invalid(format!("invalid value{text}"));
    match classes.parameter_choice {
        Some(ParameterChoice::Int64Param(count)) if count < 0 => {
            Err(wrong(" for 'classification' parameter, expected >= 0"))
        }
        Some(ParameterChoice::Int64Param(_)) => {
            Err(Error::unsupported("`classification` is not supported yet"))
        }
        _ => Err(wrong(" type for 'classification' parameter, expected int64_param")),
    }
}

fn check_shared_memory(map: &HashMap<String, InferParameter>, tensor: &str) -> Result<()> {
    const REGION: &str = "shared_memory_region";
    const SIZE: &str = "shared_memory_byte_size";
    let choice = |name| map.get(name).map(|it| it.parameter_choice.as_ref());
    let wrong = |text: String| Err(Error::invalid(format!("{text} for tensor '{tensor}'")));
    let wrong_type = |name, expected| {
        Err(Error::invalid(format!(
            "invalid value type for '{name}' parameter for tensor '{tensor}', expected {expected}."
        )))
    };
    let region = choice(REGION);
    if !matches!(region, None | Some(Some(ParameterChoice::StringParam(_)))) {
        return wrong_type(REGION, "string_param");
    }
    for name in ["shared_memory_offset", SIZE] {
        match choice(name) {
            None => (),
            Some(_) if region.is_none() => {
                return wrong(format!(
                    "'{name}' can not be specified without '{REGION}' parameter"
                ));
            }
            Some(Some(ParameterChoice::Int64Param(_))) => (),
            Some(_) => return wrong_type(name, "int64_param"),
        }
    }
    if region.is_none() {
        return Ok(());
    }
    if choice(SIZE).is_none() {
        return wrong(format!("'{SIZE}' must be specified along with '{REGION}' parameter"));
    }
    Err(Error::unsupported("shared memory is not supported yet"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ParameterChoice::*;

    fn map(pairs: &[(&str, ParameterChoice)]) -> HashMap<String, InferParameter> {
        let value = |it: &ParameterChoice| InferParameter { parameter_choice: Some(it.clone()) };
        pairs.iter().map(|(name, it)| ((*name).to_owned(), value(it))).collect()
    }

    #[test]
    fn values_survive_the_way_in_and_out() {
        let all = map(&[
            ("b", BoolParam(true)),
            ("d", DoubleParam(0.5)),
            ("i", Int64Param(-1)),
            ("s", StringParam("x".into())),
            ("u", Uint64Param(1)),
        ]);
        let read = read(all.clone()).unwrap();
        assert_eq!(read[0], ("b".into(), Parameter::Bool(true)));
        assert_eq!(write(read), all);
    }

    #[test]
    fn the_switch_for_empty_final_responses_is_no_parameter_of_the_model() {
        assert_eq!(read(map(&[(EMPTY_FINAL, BoolParam(true))])).unwrap(), []);
        for (given, expected) in [
            (
                map(&[(EMPTY_FINAL, Int64Param(1))]),
                "invalid value type for 'triton_enable_empty_final_response' parameter, expected \
                 bool_param.",
            ),
            (
                HashMap::from([("x".to_owned(), InferParameter::default())]),
                "invalid value type for 'x' parameter, expected int64_param, bool_param, or \
                 string_param.",
            ),
        ] {
            assert_eq!(read(given).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn parameters_of_tensors_are_checked() {
        let region = ("shared_memory_region", StringParam("r".into()));
        let size = ("shared_memory_byte_size", Int64Param(4));
        for (given, expected) in [
            (vec![("binary_data", BoolParam(true))], ""),
            (
                vec![("shared_memory_region", Int64Param(1))],
                "invalid value type for 'shared_memory_region' parameter for tensor 't', expected \
                 string_param.",
            ),
            (
                vec![region.clone(), ("shared_memory_offset", BoolParam(true))],
                "invalid value type for 'shared_memory_offset' parameter for tensor 't', expected \
                 int64_param.",
            ),
            (
                vec![size.clone()],
                "'shared_memory_byte_size' can not be specified without 'shared_memory_region' \
                 parameter for tensor 't'",
            ),
            (
                vec![region.clone()],
                "'shared_memory_byte_size' must be specified along with 'shared_memory_region' \
                 parameter for tensor 't'",
            ),
            (vec![region, size], "shared memory is not supported yet"),
            (
                vec![("classification", BoolParam(true))],
                "invalid value type for 'classification' parameter, expected int64_param",
            ),
            (
                vec![("classification", Int64Param(-1))],
                "invalid value for 'classification' parameter, expected >= 0",
            ),
            (vec![("classification", Int64Param(2))], "`classification` is not supported yet"),
        ] {
            let error = check_tensor(&map(&given), "t").err().map(|it| it.to_string());
            assert_eq!(error.unwrap_or_default(), expected, "{given:?}");
        }
    }
}
