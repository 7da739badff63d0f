//! A picture as source for Graphviz.

use super::{
    picture::{EnsemblePicture, NodeKind, PictureNode},
    status::Figure,
    step::StepHealth,
    text_width::short,
};
use troupe_base::text::escape_markup;

/// The whole source.
pub(super) fn write(picture: &EnsemblePicture) -> String {
    let mut lines = vec![
        format!("digraph \"{}\" {{", quoted(&picture.model)),
        "  rankdir=LR".to_owned(),
        "  node [fontname=\"Helvetica,sans-serif\" fontsize=11 shape=plain]".to_owned(),
        "  edge [fontname=\"Helvetica,sans-serif\" fontsize=10 color=\"#6b7280\"]".to_owned(),
    ];
    for (index, it) in picture.nodes.iter().enumerate() {
        lines.push(node(index, it));
    }
    for (kind, rank) in [(NodeKind::Input, "source"), (NodeKind::Output, "sink")] {
        let nodes = picture.nodes.iter().enumerate().filter(|(_, it)| it.kind == kind);
        let names: Vec<_> = nodes.map(|(index, _)| format!("n{index};")).collect();
        if !names.is_empty() {
            lines.push(format!("  {{ rank={rank}; {} }}", names.join(" ")));
        }
    }
    for flow in &picture.flows {
        let (from, mut label) = (flow.from, quoted(&short(&flow.tensor)));
        if let Some(live) = &flow.live {
            label += &format!("\\n{}", quoted(&live.note));
            if !live.rate.is_empty() {
                label += &format!("\\n{}", live.rate);
            }
        }
        for to in &flow.to {
            lines.push(format!(
                "  n{}:o{}:e -> n{}:i{}:w [label=\"{label}\"]",
                from.of, from.row, to.of, to.row
            ));
        }
    }
    lines.push("}\n".to_owned());
    lines.join("\n")
}

fn node(index: usize, it: &PictureNode) -> String {
    let (name, note) = (escape_markup(&short(&it.name)), escape_markup(&it.note));
    let table = "table border=\"0\" cellborder=\"1\" cellspacing=\"0\" cellpadding=\"5\"";
    let rows = match it.kind {
        NodeKind::Step => {
            let title = format!("<tr><td colspan=\"2\"><b>{name}</b> {note}</td></tr>");
            let rows = 0..it.inputs.len().max(it.outputs.len());
            let rows = rows.map(|row| {
                let (input, output) = (cell("i", row, &it.inputs), cell("o", row, &it.outputs));
                format!("<tr>{input}{output}</tr>")
            });
            title + &rows.collect::<String>() + &numbers(it) + &facts(it)
        }
        NodeKind::Input => format!("<tr><td port=\"o0\"><b>{name}</b> {note}</td></tr>"),
        NodeKind::Output => format!("<tr><td port=\"i0\"><b>{name}</b> {note}</td></tr>"),
    };
    let live = it.live.as_ref();
    let colour = live.and_then(|it| colour(it.health)).unwrap_or_default();
    let link = live.and_then(|it| it.link.as_ref());
    let link = link.map(|it| format!(" URL=\"{}\"", quoted(it))).unwrap_or_default();
    format!("  n{index} [label=<<{table}{colour}>{rows}</table>>{link}]")
}

fn numbers(it: &PictureNode) -> String {
    let more = it.live.iter().flat_map(|status| status.more.iter());
    let figures = it.live.iter().map(|status| &status.figures[..]).chain(more.map(Vec::as_slice));
    let figures = figures.flat_map(|row| row.chunks(2));
    let row = |pair: &[Figure]| {
        let cells = pair
            .iter()
            .map(|figure| format!("<td>{} {}</td>", figure.label, escape_markup(&figure.value)));
        format!("<tr>{}</tr>", cells.collect::<String>())
    };
    figures.map(row).collect()
}

fn facts(it: &PictureNode) -> String {
    let row = |fact: &String| {
        let fact = escape_markup(&short(fact));
        format!("<tr><td colspan=\"2\" align=\"left\">{fact}</td></tr>")
    };
    it.facts.iter().map(row).collect()
}

fn colour(health: StepHealth) -> Option<String> {
    let colour = match health {
        StepHealth::Unavailable | StepHealth::Failing => "#dc2626",
        StepHealth::Saturated => "#d97706",
        StepHealth::Working => "#16a34a",
        StepHealth::Idle => return None,
    };
    Some(format!(" color=\"{colour}\""))
}

fn cell(side: &str, row: usize, names: &[String]) -> String {
    let align = if side == "i" { "left" } else { "right" };
    match names.get(row) {
        // Graphviz refuses an empty bold or plain text only inside markup; a space is always fine.
        Some(name) => {
            let name = escape_markup(&short(name));
            format!("<td port=\"{side}{row}\" align=\"{align}\">{name} </td>")
        }
        None => "<td> </td>".to_owned(),
    }
}

/// Text as DOT takes it between double quotes.
fn quoted(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
    text.chars().map(plain).collect::<String>().replace('\\', "\\\\").replace('"', "\\\"")
}
