//! Pictures of ensembles: a checked config becomes DOT source or an SVG, with no other program.

mod dot;
mod layout;
mod order;
mod picture;
mod svg;
mod text;

use std::path::Path;

use self::picture::Picture;
use crate::{
    config::{self, ModelConfig, Problem},
    options::GraphFormat,
};

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
    let config = draft.finish(&config::Options::default())?;
    Ok(match format {
        GraphFormat::Dot => dot(&config),
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

#[cfg(test)]
mod tests;
