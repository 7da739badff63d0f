//! Pictures of ensembles: as their configs are, or with what happens in them right now.

mod crossings;
mod dot;
pub mod graph;
mod layout;
mod live_picture;
mod live_svg;
mod mermaid;
pub mod numbers;
mod page_updates;
mod picture;
mod scheduling;
pub mod status;
pub mod step;
mod svg;
mod text_width;
mod variant;

use std::path::Path;

pub use self::{
    graph::LiveGraph,
    page_updates::PageUpdates,
    step::{StepHealth, StepView},
};
use self::{
    live_picture::live_picture, picture::EnsemblePicture, status::GraphLink, variant::Variant,
};
use troupe_base::config::{self, ModelConfig, Problem};
use troupe_options::GraphFormat;

/// The picture of the model whose config.pbtxt this is, or everything wrong with the text.
///
/// `label` names the file in problems; the model's name, where it is not written, is that of the
/// folder the file lies in. `text_of_step` has the config.pbtxt of a step's model, if there is one:
/// what is wrong with those is nobody's problem here.
pub fn command(
    config_text: &str,
    label: &str,
    format: GraphFormat,
    text_of_step: &dyn Fn(&str) -> Option<String>,
) -> Result<String, Vec<Problem>> {
    let config = read(config_text, label)?;
    let mut picture = EnsemblePicture::of(&config);
    if config.is_ensemble() {
        picture.tell_scheduling(&|model| {
            let text = text_of_step(model)?;
            Some(scheduling::facts(&read(&text, &format!("{model}/config.pbtxt")).ok()?))
        });
    }
    Ok(match format {
        GraphFormat::Dot => dot::write(&picture),
        GraphFormat::Mermaid => mermaid::write(&picture),
        GraphFormat::Svg => svg::write(&picture),
    })
}

fn read(config_text: &str, label: &str) -> Result<ModelConfig, Vec<Problem>> {
    let mut draft = config::read_text(config_text, label)?;
    let folder = Path::new(label).parent().and_then(Path::file_name).and_then(|it| it.to_str());
    let name = folder.map_or_else(|| draft.proto.name.clone(), str::to_owned);
    draft.complete_from_directory(&name, &[])?;
    draft.finish(&config::ServerFeatures::default())
}

/// Source for Graphviz.
pub fn dot(config: &ModelConfig) -> String {
    dot::write(&EnsemblePicture::of(config))
}

/// A picture that suits light and dark pages.
pub fn svg(config: &ModelConfig) -> String {
    svg::write(&EnsemblePicture::of(config))
}

/// Source for Mermaid.
pub fn mermaid(config: &ModelConfig) -> String {
    mermaid::write(&EnsemblePicture::of(config))
}

/// A model with what happens in it, in one of the formats.
pub fn live(
    graph: &LiveGraph,
    config: &ModelConfig,
    format: GraphFormat,
    link: GraphLink<'_>,
) -> String {
    let picture = live_picture(config, graph, link);
    match format {
        GraphFormat::Dot => dot::write(&picture),
        GraphFormat::Mermaid => mermaid::write(&picture),
        GraphFormat::Svg => live_svg::file(&picture),
    }
}

/// The picture of a model at work, on a page of other things.
pub struct EmbeddedPicture(EnsemblePicture);

impl EmbeddedPicture {
    /// As `graph` has it; `link` says where the graph of a step that is an ensemble is.
    pub fn of(graph: &LiveGraph, config: &ModelConfig, link: GraphLink<'_>) -> EmbeddedPicture {
        EmbeddedPicture(live_picture(config, graph, link))
    }

    /// The whole, in the style of `style`. The ids of its elements begin with `prefix`; a click on
    /// node 1 goes to the element `dn1`.
    pub fn cards(&self, prefix: &str) -> String {
        live_svg::part(&self.0, Variant::Cards, prefix)
    }

    /// The same for narrow screens.
    pub fn narrow(&self, prefix: &str) -> String {
        live_svg::part(&self.0, Variant::NarrowCards, prefix)
    }

    /// No more than names and two numbers of each step.
    pub fn overview(&self, prefix: &str) -> String {
        live_svg::part(&self.0, Variant::Overview, prefix)
    }

    /// What in either may differ from an earlier one of the same model.
    pub fn updates(&self, prefix: &str, updates: &mut PageUpdates) {
        page_updates::collect(&self.0, prefix, updates);
    }
}

/// The style sheet of parts, for light and dark pages.
pub fn style() -> String {
    live_svg::style()
}

#[cfg(test)]
mod tests;
