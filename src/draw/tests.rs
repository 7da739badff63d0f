//! Checks what is drawn, and where.

mod live;
mod schedulers;

use std::fmt::Write;

use super::{
    layout::{NodeBox, PictureLayout},
    variant::Variant,
    *,
};

const ENSEMBLE: &str = include_str!("../../model_repository/ensemble/config.pbtxt");
const ADD_SUB: &str = include_str!("../../model_repository/add_sub/config.pbtxt");

/// One step: its model, and the ensemble's tensors it reads and writes.
type Step<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);

fn text(inputs: &[&str], steps: &[Step<'_>], outputs: &[&str]) -> String {
    let mut text = "name: \"drawn\" platform: \"ensemble\"\n".to_owned();
    let quoted = |name: &str| name.replace('\\', "\\\\").replace('"', "\\\"");
    for (side, names) in [("input", inputs), ("output", outputs)] {
        for name in names {
            let name = quoted(name);
            let _ = writeln!(text, "{side} {{ name: \"{name}\" data_type: TYPE_FP32 dims: 4 }}");
        }
    }
    text += "ensemble_scheduling {\n";
    for (model, reads, writes) in steps {
        let _ = write!(text, "step {{ model_name: \"{}\" model_version: -1", quoted(model));
        for (map, names) in [("input", reads), ("output", writes)] {
            for (index, name) in names.iter().enumerate() {
                let value = quoted(name);
                let _ = write!(text, " {map}_map {{ key: \"{map}{index}\" value: \"{value}\" }}");
            }
        }
        text += " }\n";
    }
    text + "}\n"
}

fn config(text: &str) -> ModelConfig {
    let draft = config::read_text(text, "drawn/config.pbtxt").unwrap();
    draft.finish(&config::ServerFeatures::default()).unwrap()
}

fn chain(steps: usize) -> String {
    let names: Vec<String> = (0..=steps).map(|it| format!("tensor_{it}")).collect();
    let ends: Vec<[&str; 2]> = names.windows(2).map(|it| [it[0].as_str(), &it[1]]).collect();
    let steps: Vec<Step<'_>> = ends.iter().map(|it| ("identity", &it[..1], &it[1..])).collect();
    text(&[&names[0]], &steps, &[&names[names.len() - 1]])
}

/// One model writes what many read; the last reads what they write, and the client's input.
fn diamond(branches: usize) -> String {
    let (upper, lower): (Vec<_>, Vec<_>) =
        (0..branches).map(|it| (format!("part_{it}"), format!("made_of_part_{it}"))).unzip();
    let upper: Vec<&str> = upper.iter().map(String::as_str).collect();
    let mut lower: Vec<&str> = lower.iter().map(String::as_str).collect();
    let branches = lower.clone();
    lower.push("all");
    let mut steps: Vec<Step<'_>> = vec![("split", &["all"], &upper)];
    let each = |it: usize| ("work", &upper[it..=it], &branches[it..=it]);
    steps.extend((0..branches.len()).rev().map(each));
    steps.push(("concat", &lower, &["joined"]));
    text(&["all"], &steps, &["joined"])
}

/// Tensors that skip columns, and outputs of the client in the middle.
fn skipping() -> String {
    let steps: &[Step<'_>] = &[
        ("a", &["x", "y"], &["p", "q"]),
        ("b", &["p"], &["r"]),
        ("c", &["r", "x"], &["s", "early"]),
        ("d", &["s", "q", "q"], &["t"]),
        ("e", &["t", "x", "y"], &["late"]),
    ];
    text(&["y", "x"], steps, &["late", "early", "q"])
}

/// Touching is allowed.
fn meet(left: &NodeBox, right: &NodeBox) -> bool {
    left.x + 0.01 < right.x + right.width
        && right.x + 0.01 < left.x + left.width
        && left.y + 0.01 < right.y + right.height
        && right.y + 0.01 < left.y + left.height
}

#[test]
fn nothing_overlaps_and_no_line_runs_through_a_node() {
    let texts = [ENSEMBLE.to_owned(), ADD_SUB.to_owned(), chain(50), diamond(40), skipping()];
    for (text, variant) in
        texts.iter().flat_map(|it| [(it, Variant::Ports), (it, Variant::Overview)])
    {
        let config = config(text);
        let layout = PictureLayout::of(&EnsemblePicture::of(&config), variant);
        let nodes = &layout.nodes;
        for (index, node) in nodes.iter().enumerate() {
            let inside = node.x + node.width < layout.width && node.y + node.height < layout.height;
            assert!(0.0 < node.x && 0.0 < node.y && inside, "{node:?} is outside of {text}");
            let other = nodes[..index].iter().find(|it| meet(node, it));
            assert_eq!(other, None, "{node:?} is on another node in {text}");
        }
        for line in &layout.lines {
            let level =
                |from: f64, to: f64, y| NodeBox { x: from, y, width: to - from, height: 0.0 };
            let (before, after) = (
                level(line.from.0, line.bend.0, line.from.1),
                level(line.bend.1, line.to.0, line.to.1),
            );
            let bend = level(line.bend.0, line.bend.1, f64::NEG_INFINITY);
            let bend = NodeBox { height: f64::INFINITY, y: -1e9, ..bend };
            assert!(0.0 <= before.width && 0.0 < bend.width && 0.0 <= after.width, "{line:?}");
            for part in [before, bend, after] {
                let hit = nodes.iter().find(|it| meet(&part, it));
                assert_eq!(hit, None, "{line:?} runs through a node in {text}");
            }
        }
    }
}

#[test]
fn what_goes_down_is_what_goes_right_turned() {
    for text in [ENSEMBLE.to_owned(), diamond(12), skipping()] {
        let picture = EnsemblePicture::of(&config(&text));
        for variant in [Variant::Cards, Variant::NarrowCards] {
            let layout = PictureLayout::of(&picture, variant);
            let nodes = &layout.nodes;
            for (index, node) in nodes.iter().enumerate() {
                assert_eq!(nodes[..index].iter().find(|it| meet(node, it)), None, "{text}");
                assert!(node.x + node.width < layout.width && node.y + node.height < layout.height);
            }
            assert!(layout.lines.iter().all(|it| it.from.1 < it.to.1), "{layout:?}");
            let labels: Vec<NodeBox> = layout
                .labels
                .iter()
                .map(|it| {
                    let (width, height) = variant.label(&picture, &picture.flows[it.flow]);
                    NodeBox { x: it.at.0 - width / 2.0, y: it.at.1, width, height }
                })
                .collect();
            for (index, label) in labels.iter().enumerate() {
                let mut others = labels[..index].iter().chain(nodes);
                assert_eq!(others.find(|it| meet(label, it)), None, "{label:?} in {text}");
            }
        }
    }
}

#[test]
fn few_lines_cross() {
    // The branches of the diamond are written in the opposite order of the ports they hang on.
    for (text, expected) in [(ENSEMBLE.to_owned(), 0), (chain(5), 0), (diamond(12), 0)] {
        let layout = PictureLayout::of(&EnsemblePicture::of(&config(&text)), Variant::Ports);
        let mut crossings = 0;
        for (index, one) in layout.lines.iter().enumerate() {
            let same_gap = layout.lines[..index].iter().filter(|it| it.bend == one.bend);
            let opposite =
                |it: &&layout::TensorLine| (it.from.1 - one.from.1) * (it.to.1 - one.to.1) < 0.0;
            crossings += same_gap.filter(opposite).count();
        }
        assert_eq!(crossings, expected, "{text}");
    }
}

#[test]
fn a_chain_is_a_straight_line() {
    let layout = PictureLayout::of(&EnsemblePicture::of(&config(&chain(50))), Variant::Ports);
    let bent = layout.lines.iter().find(|it| 0.01 < (it.from.1 - it.to.1).abs());
    assert_eq!(bent, None);
}

#[test]
fn pictures_show_every_name() {
    let config = config(ENSEMBLE);
    let rows: [(String, &[&str]); 2] = [
        (svg(&config), &["add_sub", "step 0", "mul", "step 1", ">sum<", ">difference<"]),
        (
            dot(&config),
            &[
                "digraph \"ensemble\" {",
                "<b>add_sub</b> step 0",
                "n0:o0:e -> n2:i0:w [label=\"INPUT0\"]",
                "n1:o0:e -> n2:i1:w [label=\"INPUT1\"]",
                "n2:o0:e -> n3:i0:w [label=\"sum\"]",
                "n2:o1:e -> n3:i1:w [label=\"difference\"]",
                "n3:o0:e -> n4:i0:w [label=\"OUTPUT\"]",
            ],
        ),
    ];
    let both = ["INPUT0", "INPUT1", "OUTPUT", "FP32 [4]", "added_output", "mul_input1"];
    for (picture, only) in &rows {
        for part in both.iter().chain(*only) {
            assert!(picture.contains(part), "no {part} in {picture}");
        }
    }
}

#[test]
fn names_are_escaped() {
    let name = "a<b>&\"c\"\\";
    let long = "x".repeat(5000);
    let steps: &[Step<'_>] = &[(name, &["in"], &[name, &long]), ("end", &[name, &long], &["out"])];
    let config = config(&text(&["in"], steps, &["out"]));
    let (svg, dot) = (svg(&config), dot(&config));
    assert!(svg.contains("a&lt;b&gt;&amp;&quot;c&quot;\\</text>"), "{svg}");
    assert!(svg.matches(&long).count() == 2 && !svg.contains("<b>"), "only in tooltips");
    assert!(dot.contains("<b>a&lt;b&gt;&amp;&quot;c&quot;\\</b>"), "{dot}");
    assert!(dot.contains("[label=\"a<b>&\\\"c\\\"\\\\\"]"), "{dot}");
    assert_eq!(troupe_base::text::escape_markup("a\u{1}b\nc"), "a\u{fffd}b\nc");
}

#[test]
fn a_pinned_version_and_an_optional_input_are_shown() {
    let pinned = ENSEMBLE.replacen("model_version: -1", "model_version: 3", 1);
    assert!(svg(&config(&pinned)).contains("step 0, v3"));
    let optional = ADD_SUB.replacen("dims: [ 4 ]", "dims: [ 4, -1 ] optional: true", 1);
    assert!(svg(&config(&optional)).contains("FP32 [4,-1], optional"));
}

#[test]
fn a_picture_is_the_same_every_time() {
    let text = skipping();
    assert_eq!(svg(&config(&text)), svg(&config(&text)));
    assert_eq!(dot(&config(&text)), dot(&config(&text)));
}

#[test]
fn the_command_draws_or_says_what_is_wrong() {
    let nameless = ENSEMBLE.replacen("name: \"ensemble\"", "", 1);
    let broken = ENSEMBLE.replacen("value: \"sum\"", "value: \"smu\"", 1);
    let label = "some/ensemble/config.pbtxt";
    let none = |_: &str| None;
    assert!(
        command(&nameless, label, GraphFormat::Svg, &none).is_ok_and(|it| it.starts_with("<svg "))
    );
    assert!(
        command(&nameless, label, GraphFormat::Mermaid, &none)
            .is_ok_and(|it| it.starts_with("flowchart "))
    );
    assert!(
        command(&nameless, label, GraphFormat::Dot, &none)
            .is_ok_and(|it| it.starts_with("digraph "))
    );
    let problems = command(&broken, label, GraphFormat::Svg, &none).unwrap_err();
    assert!(
        problems.iter().all(|it| it.position.file == label && it.position.line != 0),
        "{problems:?}"
    );
    assert!(problems.iter().any(|it| it.text.contains("'sum'")), "{problems:?}");
}
