//! A picture as SVG: plain shapes and one style sheet with a light and a dark side.

use std::fmt::Write;

use super::{
    layout::{NodeBox, PictureLayout, TensorLabel, TensorLine},
    picture::{EnsemblePicture, NodeKind, PictureNode},
    text_width::short,
    variant::{FACT, HEADER, PAD, ROW, SMALL, TITLE, Variant, below},
};
use troupe_base::text::escape_markup;

/// One thing's colours: which class, which property, by day and by night.
pub(super) type Colour = (&'static str, &'static str, &'static str, &'static str);

const COLOURS: &[Colour] = &[
    (".page", "fill", "#ffffff", "#14171c"),
    (".title", "fill", "#111827", "#f3f4f6"),
    (".port", "fill", "#374151", "#d1d5db"),
    (".note", "fill", "#5b6472", "#a3acba"),
    (".label", "fill", "#1d4ed8", "#93b4ff"),
    (".line", "stroke", "#6b7a90", "#8593a8"),
    (".arrow", "fill", "#6b7a90", "#8593a8"),
    (".node", "fill", "#f8fafc", "#1e232b"),
    (".node", "stroke", "#94a3b8", "#566274"),
    (".head", "fill", "#e2e8f5", "#2c3543"),
    (".in", "fill", "#e4f5ea", "#163323"),
    (".in", "stroke", "#3f9a63", "#4fae76"),
    (".out", "fill", "#fdf0d9", "#3a2c12"),
    (".out", "stroke", "#c08a2b", "#cf9c45"),
];

/// The whole file.
pub(super) fn write(picture: &EnsemblePicture) -> String {
    let layout = PictureLayout::of(picture, Variant::Ports);
    let (width, height) = (layout.width.ceil(), layout.height.ceil());
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{}</title>\n{}\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"10\"/>\n",
        escape_markup(&picture.model),
        format_args!("<style>\n{}</style>\n", style(&[], "")),
    );
    for line in &layout.lines {
        out += &way(line, &picture.flows[line.flow].tensor);
    }
    for label in &layout.labels {
        out += &name(label, &picture.flows[label.flow].tensor);
    }
    for (node, place) in picture.nodes.iter().zip(&layout.nodes) {
        match node.kind {
            NodeKind::Step => step(&mut out, node, place),
            NodeKind::Input => client(&mut out, node, place, "in"),
            NodeKind::Output => client(&mut out, node, place, "out"),
        }
    }
    out + "</svg>\n"
}

/// The rules of a style sheet, these among them.
pub(super) fn style(more: &[Colour], rules: &str) -> String {
    let sides = |side: fn(&Colour) -> &'static str| {
        let rule = |it: &Colour| format!("{}{{{}:{}}}", it.0, it.1, side(it));
        COLOURS.iter().chain(more).map(rule).collect::<String>()
    };
    let (day, night) = (sides(|it| it.2), sides(|it| it.3));
    format!(
        "text{{font:{SMALL}px system-ui,\"Segoe UI\",Helvetica,Arial,sans-serif}}\
         .title{{font-size:{TITLE}px;font-weight:600}}.end{{text-anchor:end}}\
         .middle{{text-anchor:middle}}.line{{fill:none;stroke-width:1.4}}{rules}\n{day}\n\
         @media (prefers-color-scheme:dark){{{night}}}\n"
    )
}

/// A way from left to right, `tip` shorter than it is.
pub(super) fn level_way(line: &TensorLine, tip: f64) -> String {
    let TensorLine { from, to, bend, .. } = *line;
    let middle = (bend.0 + bend.1) / 2.0;
    format!(
        "M{:.1} {:.1}H{:.1}C{middle:.1} {:.1} {middle:.1} {:.1} {:.1} {:.1}H{:.1}",
        from.0,
        from.1,
        bend.0,
        from.1,
        to.1,
        bend.1,
        to.1,
        to.0 - tip,
    )
}

fn way(line: &TensorLine, tensor: &str) -> String {
    let TensorLine { to, arrives, .. } = *line;
    let tip = if arrives { 7.0 } else { 0.0 };
    let mut out = format!(
        "<path class=\"line\" d=\"{}\"><title>{}</title></path>\n",
        level_way(line, tip),
        escape_markup(tensor),
    );
    if arrives {
        let (x, y) = (to.0 - 8.0, to.1 - 4.0);
        let _ = writeln!(out, "<path class=\"arrow\" d=\"M{x:.1} {y:.1}l8 4l-8 4z\"/>");
    }
    out
}

fn name(label: &TensorLabel, tensor: &str) -> String {
    text(label.at.0, label.at.1, "label", tensor)
}

fn step(out: &mut String, node: &PictureNode, place: &NodeBox) {
    let NodeBox { x, y, width, height } = *place;
    let right = x + width;
    frame(out, place, "node", 6.0);
    // The header has the frame's upper corners, and none below.
    let _ = writeln!(
        out,
        "<path class=\"head\" d=\"M{:.1} {:.1}v{:.1}q0-5 5-5h{:.1}q5 0 5 5v{:.1}z\"/>",
        x + 0.7,
        y + HEADER,
        -(HEADER - 5.7),
        width - 11.4,
        HEADER - 5.7,
    );
    debug_assert!(HEADER + ROW <= height || node.inputs.is_empty() && node.outputs.is_empty());
    let title = y + HEADER / 2.0;
    *out += &text(x + PAD, title + 4.5, "title", &node.name);
    *out += &text(right - PAD, title + 4.0, "note end", &node.note);
    for (row, name) in node.inputs.iter().enumerate() {
        *out += &text(x + PAD, y + below(node, row) + 4.0, "port", name);
    }
    for (row, name) in node.outputs.iter().enumerate() {
        *out += &text(right - PAD, y + below(node, row) + 4.0, "port end", name);
    }
    let rows = node.inputs.len().max(node.outputs.len());
    facts(out, node, x + PAD, y + HEADER + ROW * rows as f64 + 2.0);
}

/// What the config of a step says, a line each, from this place down.
pub(super) fn facts(out: &mut String, node: &PictureNode, x: f64, y: f64) {
    for (line, fact) in node.facts.iter().enumerate() {
        *out += &text(x, y + FACT * (line as f64 + 0.75), "note fact", fact);
    }
}

/// An input or an output of the client.
pub(super) fn client(out: &mut String, node: &PictureNode, place: &NodeBox, class: &str) {
    frame(out, place, class, place.height / 2.0);
    let middle = place.x + place.width / 2.0;
    *out += &text(middle, place.y + 18.0, "title middle", &node.name);
    *out += &text(middle, place.y + 33.0, "note middle", &node.note);
}

/// A box with round corners.
pub(super) fn frame(out: &mut String, place: &NodeBox, class: &str, round: f64) {
    let NodeBox { x, y, width, height } = place;
    let _ = writeln!(
        out,
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
         height=\"{height:.1}\" rx=\"{round}\"/>"
    );
}

/// A text, with a tooltip where it had to be cut.
pub(super) fn text(x: f64, y: f64, class: &str, text: &str) -> String {
    let shown = short(text);
    let whole = match shown == text {
        true => String::new(),
        false => format!("<title>{}</title>", escape_markup(text)),
    };
    let shown = escape_markup(&shown);
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{shown}{whole}</text>\n")
}
