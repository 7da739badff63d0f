//! The form on a model's page that asks it, and the endpoint that the form asks.
//!
//! The page is beside the metrics, another origin than the HTTP API's: what it asks is answered here, by
//! the same handlers. Only the page can: it says the token that was written into it. A group of
//! endpoints that asks for a header asks the page for it, too.

use std::{
    fmt::Write,
    sync::{Arc, OnceLock},
};

use actix_web::web::{self, Data};

use crate::{
    ServerState,
    access::add_page_only,
    examples, http,
    metadata::{self, TensorMetadata},
    socket::ListenAddress,
};
use troupe_base::{
    config::{Input, ModelConfig},
    model::Model,
    tensor::{DataType, shape_text},
    text::escape_markup,
};
use troupe_options::Api;

/// Adds what the form asks.
pub(super) fn configure(app: &mut web::ServiceConfig, state: &ServerState) {
    let cell = Arc::new(OnceLock::from(state.clone()));
    app.app_data(Data::from(cell));
    let access = &state.settings.http_access;
    let name = "/v2/models/{model}/versions/{version}";
    for (end, route) in http::of_page() {
        add_page_only(app, access, web::resource(format!("{name}/{end}")).route(route));
    }
}

/// The form. It is shown only where there is a script to send it.
pub(super) fn form(state: &ServerState, model: &Model) -> String {
    let config = &*model.config;
    let mut out = format!(
        "<section class=\"panel try\" id=\"try\" aria-labelledby=\"try-title\" {}>\n\
         <h2 id=\"try-title\">Try it</h2>\n<form autocomplete=\"off\">\n",
        attributes(state, model)
    );
    for it in &config.inputs {
        out += &field(config, it);
    }
    out += &parameters(config);
    if let Some(header) = state.settings.http_access.restrictions.header(Api::Inference) {
        let _ = writeln!(
            out,
            "<label class=\"secret\">Header <b>{}</b>, which this server asks for \
             <input type=\"password\" id=\"try-header\"></label>",
            escape_markup(header)
        );
    }
    let copies = match state.settings.urls.http.get() {
        Some(_) => {
            "<button type=\"button\" data-code=\"curl\">Copy as curl</button>\
             <button type=\"button\" data-code=\"python\">Copy as Python</button>"
        }
        // There is no port that curl could ask.
        None => "",
    };
    out + "<p class=\"actions\"><button type=\"submit\" title=\"Ctrl+Enter\">Send</button>\
           <button type=\"button\" class=\"stop\" hidden>Stop</button>"
        + copies
        + "</p>\n</form>\n\
           <pre id=\"try-code\" tabindex=\"0\" hidden></pre>\n\
           <div id=\"try-answer\" aria-live=\"polite\"></div>\n</section>\n"
}

/// What the script has to know.
fn attributes(state: &ServerState, model: &Model) -> String {
    let newest = state.model(model.name(), None).is_ok_and(|it| it.version == model.version);
    let steps: Vec<&str> = match model.config.is_ensemble() {
        true => model.steps.iter().map(|it| &**it.name()).collect(),
        false => vec![model.name()],
    };
    let restrictions = &state.settings.http_access.restrictions;
    let header = restrictions.header(Api::Inference).unwrap_or_default();
    let mut all = vec![
        ("model", model.name().to_string()),
        ("version", model.version.to_string()),
        ("newest", newest.to_string()),
        ("decoupled", model.config.decoupled.to_string()),
        ("binary", has_binary_outputs(&model.config).to_string()),
        ("steps", serde_json::json!(steps).to_string()),
        ("first-node", model.config.inputs.len().to_string()),
        ("header", header.to_owned()),
    ];
    if let Some(url) = state.settings.urls.http.get() {
        match &url.address {
            ListenAddress::Unix(path) => all.push(("http-socket", path.display().to_string())),
            ListenAddress::Tcp(address) => {
                all.push(("http-port", address.port().to_string()));
                all.push(("http-tls", url.is_encrypted.to_string()));
                all.push(("http-host", url.own_host().unwrap_or_default()));
            }
        }
    }
    let attribute =
        |(name, value): &(&str, String)| format!("data-{name}=\"{}\"", escape_markup(value));
    all.iter().map(attribute).collect::<Vec<_>>().join(" ")
}

/// Outputs that have no JSON.
fn has_binary_outputs(config: &ModelConfig) -> bool {
    let is_half = |it: DataType| matches!(it, DataType::Fp16 | DataType::Bf16);
    config.outputs.iter().any(|it| is_half(it.dtype))
}

fn field(config: &ModelConfig, input: &Input) -> String {
    let TensorMetadata { name, datatype, shape } = metadata::input(config, input);
    let optional = if input.optional { ", optional" } else { "" };
    let (name, shown) = (escape_markup(&name), shape_text(&shape));
    let shape = serde_json::json!(shape).to_string();
    let takes_file = examples::is_file(input);
    let file = if input.dtype == DataType::Bytes || takes_file {
        let many = if input.dtype == DataType::Bytes { " multiple" } else { "" };
        format!(
            "<label>or a file <input type=\"file\" aria-label=\"file for {name}\"{many}></label>"
        )
    } else {
        String::new()
    };
    let value = if input.optional || takes_file { String::new() } else { value(config, input) };
    let hint = match input.dtype {
        DataType::Bytes => "text, or JSON: [\"one\", \"two\"]",
        _ if takes_file => "JSON, unless there is a file",
        _ => "JSON, or zeros, ones, random",
    };
    let open = match shape.contains("-1") {
        true => format!(
            "<label>shape <input class=\"shape\" placeholder=\"as written\" \
             aria-label=\"shape of {name}\"></label>\n"
        ),
        false => String::new(),
    };
    format!(
        "<fieldset data-name=\"{name}\" data-datatype=\"{datatype}\" data-shape=\"{shape}\" \
         data-optional=\"{}\">\n<legend>{name} <small>{datatype} {shown}{optional}</small></legend>\n\
         <textarea rows=\"2\" spellcheck=\"false\" aria-label=\"value of {name}\" \
         placeholder=\"{}\">{}</textarea>\n{file}{open}\
         <div class=\"preview\"></div><p class=\"wrong\" role=\"alert\"></p></fieldset>\n",
        input.optional,
        escape_markup(hint),
        escape_markup(&value),
    )
}

/// The field for the parameters of the request.
fn parameters(config: &ModelConfig) -> String {
    let begins = r#"{"sequence_id": 1, "sequence_start": true}"#;
    let is_needed = config.sequences().is_some_and(|it| !it.is_iterative);
    format!(
        "<div class=\"parameters\"><label>Parameters, JSON <input id=\"try-parameters\" \
         spellcheck=\"false\" placeholder=\"{0}\" value=\"{1}\"></label>\
         <p class=\"wrong\" role=\"alert\"></p></div>\n",
        escape_markup(r#"{"priority": 1}"#),
        if is_needed { escape_markup(begins) } else { "".into() },
    )
}

/// What stands in the form at first: something that fits.
fn value(config: &ModelConfig, input: &Input) -> String {
    match (input.dtype, examples::data(config, input)) {
        (DataType::Bytes, Some(data)) if data.len() == 1 => "text".to_owned(),
        (_, Some(data)) => serde_json::Value::from(data).to_string(),
        (_, None) => "zeros".to_owned(),
    }
}
