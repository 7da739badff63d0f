//! Request parameters of the command line, `--parameter NAME=JSON`, and their form in gRPC.

use std::collections::HashMap;

use serde_json::Value;
use troupe_base::request::Parameter;
use troupe_proto::inference::InferParameter;

/// Every `--parameter`, by name; what is no JSON is text.
pub(super) fn read(written: &[String]) -> Result<HashMap<String, InferParameter>, String> {
    let mut parameters = HashMap::new();
    for text in written {
        let (name, value) =
            text.split_once('=').filter(|it| !it.0.is_empty()).ok_or_else(|| {
                format!("--parameter {text}: expected NAME=VALUE, as in `sequence_id=5`")
            })?;
        let value = parameter(value).map_err(|why| format!("--parameter {text}: {why}"))?;
        if parameters.insert(name.to_owned(), value.into()).is_some() {
            return Err(format!("--parameter {name} is given more than once"));
        }
    }
    Ok(parameters)
}

fn parameter(text: &str) -> Result<Parameter, String> {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return Ok(Parameter::String(text.to_owned()));
    };
    match value {
        Value::Bool(it) => Ok(Parameter::Bool(it)),
        Value::String(it) => Ok(Parameter::String(it)),
        Value::Number(it) => {
            let whole = it.as_i64().map(Parameter::Int).or(it.as_u64().map(Parameter::Uint));
            let number = whole.or(it.as_f64().map(Parameter::Double));
            number.ok_or_else(|| format!("the number {it} is too large"))
        }
        Value::Null | Value::Array(_) | Value::Object(_) => {
            Err("expected a number, a text, `true` or `false`".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use troupe_proto::inference::infer_parameter::ParameterChoice;

    use super::*;

    fn check(text: &str, expected: Result<ParameterChoice, &str>) {
        let read = read(&[text.to_owned()]);
        let read = read.map(|it| it["x"].parameter_choice.clone().unwrap());
        assert_eq!(read, expected.map_err(str::to_owned), "{text}");
    }

    #[test]
    fn json_has_a_type_and_everything_else_is_text() {
        check("x=5", Ok(ParameterChoice::Int64Param(5)));
        check("x=-5", Ok(ParameterChoice::Int64Param(-5)));
        check("x=18446744073709551615", Ok(ParameterChoice::Uint64Param(u64::MAX)));
        check("x=0.5", Ok(ParameterChoice::DoubleParam(0.5)));
        check("x=true", Ok(ParameterChoice::BoolParam(true)));
        for (text, expected) in [("x=a=b", "a=b"), ("x=\"5\"", "5"), ("x=", "")] {
            check(text, Ok(ParameterChoice::StringParam(expected.to_owned())));
        }
    }

    #[test]
    fn what_is_no_parameter_is_refused() {
        let kinds = "--parameter x=[1]: expected a number, a text, `true` or `false`";
        check("x=[1]", Err(kinds));
        check("x", Err("--parameter x: expected NAME=VALUE, as in `sequence_id=5`"));
        check("=5", Err("--parameter =5: expected NAME=VALUE, as in `sequence_id=5`"));
        let twice = read(&["x=1".to_owned(), "x=2".to_owned()]);
        assert_eq!(twice, Err("--parameter x is given more than once".to_owned()));
    }
}
