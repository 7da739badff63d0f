//! What changes in a picture that is on a page already.

use serde::Serialize;

use super::{cards, picture::Picture};

/// An element, one of its attributes (or `text`), and the value it has now.
pub(super) type Change = (String, &'static str, String);

/// New values for parts of a page, by the ids of their elements.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Changes(Vec<Change>);

impl Changes {
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
pub(super) fn of(picture: &Picture, prefix: &str, changes: &mut Changes) {
    for (index, node) in picture.nodes.iter().enumerate() {
        let Some(shown) = &node.live else { continue };
        let id = format!("{prefix}n{index}");
        changes.attribute(&id, "class", cards::step_class(shown));
        changes.attribute(&id, "aria-label", &shown.title);
        changes.attribute(format!("{id}-bar"), "width", cards::bar_width(shown));
        for cell in &shown.cells {
            changes.text(format!("{id}-{}", cell.key), &cell.value);
        }
    }
    for (index, flow) in picture.flows.iter().enumerate() {
        let Some(carried) = &flow.live else { continue };
        changes.attribute(format!("{prefix}f{index}"), "class", cards::flow_class(carried.level));
        if !carried.rate.is_empty() && !flow.to.is_empty() {
            changes.text(format!("{prefix}f{index}-rate"), &carried.rate);
        }
    }
}
