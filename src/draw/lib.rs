//! Pictures of ensembles: as their configs are, or with what happens in them right now.

mod cards;
mod changes;
mod dot;
mod form;
pub mod graph;
mod layout;
mod mermaid;
pub mod numbers;
mod order;
mod picture;
pub mod shown;
pub mod step;
mod svg;
mod text;

use std::path::Path;

pub use self::{
    changes::Changes,
    graph::Graph,
    step::{Health, Step},
    text::{encoded, escaped},
};
use self::{form::Form, picture::Picture, shown::Link};
use troupe_base::config::{self, ModelConfig, Problem};
use troupe_options::GraphFormat;

/// The picture of the model whose config.pbtxt this is, or everything wrong with the text.
///
/// `label` names the file in problems; the model's name, where it is not written, is that of the
/// folder the file lies in.
pub fn command(
    config_text: &str,
    label: &str,
    format: GraphFormat,
) -> Result<String, Vec<Problem>> {
    let mut draft = config::read_text(config_text, label)?;
    let folder = Path::new(label).parent().and_then(Path::file_name).and_then(|it| it.to_str());
    let name = folder.map_or_else(|| draft.proto.name.clone(), str::to_owned);
    draft.complete_from_directory(&name, &[])?;
    let config = draft.finish(&config::ServerFeatures::default())?;
    Ok(match format {
        GraphFormat::Dot => dot(&config),
        GraphFormat::Mermaid => mermaid(&config),
        GraphFormat::Svg => svg(&config),
    })
}

/// Source for Graphviz.
pub fn dot(config: &ModelConfig) -> String {
    dot::write(&Picture::of(config))
}

/// A picture that suits light and dark pages.
pub fn svg(config: &ModelConfig) -> String {
    svg::write(&Picture::of(config))
}

/// Source for Mermaid.
pub fn mermaid(config: &ModelConfig) -> String {
    mermaid::write(&Picture::of(config))
}

/// A model with what happens in it, in one of the formats.
pub fn live(graph: &Graph, config: &ModelConfig, format: GraphFormat, link: Link<'_>) -> String {
    let picture = Picture::live(config, graph, link);
    match format {
        GraphFormat::Dot => dot::write(&picture),
        GraphFormat::Mermaid => mermaid::write(&picture),
        GraphFormat::Svg => cards::file(&picture),
    }
}

/// A model on a page of other things.
pub struct Part(Picture);

impl Part {
    /// As `graph` has it; `link` says where the graph of a step that is an ensemble is.
    pub fn of(graph: &Graph, config: &ModelConfig, link: Link<'_>) -> Part {
        Part(Picture::live(config, graph, link))
    }

    /// The whole, in the style of `style`. The ids of its elements begin with `prefix`; a click on
    /// node 1 goes to the element `dn1`.
    pub fn whole(&self, prefix: &str) -> String {
        cards::part(&self.0, Form::Cards, prefix)
    }

    /// The same for narrow screens.
    pub fn slim(&self, prefix: &str) -> String {
        cards::part(&self.0, Form::Slim, prefix)
    }

    /// No more than names and two numbers of each step.
    pub fn glance(&self, prefix: &str) -> String {
        cards::part(&self.0, Form::Glance, prefix)
    }

    /// What in either may differ from an earlier one of the same model.
    pub fn changes(&self, prefix: &str, changes: &mut Changes) {
        changes::of(&self.0, prefix, changes);
    }
}

/// The style sheet of parts, for light and dark pages.
pub fn style() -> String {
    cards::style()
}

#[cfg(test)]
mod tests;
