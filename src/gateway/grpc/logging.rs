//! The logging extension: reads and changes what is logged.

use std::collections::HashMap;

use crate::log_settings::check_name;
use troupe_base::error::{Error, Result};
use troupe_observability::log::{Log, LogChange, Settings};
use troupe_options::LogFormat;
use troupe_proto::inference::{
    LogSettingsRequest, LogSettingsResponse, log_settings_request,
    log_settings_response::{SettingValue, setting_value::ParameterChoice},
};

/// Changes the settings that are given, all or none, and answers with all of them.
pub(super) fn change(log: &Log, request: &LogSettingsRequest) -> Result<LogSettingsResponse> {
    let change = read(&request.settings)?;
    let is_read = request.settings.is_empty();
    Ok(response_of(if is_read { log.settings() } else { log.change(&change) }))
}

fn response_of(settings: Settings) -> LogSettingsResponse {
    use ParameterChoice::{BoolParam, StringParam, Uint32Param};
    let Settings { file, info, warning, error, verbose, format } = settings;
    let values = [
        ("log_file", StringParam(file)),
        ("log_info", BoolParam(info)),
        ("log_warning", BoolParam(warning)),
        ("log_error", BoolParam(error)),
        ("log_verbose_level", Uint32Param(verbose)),
        ("log_format", StringParam(format.name().to_owned())),
    ];
    let value =
        |(name, it): (&str, _)| (name.to_owned(), SettingValue { parameter_choice: Some(it) });
    LogSettingsResponse { settings: values.into_iter().map(value).collect() }
}

fn read(given: &HashMap<String, log_settings_request::SettingValue>) -> Result<LogChange> {
    use log_settings_request::setting_value::ParameterChoice::{
        BoolParam, StringParam, Uint32Param,
    };
    given.keys().try_for_each(|it| check_name(it))?;
    let choice = |key: &str| given.get(key).map(|it| it.parameter_choice.as_ref());
    if choice("log_file").is_some() {
        return Err(Error::unsupported(
            "log file location can not be updated through network protocol",
        ));
    }
    let switch = |key: &str| match choice(key) {
        None => Ok(None),
        Some(Some(BoolParam(on))) => Ok(Some(*on)),
        Some(_) => Err(Error::invalid(format!("expect boolean for '{key}'"))),
    };
    let verbose = match choice("log_verbose_level") {
        None => None,
        Some(Some(Uint32Param(level))) => Some(*level),
        Some(_) => return Err(Error::invalid("expect int32 for 'log_verbose_level'")),
    };
    let format = match choice("log_format") {
        None => None,
        Some(Some(StringParam(name))) => Some(LogFormat::named(name).ok_or_else(|| {
            Error::invalid(format!("invalid argument for log_format, got: {name}"))
        })?),
        Some(_) => return Err(Error::invalid("expect string for 'log_format'")),
    };
    let (info, warning, error) =
        (switch("log_info")?, switch("log_warning")?, switch("log_error")?);
    Ok(LogChange { info, warning, error, verbose, format })
}

#[cfg(test)]
mod tests {
    use super::*;
    use log_settings_request::{SettingValue, setting_value::ParameterChoice::*};

    fn read_one(
        name: &str,
        choice: log_settings_request::setting_value::ParameterChoice,
    ) -> Result<LogChange> {
        let value = SettingValue { parameter_choice: Some(choice) };
        read(&HashMap::from([(name.to_owned(), value)]))
    }

    #[test]
    fn what_is_given_is_read() {
        let none = LogChange::default;
        for (name, choice, expected) in [
            ("log_info", BoolParam(false), LogChange { info: Some(false), ..none() }),
            ("log_warning", BoolParam(true), LogChange { warning: Some(true), ..none() }),
            ("log_error", BoolParam(false), LogChange { error: Some(false), ..none() }),
            ("log_verbose_level", Uint32Param(1), LogChange { verbose: Some(1), ..none() }),
            (
                "log_format",
                StringParam("json".to_owned()),
                LogChange { format: Some(LogFormat::Json), ..none() },
            ),
        ] {
            assert_eq!(read_one(name, choice), Ok(expected), "{name}");
        }
    }

    #[test]
    fn wrong_settings_are_refused_in_tritons_words() {
        let text = || StringParam("x".to_owned());
        for (name, choice, expected) in [
            (
                "log_file",
                text(),
                Error::unsupported("log file location can not be updated through network protocol"),
            ),
            (
                "log_inf",
                BoolParam(true),
                Error::invalid("the log has no setting 'log_inf', did you mean `log_info`?"),
            ),
            ("log_info", text(), Error::invalid("expect boolean for 'log_info'")),
            ("log_warning", Uint32Param(1), Error::invalid("expect boolean for 'log_warning'")),
            ("log_error", text(), Error::invalid("expect boolean for 'log_error'")),
            (
                "log_verbose_level",
                BoolParam(true),
                Error::invalid("expect int32 for 'log_verbose_level'"),
            ),
            ("log_format", BoolParam(true), Error::invalid("expect string for 'log_format'")),
            ("log_format", text(), Error::invalid("invalid argument for log_format, got: x")),
        ] {
            assert_eq!(read_one(name, choice), Err(expected), "{name}");
        }
    }
}
