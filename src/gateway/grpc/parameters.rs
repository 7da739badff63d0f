//! Parameters of requests, responses and their tensors, from and to protobuf.

use std::collections::HashMap;

use crate::{
    error_details,
    shared_memory::{OFFSET_PARAMETER, REGION_PARAMETER, RegionRange, RegionSlice, SIZE_PARAMETER},
};
use troupe_base::{
    error::{Error, Result},
    request::{Parameter, Parameters},
};
use troupe_proto::inference::{InferParameter, infer_parameter::ParameterChoice};

/// For the gateway, not for the model; only answers of decoupled models depend on it.
const EMPTY_FINAL: &str = "triton_enable_empty_final_response";

/// Does the client want an empty final response where a decoupled request ends without one?
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
            // Triton takes the bits of a negative one, for want of unsigned numbers.
            Some(ParameterChoice::Int64Param(it)) if name == "sequence_id" => {
                Parameter::Uint(it as u64)
            }
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
    parameters.into_iter().map(|(name, value)| (name.into_owned(), value.into())).collect()
}

/// What the response beside an error in a stream says: `troupe_ensemble`, `troupe_step` and so on.
pub(super) fn of_error(error: &Error) -> HashMap<String, InferParameter> {
    let texts = error_details::of(error).map(|it| it.texts()).unwrap_or_default();
    let named = |(name, text)| (format!("troupe_{name}"), Parameter::String(text).into());
    texts.into_iter().map(named).collect()
}

/// What the parameters of a requested output say.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RequestedOutput<'a> {
    /// How many classes of it; 0: the output itself.
    pub(super) classes: u64,
    /// Where it is to be written, if not into the response.
    pub(super) range: Option<RegionRange<'a>>,
}

/// How the client wants the output `tensor`.
pub(super) fn output<'a>(
    map: &'a HashMap<String, InferParameter>,
    tensor: &str,
) -> Result<RequestedOutput<'a>> {
    if map.is_empty() {
        return Ok(RequestedOutput::default());
    }
    let range = region(map, tensor)?;
    let wrong = |text: &str| Err(Error::invalid(format!("invalid value{text}")));
    let classes = match map.get("classification").map(|it| &it.parameter_choice) {
        None => return Ok(RequestedOutput { classes: 0, range }),
        Some(Some(ParameterChoice::Int64Param(count))) => u64::try_from(*count),
        _ => return wrong(" type for 'classification' parameter, expected int64_param"),
    };
    match classes {
        Err(_) => wrong(" for 'classification' parameter, expected >= 0"),
        Ok(_) if range.is_some() => {
            let text = "output can't set both 'shared_memory_region' and 'classification'";
            Err(Error::invalid(text))
        }
        Ok(classes) => Ok(RequestedOutput { classes, range }),
    }
}

/// Where a tensor's parameters say that it lies in a region, if they do.
pub(super) fn region<'a>(
    map: &'a HashMap<String, InferParameter>,
    tensor: &str,
) -> Result<Option<RegionRange<'a>>> {
    let choice = |name| map.get(name).map(|it| it.parameter_choice.as_ref());
    let wrong = |text: String| Err(Error::invalid(format!("{text} for tensor '{tensor}'")));
    let wrong_type = |name, expected| {
        Err(Error::invalid(format!(
            "invalid value type for '{name}' parameter for tensor '{tensor}', expected {expected}."
        )))
    };
    let region = match choice(REGION_PARAMETER) {
        None => None,
        Some(Some(ParameterChoice::StringParam(region))) => Some(region),
        Some(_) => return wrong_type(REGION_PARAMETER, "string_param"),
    };
    let mut numbers = [None; 2];
    for (number, name) in numbers.iter_mut().zip([OFFSET_PARAMETER, SIZE_PARAMETER]) {
        match choice(name) {
            None => (),
            Some(_) if region.is_none() => {
                return wrong(format!(
                    "'{name}' can not be specified without '{REGION_PARAMETER}' parameter"
                ));
            }
            // Negative numbers are as far behind every region's end as their bits say.
            Some(Some(ParameterChoice::Int64Param(it))) => *number = Some(*it as u64),
            Some(_) => return wrong_type(name, "int64_param"),
        }
    }
    match (region, numbers) {
        (None, _) => Ok(None),
        (Some(region), [offset, Some(byte_size)]) => {
            Ok(Some(RegionRange { region, offset: offset.unwrap_or(0), byte_size }))
        }
        _ => wrong(format!(
            "'{SIZE_PARAMETER}' must be specified along with '{REGION_PARAMETER}' parameter"
        )),
    }
}

/// How many bytes of a region the tensor takes, if it lies in one.
pub(super) fn bytes_in_region(map: &HashMap<String, InferParameter>) -> usize {
    match map.get(SIZE_PARAMETER).and_then(|it| it.parameter_choice.as_ref()) {
        Some(ParameterChoice::Int64Param(size)) => usize::try_from(*size).unwrap_or(0),
        _ => 0,
    }
}

/// What a response says of an output in a region.
pub(super) fn of_region(slice: &RegionSlice, size: usize) -> HashMap<String, InferParameter> {
    let mut parameters = vec![
        (REGION_PARAMETER.into(), Parameter::String(slice.region().to_owned())),
        (SIZE_PARAMETER.into(), Parameter::Int(i64::try_from(size).unwrap_or(i64::MAX))),
    ];
    if let Some(offset) = i64::try_from(slice.offset()).ok().filter(|it| *it != 0) {
        parameters.push((OFFSET_PARAMETER.into(), Parameter::Int(offset)));
    }
    write(parameters)
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
        let named = ("shared_memory_region", StringParam("r".into()));
        let size = ("shared_memory_byte_size", Int64Param(4));
        for (given, expected) in [
            (vec![("binary_data", BoolParam(true))], ""),
            (
                vec![("shared_memory_region", Int64Param(1))],
                "invalid value type for 'shared_memory_region' parameter for tensor 't', expected \
                 string_param.",
            ),
            (
                vec![named.clone(), ("shared_memory_offset", BoolParam(true))],
                "invalid value type for 'shared_memory_offset' parameter for tensor 't', expected \
                 int64_param.",
            ),
            (
                vec![size.clone()],
                "'shared_memory_byte_size' can not be specified without 'shared_memory_region' \
                 parameter for tensor 't'",
            ),
            (
                vec![named.clone()],
                "'shared_memory_byte_size' must be specified along with 'shared_memory_region' \
                 parameter for tensor 't'",
            ),
            (vec![named.clone(), size.clone()], ""),
            (
                vec![named, size, ("classification", Int64Param(0))],
                "output can't set both 'shared_memory_region' and 'classification'",
            ),
            (
                vec![("classification", BoolParam(true))],
                "invalid value type for 'classification' parameter, expected int64_param",
            ),
            (
                vec![("classification", Int64Param(-1))],
                "invalid value for 'classification' parameter, expected >= 0",
            ),
        ] {
            let given = map(&given);
            let (as_output, as_input) = (output(&given, "t"), region(&given, "t"));
            let error = as_output.err().map(|it| it.to_string()).unwrap_or_default();
            assert_eq!(error, expected, "{given:?}");
            if !expected.contains("classification") {
                let error = as_input.err().map(|it| it.to_string()).unwrap_or_default();
                assert_eq!(error, expected, "{given:?}");
            }
        }
    }

    #[test]
    fn classes_are_counted() {
        for (given, expected) in [
            (vec![], 0),
            (vec![("classification", Int64Param(2))], 2),
            (vec![("x", BoolParam(true))], 0),
        ] {
            let given = map(&given);
            let expected = RequestedOutput { classes: expected, range: None };
            assert_eq!(output(&given, "t"), Ok(expected), "{given:?}");
        }
    }

    #[test]
    fn negative_ids_of_sequences_are_the_numbers_of_their_bits() {
        for (name, given, expected) in [
            ("sequence_id", 7, Parameter::Uint(7)),
            ("sequence_id", -1, Parameter::Uint(u64::MAX)),
            ("priority", -1, Parameter::Int(-1)),
        ] {
            let got = read(map(&[(name, Int64Param(given))])).unwrap();
            assert_eq!(got, [(name.into(), expected)]);
        }
    }

    #[test]
    fn regions_are_read_with_every_number_that_fits() {
        for (offset, size, expected) in
            [(None, 4, [0, 4]), (Some(8), 0, [8, 0]), (Some(-1), i64::MIN, [u64::MAX, 1 << 63])]
        {
            let mut given = vec![
                ("shared_memory_region", StringParam("r".into())),
                ("shared_memory_byte_size", Int64Param(size)),
            ];
            given.extend(offset.map(|it| ("shared_memory_offset", Int64Param(it))));
            let [offset, byte_size] = expected;
            let expected = RegionRange { region: "r", offset, byte_size };
            assert_eq!(region(&map(&given), "t"), Ok(Some(expected)));
        }
    }
}
