//! The logging extension: reads and changes what is logged.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{body, json, refusal::Refusal, server_state::state};
use crate::log_settings::check_name;
use troupe_base::error::{Error, Result};
use troupe_observability::log::{LogChange, Settings};
use troupe_options::LogFormat;

#[derive(Serialize)]
struct LoggingSettings {
    log_file: String,
    log_info: bool,
    log_warning: bool,
    log_error: bool,
    log_verbose_level: u32,
    log_format: &'static str,
}

/// Answers with all settings.
pub(super) async fn settings(http: HttpRequest) -> Result<HttpResponse, Refusal> {
    all_settings(state(&http)?.settings.log.settings())
}

/// Changes those that are given, all or none, and answers with all.
pub(super) async fn change(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let state = state(&http)?;
    let text = body::receive_all(&http, payload, state.settings.max_input_size).await?;
    let change = read(&text)?;
    all_settings(state.settings.log.change(&change))
}

fn all_settings(settings: Settings) -> Result<HttpResponse, Refusal> {
    let Settings { file, info, warning, error, verbose, format } = settings;
    json::respond(&LoggingSettings {
        log_file: file,
        log_info: info,
        log_warning: warning,
        log_error: error,
        log_verbose_level: verbose,
        log_format: format.name(),
    })
}

/// What is `null` changes nothing.
fn read(text: &[u8]) -> Result<LogChange> {
    let members: Map<String, Value> = json::parse(text)?;
    members.keys().try_for_each(|it| check_name(it))?;
    let given = |key: &str| members.get(key).filter(|it| !it.is_null());
    if given("log_file").is_some() {
        return Err(Error::unsupported(
            "log file location can not be updated through network protocol",
        ));
    }
    let switch =
        |key| given(key).map(|it| it.as_bool().ok_or_else(|| wrong(key, "boolean"))).transpose();
    let level = given("log_verbose_level").map(|it| {
        let level = it.as_u64().and_then(|it| u32::try_from(it).ok());
        level.ok_or_else(|| wrong("log_verbose_level", "unsigned-integer"))
    });
    let format = given("log_format").map(|it| {
        let name = it.as_str().ok_or_else(|| wrong("log_format", "string"))?;
        LogFormat::named(name).ok_or_else(|| {
            Error::unavailable(format!("invalid argument for --log_format, got: {name}"))
        })
    });
    Ok(LogChange {
        info: switch("log_info")?,
        warning: switch("log_warning")?,
        error: switch("log_error")?,
        verbose: level.transpose()?,
        format: format.transpose()?,
    })
}

fn wrong(key: &str, expected: &str) -> Error {
    Error::invalid(format!("attempt to access JSON non-{expected} as {expected}: '{key}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_read_and_the_rest_stays() {
        let text = br#"{"log_info":false,"log_verbose_level":2,"log_format":"ISO8601"}"#;
        let expected = LogChange {
            info: Some(false),
            verbose: Some(2),
            format: Some(LogFormat::Iso8601),
            ..LogChange::default()
        };
        assert_eq!(read(text), Ok(expected));
        assert_eq!(read(br#"{"log_file":null,"log_error":null}"#), Ok(LogChange::default()));
    }

    #[test]
    fn wrong_settings_are_refused_in_tritons_words() {
        for (text, expected) in [
            (
                r#"{"log_file":"a"}"#,
                Error::unsupported("log file location can not be updated through network protocol"),
            ),
            (
                r#"{"log_format":"x"}"#,
                Error::unavailable("invalid argument for --log_format, got: x"),
            ),
            (r#"{"log_format":1}"#, wrong("log_format", "string")),
            (r#"{"log_info":1}"#, wrong("log_info", "boolean")),
            (r#"{"log_verbose_level":-1}"#, wrong("log_verbose_level", "unsigned-integer")),
            (r#"{"log_verbose_level":4294967296}"#, wrong("log_verbose_level", "unsigned-integer")),
            (
                r#"{"log_verbos_level":1}"#,
                Error::invalid(
                    "the log has no setting 'log_verbos_level', did you mean `log_verbose_level`?",
                ),
            ),
        ] {
            assert_eq!(read(text.as_bytes()), Err(expected), "{text}");
        }
        let error = read(b"[]").unwrap_err().to_string();
        assert!(error.starts_with("failed to parse the request JSON buffer: "), "{error}");
    }
}
