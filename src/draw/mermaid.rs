//! A picture as source for Mermaid, which many pages and editors draw.

use super::{
    picture::{EnsemblePicture, NodeKind, PictureNode},
    text_width::short,
};

/// Classes of steps by their health, as Mermaid styles them.
const CLASSES: &[(&str, &str)] = &[
    ("working", "stroke:#16a34a"),
    ("saturated", "stroke:#d97706,stroke-width:2px"),
    ("failing", "stroke:#dc2626,stroke-width:2px"),
    ("unavailable", "stroke:#dc2626,stroke-dasharray:5 4"),
];

/// The whole source.
pub(super) fn write(picture: &EnsemblePicture) -> String {
    let mut lines = vec!["flowchart LR".to_owned()];
    for (index, it) in picture.nodes.iter().enumerate() {
        lines.push(node(index, it));
    }
    for flow in &picture.flows {
        let mut label = quoted(&short(&flow.tensor));
        if let Some(live) = &flow.live {
            let note = [&*live.note, &*live.rate].into_iter().filter(|it| !it.is_empty());
            let note: Vec<String> = note.map(quoted).collect();
            label = format!("{label}<br/>{}", note.join(" · "));
        }
        for to in &flow.to {
            lines.push(format!("  n{} -->|\"{label}\"| n{}", flow.from.of, to.of));
        }
    }
    for (class, style) in CLASSES {
        let is_it =
            |it: &PictureNode| it.live.as_ref().is_some_and(|it| it.health.class() == *class);
        let nodes = picture.nodes.iter().enumerate().filter(|(_, it)| is_it(it));
        let nodes: Vec<String> = nodes.map(|(index, _)| format!("n{index}")).collect();
        if !nodes.is_empty() {
            lines.push(format!("  classDef {class} {style}"));
            lines.push(format!("  class {} {class}", nodes.join(",")));
        }
    }
    lines.join("\n") + "\n"
}

fn node(index: usize, it: &PictureNode) -> String {
    let mut label = format!("<b>{}</b> {}", quoted(&short(&it.name)), quoted(&it.note));
    let facts: String =
        it.facts.iter().map(|fact| format!("<br/>{}", quoted(&short(fact)))).collect();
    let Some(live) = &it.live else {
        label += &facts;
        return match it.kind {
            NodeKind::Step => format!("  n{index}[\"{label}\"]"),
            NodeKind::Input | NodeKind::Output => format!("  n{index}([\"{label}\"])"),
        };
    };
    let more = live.more.iter().map(Vec::as_slice);
    for row in live.figures.chunks(4).chain(more) {
        let figures: Vec<String> =
            row.iter().map(|figure| format!("{} {}", figure.label, figure.value)).collect();
        label = format!("{label}<br/>{}", figures.join(" · "));
    }
    let line = format!("  n{index}[\"{label}{facts}\"]");
    match &live.link {
        Some(link) => format!("{line}\n  click n{index} href \"{}\"", quoted(link)),
        None => line,
    }
}

/// Text between double quotes: whatever Mermaid or HTML would read otherwise is a number.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            letter if letter.is_control() => out.push('\u{fffd}'),
            '"' | '#' | '<' | '>' | '&' | ';' | '`' | '\\' | '|' | '*' | '_' | '~' | '[' | ']' => {
                out += &format!("#{};", u32::from(letter));
            }
            other => out.push(other),
        }
    }
    out
}
