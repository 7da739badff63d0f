//! The picture of a model at work as SVG: cards from top to bottom, or names from left to right.

use std::fmt::Write;

use super::{
    layout::{NodeBox, PictureLayout, TensorLabel, TensorLine},
    picture::{EnsemblePicture, NodeKind, PictureNode, TensorPath},
    status::LiveStep,
    svg::{self, Colour},
    variant::{CARD_HEADER, CELL, PAD, Variant, is_inner},
};
use troupe_base::text::escape_markup;

const COLOURS: &[Colour] = &[
    (".card", "fill", "#ffffff", "#1b2027"),
    (".card", "stroke", "#d3dae3", "#37404c"),
    (".value", "fill", "#111827", "#f3f4f6"),
    (".key", "fill", "#697384", "#8f9aab"),
    (".tag", "fill", "#ffffff", "#1b2027"),
    (".tag", "stroke", "#dfe4ec", "#2f3742"),
    (".label", "fill", "#334155", "#cbd5e1"),
    (".line", "stroke", "#c3cbd7", "#465162"),
    (".arrow", "fill", "#94a0b1", "#728097"),
    (".pulse", "stroke", "#2563eb", "#7aa7ff"),
    (".track", "fill", "#e8ecf1", "#2a313b"),
    (".bar", "fill", "#2563eb", "#7aa7ff"),
    (".dot", "fill", "#a3adbb", "#5b6676"),
    (".working .dot", "fill", "#16a34a", "#4ade80"),
    (".saturated .dot", "fill", "#d97706", "#fbbf24"),
    (".saturated .bar", "fill", "#d97706", "#fbbf24"),
    (".saturated .card", "stroke", "#e0a458", "#a8782a"),
    (".failing .dot", "fill", "#dc2626", "#f87171"),
    (".failing .card", "stroke", "#e58a8a", "#b04a4a"),
    (".failing .errors", "fill", "#c81e1e", "#fca5a5"),
    (".unavailable .dot", "fill", "#dc2626", "#f87171"),
    (".unavailable .card", "stroke", "#dc2626", "#f87171"),
    (".in", "fill", "#eef6f1", "#15271d"),
    (".in", "stroke", "#9fcfb1", "#2f6b48"),
    (".out", "fill", "#fcf4e6", "#2b2212"),
    (".out", "stroke", "#e0bd82", "#7d602c"),
];

/// Beside the colours; what moves stands still for those who asked for it.
const RULES: &str = ".pulse{fill:none;stroke-linecap:round;stroke-dasharray:1 15;opacity:0}\
    .card,.tag{stroke-width:1}.key{font-size:10px}.value{font-size:13px;font-weight:600;\
    font-variant-numeric:tabular-nums}.rate{font-variant-numeric:tabular-nums}\
    .unavailable .card{stroke-dasharray:5 4}\
    .flow1 .pulse{stroke-width:2;opacity:.45;animation:flow 3s linear infinite}\
    .flow2 .pulse{stroke-width:2.5;opacity:.6;animation:flow 2s linear infinite}\
    .flow3 .pulse{stroke-width:3;opacity:.75;animation:flow 1.3s linear infinite}\
    .flow4 .pulse{stroke-width:3.6;opacity:.9;animation:flow .9s linear infinite}\
    .flow5 .pulse{stroke-width:4.4;opacity:1;animation:flow .6s linear infinite}\
    @keyframes flow{to{stroke-dashoffset:-16}}\
    @media(prefers-reduced-motion:reduce){.pulse{animation:none!important}}";

/// What moves on a way has this distance.
const DASHES: f64 = 16.0;

/// Everything that a page which holds pictures needs in its style sheet.
pub(super) fn style() -> String {
    svg::style(COLOURS, RULES)
}

/// A picture that stands alone.
pub(super) fn file(picture: &EnsemblePicture) -> String {
    let layout = PictureLayout::of(picture, Variant::Cards);
    let (width, height) = (layout.width.ceil(), layout.height.ceil());
    let page = format!("<rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"10\"/>\n");
    let style = format!("<style>\n{}</style>\n", style());
    let body = body(picture, &layout, Variant::Cards, None);
    let head = head(picture, &layout, "role=\"img\"");
    format!("{head}{style}{page}{body}</svg>\n")
}

/// A picture as a part of a page: ids begin with `prefix`, and the style is the page's.
pub(super) fn part(picture: &EnsemblePicture, variant: Variant, prefix: &str) -> String {
    let layout = PictureLayout::of(picture, variant);
    let size = match layout.width {
        _ if variant == Variant::NarrowCards => "slim",
        it if it <= 420.0 => "narrow",
        it if it <= 900.0 => "medium",
        _ => "wide",
    };
    let head = head(picture, &layout, &format!("role=\"group\" class=\"graph {size}\""));
    format!("{head}{}</svg>\n", body(picture, &layout, variant, Some(prefix)))
}

fn head(picture: &EnsemblePicture, layout: &PictureLayout, attributes: &str) -> String {
    let (width, height) = (layout.width.ceil(), layout.height.ceil());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" {attributes}>\n<title>{}</title>\n",
        escape_markup(&picture.model),
    )
}

/// `prefix` is that of the page which the picture is a part of.
fn body(
    picture: &EnsemblePicture,
    layout: &PictureLayout,
    variant: Variant,
    page: Option<&str>,
) -> String {
    let mut out = String::new();
    let prefix = page.unwrap_or("");
    for (index, flow) in picture.flows.iter().enumerate() {
        let level = flow.live.as_ref().map_or(0, |it| it.level);
        let _ = writeln!(out, "<g id=\"{prefix}f{index}\" class=\"{}\">", flow_class(level));
        let _ = writeln!(out, "<title>{}</title>", escape_markup(&flow_title(flow)));
        for line in layout.lines.iter().filter(|it| it.flow == index) {
            out += &way(line, variant);
        }
        out += "</g>\n";
    }
    for label in &layout.labels {
        out += &tag(picture, variant, label, prefix);
    }
    for (index, (node, place)) in picture.nodes.iter().zip(&layout.nodes).enumerate() {
        match (&node.live, variant) {
            (Some(status), Variant::Overview) => {
                overview(&mut out, node, status, place, &format!("{prefix}n{index}"));
            }
            (Some(status), _) => {
                let id = format!("{prefix}n{index}");
                let inside = status.link.as_deref().map(escape_markup);
                let place_on_page = page.map(|_| format!("#dn{index}"));
                let link = place_on_page.or_else(|| inside.clone());
                open(&mut out, status, &id, link.as_deref());
                card(&mut out, node, status, place, variant, &id);
                out += if link.is_some() { "</a>\n" } else { "</g>\n" };
                if variant == Variant::Cards {
                    note(&mut out, node, place, inside.as_deref());
                }
            }
            (None, _) => client(&mut out, node, place, variant),
        }
    }
    out
}

/// The classes of a step's node.
pub(super) fn step_class(status: &LiveStep) -> String {
    format!("step {}", status.health.class())
}

/// The classes of a tensor's way.
pub(super) fn flow_class(level: usize) -> String {
    format!("flow flow{level}")
}

/// How long the bar of a step is, as a part of the whole.
pub(super) fn bar_width(status: &LiveStep) -> String {
    format!("{:.1}%", status.busy * 100.0)
}

fn flow_title(flow: &TensorPath) -> String {
    match &flow.live {
        Some(it) => format!("{}: {}", flow.tensor, it.note),
        None => flow.tensor.clone(),
    }
}

fn way(line: &TensorLine, variant: Variant) -> String {
    let TensorLine { from, to, bend, arrives, .. } = *line;
    let (middle, tip) = ((bend.0 + bend.1) / 2.0, if arrives { 7.0 } else { 0.0 });
    let (d, arrow, across) = if variant.is_down() {
        let d = format!(
            "M{:.1} {:.1}V{:.1}C{:.1} {middle:.1} {:.1} {middle:.1} {:.1} {:.1}V{:.1}",
            from.0,
            from.1,
            bend.0,
            from.0,
            to.0,
            to.0,
            bend.1,
            to.1 - tip
        );
        (d, format!("M{:.1} {:.1}l4 8l4-8z", to.0 - 4.0, to.1 - 8.0), to.0 - from.0)
    } else {
        let d = svg::level_way(line, tip);
        (d, format!("M{:.1} {:.1}l8 4l-8 4z", to.0 - 8.0, to.1 - 4.0), to.1 - from.1)
    };
    // Whole dashes on every piece of a way: they pass from one to the next without a break.
    let straight = if variant.is_down() { to.1 - from.1 } else { to.0 - from.0 };
    let dashes = (straight.hypot(across) / DASHES).round().max(1.0) * DASHES;
    let mut out = format!(
        "<path class=\"line\" d=\"{d}\"/><path class=\"pulse\" pathLength=\"{dashes}\" d=\"{d}\"/>\n"
    );
    if arrives {
        let _ = writeln!(out, "<path class=\"arrow\" d=\"{arrow}\"/>");
    }
    out
}

fn tag(picture: &EnsemblePicture, variant: Variant, label: &TensorLabel, prefix: &str) -> String {
    let TensorLabel { flow: index, at: (x, y) } = *label;
    let flow = &picture.flows[index];
    let (wide, high) = variant.label(picture, flow);
    let mut out = format!(
        "<rect class=\"tag\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{high:.1}\" \
         rx=\"9\"/>\n",
        x - wide / 2.0
    );
    let rate = flow.live.as_ref().map_or("", |it| &it.rate);
    let rate = format!("<tspan class=\"rate\" id=\"{prefix}f{index}-rate\">{rate}</tspan>");
    let mut line = |class, below, inner: &str| {
        let y = y + below;
        let _ = writeln!(
            out,
            "<text class=\"{class} middle\" x=\"{x:.1}\" y=\"{y:.1}\">{inner}</text>"
        );
    };
    if is_inner(picture, flow) {
        let note = flow
            .live
            .as_ref()
            .filter(|_| variant != Variant::NarrowCards)
            .map_or("", |it| &it.note);
        line("label", 14.5, &escape_markup(&variant.label_name(flow)));
        let between = if note.is_empty() { "" } else { " · " };
        line("note", 28.5, &format!("{}{between}{rate}", escape_markup(note)));
    } else {
        line("note", 14.0, &rate);
    }
    out
}

fn card(
    out: &mut String,
    node: &PictureNode,
    status: &LiveStep,
    place: &NodeBox,
    variant: Variant,
    id: &str,
) {
    let NodeBox { x, y, width: wide, height } = *place;
    svg::frame(out, place, "card", 9.0);
    let title = y + CARD_HEADER / 2.0 + 5.0;
    let _ = writeln!(
        out,
        "<circle class=\"dot\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4.5\"/>",
        x + PAD + 5.0,
        y + CARD_HEADER / 2.0 + 0.5
    );
    *out += &svg::text(x + PAD + 16.0, title, "title", &node.name);
    let columns = variant.columns();
    let column = (wide - PAD) / columns as f64;
    let rows = variant.figures(status);
    let cells = rows.iter().enumerate();
    let cells =
        cells.flat_map(|(row, figures)| figures.iter().enumerate().map(move |it| (row, it)));
    for (row, (cell, figure)) in cells {
        let left = x + PAD + column * cell as f64;
        let top = y + CARD_HEADER + CELL.1 * row as f64;
        *out += &svg::text(left, top + 10.0, "key", figure.label);
        let _ = writeln!(
            out,
            "<text class=\"value {0}\" id=\"{id}-{0}\" x=\"{left:.1}\" y=\"{1:.1}\">{2}</text>",
            figure.key,
            top + 26.0,
            figure.value
        );
    }
    if variant == Variant::Cards {
        svg::facts(out, node, x + PAD, y + CARD_HEADER + CELL.1 * rows.len() as f64);
    }
    let (bar, wide) = (y + height - 8.0, wide - 2.0 * PAD);
    let _ = writeln!(
        out,
        "<svg x=\"{:.1}\" y=\"{bar:.1}\" width=\"{wide:.1}\" height=\"3\">\
         <rect class=\"track\" width=\"100%\" height=\"3\" rx=\"1.5\"/>\
         <rect class=\"bar\" id=\"{id}-bar\" width=\"{}\" height=\"3\" rx=\"1.5\"/></svg>",
        x + PAD,
        bar_width(status)
    );
}

fn overview(out: &mut String, node: &PictureNode, status: &LiveStep, place: &NodeBox, id: &str) {
    let NodeBox { x, y, .. } = *place;
    let _ = writeln!(out, "<g id=\"{id}\" class=\"{}\">", step_class(status));
    svg::frame(out, place, "card", 9.0);
    let (left, middle) = (x + PAD + 4.0, y + 18.0);
    let _ = writeln!(
        out,
        "<circle class=\"dot\" cx=\"{left:.1}\" cy=\"{:.1}\" r=\"4\"/>",
        middle - 4.0
    );
    *out += &svg::text(left + 10.0, middle, "title", &node.name);
    let [p50, _, rate, ..] = &status.figures;
    let _ = writeln!(
        out,
        "<text class=\"note\" x=\"{:.1}\" y=\"{:.1}\"><tspan id=\"{id}-p50\">{}</tspan> · \
         <tspan id=\"{id}-rate\">{}</tspan></text>\n</g>",
        left + 10.0,
        y + 34.0,
        p50.value,
        rate.value
    );
}

/// A node that can be gone to is a link.
fn open(out: &mut String, status: &LiveStep, id: &str, link: Option<&str>) {
    let tag = match link {
        Some(link) => format!("a href=\"{link}\""),
        None => "g".to_owned(),
    };
    let (class, title) = (step_class(status), escape_markup(&status.title));
    let _ = writeln!(out, "<{tag} id=\"{id}\" class=\"{class}\" aria-label=\"{title}\">");
}

/// Number and version of a step; they lead to the step's own graph, where it has one.
fn note(out: &mut String, node: &PictureNode, place: &NodeBox, inside: Option<&str>) {
    let (x, y) = (place.x + place.width - PAD - 2.0, place.y + CARD_HEADER / 2.0 + 4.5);
    match inside {
        Some(link) => {
            let note = svg::text(x, y, "note inside end", &format!("{} ↗", node.note));
            let _ = write!(out, "<a href=\"{link}\">{note}</a>");
        }
        None => *out += &svg::text(x, y, "note end", &node.note),
    }
}

fn client(out: &mut String, node: &PictureNode, place: &NodeBox, variant: Variant) {
    let class = if node.kind == NodeKind::Input { "in" } else { "out" };
    let middle = place.x + place.width / 2.0;
    if variant.is_down() {
        svg::client(out, node, place, class);
        return;
    }
    svg::frame(out, place, class, place.height / 2.0);
    *out += &svg::text(middle, place.y + 17.0, "port middle", &node.name);
}
