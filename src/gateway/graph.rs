//! A model's graph in the formats clients ask for.

use std::{str::FromStr, sync::Arc, time::Instant};

use troupe_base::text::encode_path_segment;
use troupe_base::{
    error::{Error, Result},
    model::Model,
};
use troupe_draw::{self as draw, LiveGraph, StepView};
use troupe_options::GraphFormat;

/// How a graph is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveGraphFormat {
    /// For programs.
    Json,
    /// Drawn, or for another program to draw.
    Drawn(GraphFormat),
}

/// Names of formats and their media types; the first that suits an `Accept` is taken.
const FORMATS: &[(&str, &str, LiveGraphFormat)] = &[
    ("json", "application/json", LiveGraphFormat::Json),
    ("svg", "image/svg+xml", LiveGraphFormat::Drawn(GraphFormat::Svg)),
    ("dot", "text/vnd.graphviz", LiveGraphFormat::Drawn(GraphFormat::Dot)),
    ("mermaid", "text/vnd.mermaid", LiveGraphFormat::Drawn(GraphFormat::Mermaid)),
];

impl FromStr for LiveGraphFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<LiveGraphFormat> {
        let found = FORMATS.iter().find(|(name, ..)| *name == text);
        found.map(|(_, _, format)| *format).ok_or_else(|| {
            let known: Vec<_> = FORMATS.iter().map(|(name, ..)| *name).collect();
            Error::invalid(format!(
                "unknown graph format '{}', expected one of {}",
                text.escape_debug(),
                known.join(", ")
            ))
        })
    }
}

impl LiveGraphFormat {
    /// The one that an `Accept` header likes best; JSON where it likes none of them.
    pub fn accepted(header: &str) -> LiveGraphFormat {
        let ranges: Vec<(&str, f32)> = header.split(',').filter_map(range).collect();
        let mut best = (LiveGraphFormat::Json, 0.0);
        for (_, media_type, format) in FORMATS {
            // The most specific range that names a type decides.
            let weight = |range: &str| {
                ranges.iter().find(|it| it.0.eq_ignore_ascii_case(range)).map(|it| it.1)
            };
            let family = media_type.split('/').next().unwrap_or_default();
            let liked = weight(media_type)
                .or_else(|| weight(&format!("{family}/*")))
                .or_else(|| weight("*/*"))
                .unwrap_or(0.0);
            if best.1 < liked {
                best = (*format, liked);
            }
        }
        best.0
    }

    /// As `Content-Type` says it.
    pub fn media_type(self) -> &'static str {
        let found = FORMATS.iter().find(|(.., format)| *format == self);
        found.map_or("application/octet-stream", |(_, media_type, _)| media_type)
    }
}

/// `type/subtype;q=0.5` as the type and its weight.
fn range(text: &str) -> Option<(&str, f32)> {
    let mut parts = text.split(';').map(str::trim);
    let media_type = parts.next().filter(|it| !it.is_empty())?;
    let weight = parts.find_map(|it| it.strip_prefix("q=").or_else(|| it.strip_prefix("Q=")));
    let weight = weight.map_or(Some(1.0), |it| it.parse().ok())?;
    Some((media_type, weight))
}

/// What a model does right now, written so.
pub fn write(model: &Arc<Model>, format: LiveGraphFormat) -> Result<String> {
    let graph = LiveGraph::of(model, Instant::now());
    match format {
        LiveGraphFormat::Json => {
            serde_json::to_string(&graph).map_err(|error| Error::internal(error.to_string()))
        }
        LiveGraphFormat::Drawn(drawn) => {
            let suffix = match drawn {
                GraphFormat::Dot => "dot",
                GraphFormat::Mermaid => "mermaid",
                GraphFormat::Svg => "svg",
            };
            let link = |step: &StepView| {
                let (model, version) = (encode_path_segment(&step.model), &step.version);
                format!("/v2/models/{model}/versions/{version}/graph?format={suffix}")
            };
            Ok(draw::live(&graph, &model.config, drawn, &link))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SVG: LiveGraphFormat = LiveGraphFormat::Drawn(GraphFormat::Svg);
    const DOT: LiveGraphFormat = LiveGraphFormat::Drawn(GraphFormat::Dot);
    const MERMAID: LiveGraphFormat = LiveGraphFormat::Drawn(GraphFormat::Mermaid);

    #[test]
    fn the_best_format_is_taken() {
        for (header, expected) in [
            ("", LiveGraphFormat::Json),
            ("*/*", LiveGraphFormat::Json),
            ("application/json", LiveGraphFormat::Json),
            ("image/svg+xml", SVG),
            ("IMAGE/SVG+XML", SVG),
            ("image/*", SVG),
            ("text/*", DOT),
            ("text/vnd.mermaid", MERMAID),
            ("text/vnd.mermaid;q=0.4, text/vnd.graphviz;q=0.5", DOT),
            ("image/svg+xml, application/json;q=0.9", SVG),
            ("text/html,application/xhtml+xml,*/*;q=0.8", LiveGraphFormat::Json),
            ("*/*, application/json;q=0", SVG),
            ("application/pdf", LiveGraphFormat::Json),
            ("image/svg+xml;q=nonsense", LiveGraphFormat::Json),
            (";;,,;q=1", LiveGraphFormat::Json),
        ] {
            assert_eq!(LiveGraphFormat::accepted(header), expected, "{header}");
        }
    }

    #[test]
    fn an_unknown_format_is_told_which_there_are() {
        assert_eq!("svg".parse::<LiveGraphFormat>().unwrap(), SVG);
        assert_eq!(
            "png\n".parse::<LiveGraphFormat>().unwrap_err().to_string(),
            "unknown graph format 'png\\n', expected one of json, svg, dot, mermaid"
        );
    }
}
