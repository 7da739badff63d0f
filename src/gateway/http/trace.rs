//! The trace extension: reads and changes settings.

use actix_web::{HttpRequest, HttpResponse, http::Method, web};
use serde_json::{Map, Value};

use super::{body, json, refusal::Refusal, server_state::state};
use crate::trace_settings;
use troupe_base::error::{Error, Result};

/// The settings of the server or of a model, after the change if one is posted.
pub(super) async fn setting(
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, Refusal> {
    let state = state(&http)?;
    let text = body::receive_all(&http, payload, state.settings.max_input_size).await?;
    let changes = if *http.method() == Method::POST { changes(&text)? } else { Vec::new() };
    let shown = trace_settings::set(state, http.match_info().query("model"), changes)?;
    let value = |(name, mut values): (&'static str, Vec<String>)| {
        let list = name == "trace_level";
        let value = if list { values.into() } else { values.pop().unwrap_or_default().into() };
        (name.to_owned(), value)
    };
    json::respond(&Value::Object(shown.into_iter().map(value).collect()))
}

fn changes(text: &[u8]) -> Result<trace_settings::SettingValues> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let members: Map<String, Value> = json::parse(text)?;
    let values = |(name, value): (String, Value)| {
        let values = match value {
            Value::Null => Vec::new(),
            Value::Array(all) => {
                all.into_iter().map(|it| text_of(&name, it)).collect::<Result<_>>()?
            }
            one => vec![text_of(&name, one)?],
        };
        Ok((name, values))
    };
    members.into_iter().map(values).collect()
}

fn text_of(name: &str, value: Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(Error::invalid(format!("Unable to parse '{name}': expected a string"))),
    }
}
