//! A picture as source for Graphviz.

use super::{
    picture::{Kind, Node, Picture},
    shown::Cell,
    step::Health,
    text::{escaped, short},
};

/// The whole source.
pub(super) fn write(picture: &Picture) -> String {
    let mut lines = vec![
        format!("digraph \"{}\" {{", quoted(&picture.model)),
        "  rankdir=LR".to_owned(),
        "  node [fontname=\"Helvetica,sans-serif\" fontsize=11 shape=plain]".to_owned(),
        "  edge [fontname=\"Helvetica,sans-serif\" fontsize=10 color=\"#6b7280\"]".to_owned(),
    ];
    for (index, it) in picture.nodes.iter().enumerate() {
        lines.push(node(index, it));
    }
    for (kind, rank) in [(Kind::Input, "source"), (Kind::Output, "sink")] {
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

fn node(index: usize, it: &Node) -> String {
    let (name, note) = (escaped(&short(&it.name)), escaped(&it.note));
    let table = "table border=\"0\" cellborder=\"1\" cellspacing=\"0\" cellpadding=\"5\"";
    let rows = match it.kind {
        Kind::Step => {
            let title = format!("<tr><td colspan=\"2\"><b>{name}</b> {note}</td></tr>");
            let rows = 0..it.inputs.len().max(it.outputs.len());
            let rows = rows.map(|row| {
                let (input, output) = (cell("i", row, &it.inputs), cell("o", row, &it.outputs));
                format!("<tr>{input}{output}</tr>")
            });
            title + &rows.collect::<String>() + &numbers(it)
        }
        Kind::Input => format!("<tr><td port=\"o0\"><b>{name}</b> {note}</td></tr>"),
        Kind::Output => format!("<tr><td port=\"i0\"><b>{name}</b> {note}</td></tr>"),
    };
    let live = it.live.as_ref();
    let colour = live.and_then(|it| colour(it.health)).unwrap_or_default();
    let link = live.and_then(|it| it.link.as_ref());
    let link = link.map(|it| format!(" URL=\"{}\"", quoted(it))).unwrap_or_default();
    format!("  n{index} [label=<<{table}{colour}>{rows}</table>>{link}]")
}

fn numbers(it: &Node) -> String {
    let cells = it.live.iter().flat_map(|it| it.cells.chunks(2));
    let row = |pair: &[Cell]| {
        let cells = pair.iter().map(|it| format!("<td>{} {}</td>", it.label, escaped(&it.value)));
        format!("<tr>{}</tr>", cells.collect::<String>())
    };
    cells.map(row).collect()
}

fn colour(health: Health) -> Option<String> {
    let colour = match health {
        Health::Unavailable | Health::Failing => "#dc2626",
        Health::Saturated => "#d97706",
        Health::Working => "#16a34a",
        Health::Idle => return None,
    };
    Some(format!(" color=\"{colour}\""))
}

fn cell(side: &str, row: usize, names: &[String]) -> String {
    let align = if side == "i" { "left" } else { "right" };
    match names.get(row) {
        // Graphviz refuses an empty bold or plain text only inside markup; a space is always fine.
        Some(name) => {
            let name = escaped(&short(name));
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
