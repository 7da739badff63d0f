//! The reference page of the API: every ready model with inputs, outputs, and command lines that ask it.

use std::fmt::Write;

use serde_json::Value;

use crate::{ServerState, examples, metadata, openapi};
use troupe_base::{
    config::ModelConfig,
    model::Model,
    tensor::shape_text,
    text::{encode_path_segment, escape_markup, shell_quoted},
};

/// How it looks.
pub(crate) const STYLE: &str = include_str!("reference_page.css");

/// What the page's links lead to.
pub(crate) struct ReferenceLinks<'a> {
    /// The HTTP API, as command lines write it.
    pub(crate) api: &'a str,
    /// The style sheet.
    pub(crate) style: &'a str,
    /// Where the document for programs is.
    pub(crate) openapi: &'a str,
}

/// The page.
pub(crate) fn page(state: &ServerState, links: &ReferenceLinks<'_>) -> String {
    let models = openapi::newest_models(state);
    let title = escape_markup(&state.settings.server_id);
    let [style, document] = [links.style, links.openapi].map(escape_markup);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title} · API</title>\n\
         <link rel=\"stylesheet\" href=\"{style}\">\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n\
         <p>The API of this server: KServe's inference protocol with Triton's extensions. \
         <a href=\"{document}\">openapi.json</a> is the same for programs.</p>\n"
    );
    out += "<nav aria-label=\"models\"><ul>\n";
    for model in &models {
        let name = escape_markup(model.name());
        let _ = writeln!(out, "<li><a href=\"#{}\">{name}</a></li>", anchor(model));
    }
    out += "</ul></nav>\n";
    for model in &models {
        out += &section(model, links.api);
    }
    out + &of_the_server(links.api) + "</main>\n</body>\n</html>\n"
}

fn anchor(model: &Model) -> String {
    format!("model-{}", encode_path_segment(model.name()))
}

fn section(model: &Model, api: &str) -> String {
    let config = &*model.config;
    let tensors = |all: Vec<(String, &str, Vec<i64>, bool)>| {
        let row = |(name, datatype, shape, optional): (String, &str, Vec<i64>, bool)| {
            let optional = if optional { "optional" } else { "" };
            let (name, shape) = (escape_markup(&name), shape_text(&shape));
            format!(
                "<tr><th scope=\"row\">{name}</th><td>{datatype}</td><td>{shape}</td>\
                 <td>{optional}</td></tr>\n"
            )
        };
        all.into_iter().map(row).collect::<String>()
    };
    let inputs = config.inputs.iter().map(|it| {
        let shown = metadata::input(config, it);
        (shown.name, shown.datatype, shown.shape, it.optional)
    });
    let outputs = config.outputs.iter().map(|it| {
        let shown = metadata::output(config, it);
        (shown.name, shown.datatype, shown.shape, false)
    });
    let mut out = format!(
        "<section id=\"{}\">\n<h2>{}</h2>\n<p>{}, version {}{}</p>\n\
         <h3>Inputs</h3>\n<table>{}</table>\n<h3>Outputs</h3>\n<table>{}</table>\n",
        anchor(model),
        escape_markup(model.name()),
        escape_markup(metadata::platform(config)),
        model.version,
        if config.decoupled { ", any number of responses" } else { "" },
        tensors(inputs.collect()),
        tensors(outputs.collect()),
    );
    for (what, command) in commands(model, api) {
        let _ =
            writeln!(out, "<h3>{what}</h3>\n<pre tabindex=\"0\">{}</pre>", escape_markup(&command));
    }
    out + "</section>\n"
}

/// Command lines that can be run as they are.
fn commands(model: &Model, api: &str) -> Vec<(&'static str, String)> {
    let config = &*model.config;
    let url = format!("{api}/v2/models/{}", encode_path_segment(model.name()));
    let post = |end: &str, flag: &str, body: String| {
        format!("curl {flag}{} -d {}", shell_quoted(&format!("{url}/{end}")), shell_quoted(&body))
    };
    if !openapi::has_json(config) {
        return Vec::new();
    }
    let mut all = Vec::new();
    let flat = openapi::generate_example(config).map(|it| it.to_string());
    if config.decoupled {
        all.extend(
            flat.map(|it| ("Ask it, an event a response", post("generate_stream", "-N ", it))),
        );
        return all;
    }
    let body = openapi::infer_example(config).and_then(|it| serde_json::to_string(&it).ok());
    all.extend(body.map(|it| ("Ask it", post("infer", "", it))));
    all.extend(flat.map(|it| ("With flat JSON", post("generate", "", it))));
    all.extend(of_file(config, &url).map(|it| ("With a file", it)));
    all
}

/// The file goes behind a line of JSON that says how long it is.
fn of_file(config: &ModelConfig, url: &str) -> Option<String> {
    let [input] = &config.inputs[..] else { return None };
    if !examples::is_file(input) {
        return None;
    }
    let shape: Vec<_> = config.full_dims(input).iter().map(|it| it.to_string()).collect();
    // The last open dimension is the one of the bytes; a batch is one of them.
    let last = config.full_dims(input).iter().rposition(|it| *it < 0)?;
    let dim = |(at, it): (usize, &String)| match at {
        _ if at == last => "'$size'".to_owned(),
        _ => it.replace("-1", "1"),
    };
    let shape: Vec<_> = shape.iter().enumerate().map(dim).collect();
    // A quote in a name ends the quoted part, as the size does.
    let name = Value::from(&*input.name).to_string().replace('\'', "'\\''");
    Some(format!(
        "file=picture.jpg\nsize=$(wc -c < \"$file\" | tr -d ' ')\n\
         head='{{\"inputs\":[{{\"name\":{name},\"datatype\":\"UINT8\",\"shape\":[{}],\
         \"parameters\":{{\"binary_data_size\":'$size'}}}}]}}'\n\
         {{ printf %s \"$head\"; cat \"$file\"; }} | curl {} \\\n  \
         -H \"Inference-Header-Content-Length: $(printf %s \"$head\" | wc -c | tr -d ' ')\" \
         --data-binary @-",
        shape.join(","),
        shell_quoted(&format!("{url}/infer")),
    ))
}

fn of_the_server(api: &str) -> String {
    let rows = [
        (
            "GET",
            "/v2/health/ready",
            "200 when all models can take requests; also on the metrics port",
        ),
        ("GET", "/v2/models", "all models: state, versions, why one is not ready"),
        ("GET", "/v2/models/NAME", "inputs and outputs"),
        ("GET", "/v2/models/NAME/config", "the completed config"),
        ("GET", "/v2/models/NAME/stats", "counters"),
        ("GET", "/v2/models/NAME/logs", "the last lines of the log about it"),
        ("GET", "/v2/models/NAME/graph?format=svg", "an ensemble, drawn"),
        (
            "POST",
            "/v2/repository/models/NAME/load",
            "loads or reloads it, with --model-control-mode=explicit",
        ),
        ("POST", "/v2/repository/models/NAME/unload", "takes it out"),
    ];
    let row = |(method, path, what): (&str, &str, &str)| {
        format!("<tr><th scope=\"row\">{method} {path}</th><td>{what}</td></tr>\n")
    };
    let rows: String = rows.into_iter().map(row).collect();
    format!(
        "<section id=\"server\">\n<h2>The server</h2>\n<p>At {}:</p>\n<table>{rows}</table>\n</section>\n",
        escape_markup(api)
    )
}
