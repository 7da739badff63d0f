//! Updates of a picture that is on a page already: new values for elements, by their ids.

use serde::Serialize;

use super::{live_svg, picture::EnsemblePicture};

/// An element, one of its attributes (or `text`), and the value it has now.
pub(super) type PageUpdate = (String, &'static str, String);

/// New values for parts of a page, by the ids of their elements.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PageUpdates(Vec<PageUpdate>);

impl PageUpdates {
    /// An element's text.
    pub fn text(&mut self, id: impl Into<String>, value: impl Into<String>) {
        self.0.push((id.into(), "text", value.into()));
    }

    /// What an element holds; `value` is markup.
    pub fn html(&mut self, id: impl Into<String>, value: impl Into<String>) {
        self.0.push((id.into(), "html", value.into()));
    }

    /// An attribute.
    pub fn attribute(
        &mut self,
        id: impl Into<String>,
        name: &'static str,
        value: impl Into<String>,
    ) {
        self.0.push((id.into(), name, value.into()));
    }
}

/// Everything in a picture that is not the same all the time.
pub(super) fn collect(picture: &EnsemblePicture, prefix: &str, updates: &mut PageUpdates) {
    for (index, node) in picture.nodes.iter().enumerate() {
        let Some(status) = &node.live else { continue };
        let id = format!("{prefix}n{index}");
        updates.attribute(&id, "class", live_svg::step_class(status));
        updates.attribute(&id, "aria-label", &status.title);
        updates.attribute(format!("{id}-bar"), "width", live_svg::bar_width(status));
        for figure in status.figures.iter().chain(status.more.iter().flatten()) {
            updates.text(format!("{id}-{}", figure.key), &figure.value);
        }
    }
    for (index, flow) in picture.flows.iter().enumerate() {
        let Some(status) = &flow.live else { continue };
        updates.attribute(format!("{prefix}f{index}"), "class", live_svg::flow_class(status.level));
        if !status.rate.is_empty() && !flow.to.is_empty() {
            updates.text(format!("{prefix}f{index}-rate"), &status.rate);
        }
    }
}
