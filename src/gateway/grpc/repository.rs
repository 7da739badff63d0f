//! The model repository extension: reads the parameters of loads and unloads.

use std::collections::HashMap;

use troupe_base::error::{Error, Result};
use troupe_proto::inference::{
    ModelRepositoryParameter, model_repository_parameter::ParameterChoice,
};
use troupe_repository::Overrides;

type LoadParameters = HashMap<String, ModelRepositoryParameter>;

/// What a load replaces.
pub(super) fn overrides(parameters: LoadParameters) -> Result<Overrides> {
    let mut overrides = Overrides::default();
    for (name, value) in parameters {
        if name == "config" {
            let Some(ParameterChoice::StringParam(config)) = value.parameter_choice else {
                return Err(wrong_type("load parameter 'config'", "string_param"));
            };
            overrides.config = Some(config);
        } else if let Some(path) = name.strip_prefix("file:") {
            let Some(ParameterChoice::BytesParam(contents)) = value.parameter_choice else {
                return Err(wrong_type(&format!("load parameter '{name}'"), "bytes_param"));
            };
            overrides.files.insert(path.to_owned(), contents.into());
        } else {
            return Err(Error::invalid(format!("unrecognized load parameter '{name}'.")));
        }
    }
    Ok(overrides)
}

/// Does an unload take the steps of the ensemble along?
pub(super) fn unload_dependents(parameters: &LoadParameters) -> Result<bool> {
    match parameters.get("unload_dependents").map(|it| &it.parameter_choice) {
        None => Ok(false),
        Some(Some(ParameterChoice::BoolParam(it))) => Ok(*it),
        Some(_) => Err(wrong_type("unload parameter 'unload_dependents'", "bool_param")),
    }
}

/// There is one repository; naming one is refused.
pub(super) fn check_repository(name: &str) -> Result<()> {
    if name.is_empty() {
        return Ok(());
    }
    Err(Error::unsupported("'repository_name' specification is not supported"))
}

fn wrong_type(what: &str, expected: &str) -> Error {
    Error::invalid(format!("invalid value type for {what}, expected {expected}."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ParameterChoice::*;

    fn map(name: &str, choice: ParameterChoice) -> LoadParameters {
        let value = ModelRepositoryParameter { parameter_choice: Some(choice) };
        HashMap::from([(name.to_owned(), value)])
    }

    #[test]
    fn loads_take_a_config_and_files() {
        let mut given = map("config", StringParam("{}".into()));
        given.extend(map("file:1/model.py", BytesParam("x".into())));
        let overrides = overrides(given).unwrap();
        assert_eq!(overrides.config.as_deref(), Some("{}"));
        assert_eq!(overrides.files["1/model.py"], b"x");
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (given, expected) in [
            (map("x", BoolParam(true)), "unrecognized load parameter 'x'."),
            (
                map("config", BytesParam("{}".into())),
                "invalid value type for load parameter 'config', expected string_param.",
            ),
            (
                map("file:a", StringParam("x".into())),
                "invalid value type for load parameter 'file:a', expected bytes_param.",
            ),
        ] {
            assert_eq!(overrides(given).unwrap_err().to_string(), expected);
        }
        let given = map("unload_dependents", Int64Param(1));
        assert_eq!(
            unload_dependents(&given).unwrap_err().to_string(),
            "invalid value type for unload parameter 'unload_dependents', expected bool_param."
        );
    }
}
