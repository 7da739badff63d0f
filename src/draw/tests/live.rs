//! Checks what is said of models at work, in every format.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{ADD_SUB, ENSEMBLE, config};
use crate::*;
use troupe_base::{
    config::ModelConfig,
    error::Error,
    metrics::activity::EnsembleActivity,
    model::{Infer, Model, ModelParts},
    request::{Reply, Request},
    statistics::Timing,
    text::encode_path_segment,
};

const MUL: &str = include_str!("../../../model_repository/mul/config.pbtxt");

struct Still(Option<Arc<EnsembleActivity>>);

impl Infer for Still {
    fn infer(&self, _: Request, _: Reply) {}

    fn live(&self) -> Option<&Arc<EnsembleActivity>> {
        self.0.as_ref()
    }
}

pub(super) fn model(
    config: ModelConfig,
    steps: Vec<Arc<Model>>,
    live: Option<Arc<EnsembleActivity>>,
) -> Arc<Model> {
    let (stats, health) = (Arc::default(), Arc::default());
    let parts = ModelParts { config: Arc::new(config), version: 1, stats, health, steps };
    Arc::new(Model::new(parts, Arc::new(Still(live))))
}

fn single(text: &str) -> Arc<Model> {
    let model = model(config(text), Vec::new(), None);
    model.health.join();
    model
}

/// The ensemble of the examples after three requests, one of which failed in the second step. The
/// time of everything lies before the ring's beginning, so rates are those of one second.
fn ensemble(now: Instant) -> Arc<Model> {
    let names = ["INPUT0", "INPUT1", "OUTPUT", "sum", "difference"];
    let slots = names.iter().enumerate().map(|(slot, name)| ((*name).to_owned(), slot));
    let live = Arc::new(EnsembleActivity::new(2, slots.collect()));
    for slot in [0, 1, 3, 4] {
        (0..3).for_each(|_| live.record_tensor(slot, 16, now));
    }
    (0..2).for_each(|_| live.record_tensor(2, 1 << 20, now));
    let failure = Error::internal("<b>no</b>\n\"luck\"");
    for (index, errors) in [[None, None, None], [None, None, Some(&failure)]].iter().enumerate() {
        for error in errors {
            live.steps[index].request_started();
            live.steps[index].request_ended(*error, Duration::from_millis(10), now);
        }
    }
    live.steps[0].request_started();
    let steps = vec![single(ADD_SUB), single(MUL)];
    let timing = Timing { compute_infer: Duration::from_millis(250), ..Timing::default() };
    steps[0].stats.execution(2, &timing, now);
    steps[0].stats.execution(1, &timing, now);
    model(config(ENSEMBLE), steps, Some(live))
}

fn link(step: &StepView) -> String {
    format!("/g/{}", encode_path_segment(&step.model))
}

fn drawn(model: &Arc<Model>, format: GraphFormat, now: Instant) -> String {
    live(&LiveGraph::of(model, now), &model.config, format, &link)
}

#[test]
fn a_graph_tells_numbers_of_steps_and_tensors() {
    let now = Instant::now();
    let graph = serde_json::to_value(LiveGraph::of(&ensemble(now), now)).unwrap();
    let head = ["model", "version", "ensemble", "ready", "window_seconds"].map(|it| &graph[it]);
    assert_eq!(serde_json::json!(head), serde_json::json!(["ensemble", "1", true, true, 60]));
    let first = serde_json::json!({
        "kind": "step", "id": "step:0", "step": 0, "model": "add_sub", "version": "1",
        "ensemble": false, "ready": true, "health": "working", "instances": 1,
        "instances_ready": 1, "p50_us": 9961.471, "p99_us": 10_398.378,
        "requests_per_second": 3.0, "utilization": 0.5, "queue_depth": 0, "window_waiting": 0,
        "in_flight": 1, "requests": 3, "errors": 0, "cancelled": 0, "recent_errors": 0,
        "batch_sizes": [{"size": 1, "count": 1}, {"size": 2, "count": 1}], "last_error": null,
    });
    let mut got = graph["nodes"][2].clone();
    for key in ["p50_us", "p99_us"] {
        let (us, expected) = (got[key].as_f64().unwrap(), first[key].as_f64().unwrap());
        assert!((us - expected).abs() < 0.05 * expected, "{key}: {us}");
        got[key] = first[key].clone();
    }
    assert_eq!(got, first);
    let second = &graph["nodes"][3];
    assert_eq!((&second["health"], &second["errors"]), (&"failing".into(), &1.into()));
    assert_eq!(second["last_error"]["text"], "<b>no</b>\n\"luck\"");
    assert_eq!(second["last_error"]["seconds_ago"], 0);
    let ends = ["input:INPUT0", "input:INPUT1", "output:OUTPUT"];
    assert_eq!([0, 1, 4].map(|it| graph["nodes"][it]["id"].as_str().unwrap()), ends);
    let edge = serde_json::json!({
        "tensor": "sum", "from": "step:0", "output": "added_output", "to": "step:1",
        "input": "mul_input0", "datatype": "FP32", "shape": [4], "bytes_per_second": 48.0,
        "tensors": 3, "bytes": 48,
    });
    assert_eq!(graph["edges"][2], edge);
    assert_eq!(graph["edges"].as_array().unwrap().len(), 5);
}

#[test]
fn a_model_that_is_no_ensemble_stands_alone() {
    let now = Instant::now();
    let alone = single(ADD_SUB);
    let timing = Timing { compute_infer: Duration::from_millis(1), ..Timing::default() };
    alone.stats.success(&timing, Duration::from_millis(2));
    alone.stats.recent.ended(None, Duration::from_millis(2), now);
    let graph = LiveGraph::of(&alone, now);
    let steps: Vec<_> = graph.steps().map(|(node, it)| (node, it.numbers.requests)).collect();
    assert_eq!((graph.nodes.len(), steps), (5, vec![(2, 1)]));
    assert!(graph.edges.iter().all(|it| it.bytes_per_second.is_none() && it.bytes.is_none()));
    let svg = drawn(&alone, GraphFormat::Svg, now);
    assert!(svg.contains(">v1</text>") && !svg.contains("B/s"), "{svg}");
}

#[test]
fn health_is_the_worst_that_holds() {
    let now = Instant::now();
    let health = |model: &Arc<Model>| LiveGraph::of(model, now).steps().next().unwrap().1.health;
    let it = single(ADD_SUB);
    assert_eq!(health(&it), StepHealth::Idle);
    it.stats.recent.ended(None, Duration::ZERO, now);
    assert_eq!(health(&it), StepHealth::Working);
    it.stats.pending.fetch_add(3, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(health(&it), StepHealth::Working);
    it.stats.recent.busy_for(Duration::from_secs(1), now);
    assert_eq!(health(&it), StepHealth::Saturated);
    it.stats.recent.ended(Some(&Error::cancelled()), Duration::ZERO, now);
    assert_eq!(health(&it), StepHealth::Saturated);
    it.stats.recent.ended(Some(&Error::internal("no")), Duration::ZERO, now);
    assert_eq!(health(&it), StepHealth::Failing);
    it.health.down();
    assert_eq!(health(&it), StepHealth::Unavailable);
}

#[test]
fn mermaid_is_written_with_and_without_numbers() {
    let plain = r#"flowchart LR
  n0(["<b>INPUT0</b> FP32 #91;4#93;"])
  n1(["<b>INPUT1</b> FP32 #91;4#93;"])
  n2["<b>add#95;sub</b> step 0"]
  n3["<b>mul</b> step 1"]
  n4(["<b>OUTPUT</b> FP32 #91;4#93;"])
  n0 -->|"INPUT0"| n2
  n1 -->|"INPUT1"| n2
  n2 -->|"sum"| n3
  n2 -->|"difference"| n3
  n3 -->|"OUTPUT"| n4
"#;
    assert_eq!(mermaid(&config(ENSEMBLE)), plain);
    let now = Instant::now();
    let live = drawn(&ensemble(now), GraphFormat::Mermaid, now);
    for part in [
        "<b>add#95;sub</b> step 0 · v1<br/>p50 10.",
        " · requests 3.0/s · busy 50 %<br/>queue 0 · in flight 1 · batch 1.50 · errors 0\"]\n",
        "  n2 -->|\"sum<br/>FP32 #91;4#93; · 48 B/s\"| n3\n",
        "  n3 -->|\"OUTPUT<br/>FP32 #91;4#93; · 2.10 MB/s\"| n4\n",
        "  classDef working stroke:#16a34a\n  class n2 working\n",
        "  class n3 failing\n",
    ] {
        assert!(live.contains(part), "no {part} in {live}");
    }
}

#[test]
fn dot_and_svg_show_the_same_numbers() {
    let now = Instant::now();
    let model = ensemble(now);
    let [dot, svg] = [GraphFormat::Dot, GraphFormat::Svg].map(|it| drawn(&model, it, now));
    for part in [
        "color=\"#16a34a\"",
        "color=\"#dc2626\"",
        "<td>in flight 1</td>",
        "<td>errors 1</td>",
        "[label=\"sum\\nFP32 [4]\\n48 B/s\"]",
    ] {
        assert!(dot.contains(part), "no {part} in {dot}");
    }
    for part in [
        "<g id=\"n2\" class=\"step working\" aria-label=\"add_sub, step 0, working: p50 ",
        "<g id=\"n3\" class=\"step failing\"",
        "id=\"n3-errors\"",
        "id=\"f4\" class=\"flow flow3\"",
        "id=\"n2-bar\" width=\"50.0%\"",
        "FP32 [4] · <tspan class=\"rate\" id=\"f2-rate\">48 B/s</tspan>",
        "prefers-reduced-motion",
    ] {
        assert!(svg.contains(part), "no {part} in {svg}");
    }
    assert!(svg.starts_with("<svg ") && !svg.contains("href"), "{svg}");
}

#[test]
fn a_step_that_is_an_ensemble_leads_to_its_own_graph() {
    let now = Instant::now();
    let outer = ENSEMBLE.replacen("name: \"ensemble\"", "name: \"outer\"", 1);
    let outer = outer.replacen("model_name: \"add_sub\"", "model_name: \"a&b\"", 1);
    let nested = config(&ENSEMBLE.replacen("name: \"ensemble\"", "name: \"a&b\"", 1));
    let nested = model(nested, vec![single(ADD_SUB), single(MUL)], None);
    let live = Arc::new(EnsembleActivity::new(2, std::collections::HashMap::new()));
    let outer = model(config(&outer), vec![nested, single(MUL)], Some(live));
    for (format, part) in [
        (GraphFormat::Svg, "<a href=\"/g/a%26b\" id=\"n2\""),
        (GraphFormat::Dot, " URL=\"/g/a%26b\"]"),
        (GraphFormat::Mermaid, "\n  click n2 href \"/g/a%26b\"\n"),
    ] {
        let drawn = drawn(&outer, format, now);
        assert!(drawn.contains(part) && !drawn.contains("/g/mul"), "{drawn}");
    }
    let graph = LiveGraph::of(&outer, now);
    let part = EmbeddedPicture::of(&graph, &outer.config, &link);
    let whole = part.cards("p");
    assert!(whole.contains("<a href=\"#dn2\" id=\"pn2\""), "{whole}");
    assert!(whole.contains("<a href=\"/g/a%26b\"><text class=\"note inside end\""), "{whole}");
    assert!(!whole.contains("<style"), "{whole}");
}

#[test]
fn every_form_of_a_part_has_what_changes() {
    let now = Instant::now();
    let model = ensemble(now);
    let graph = LiveGraph::of(&model, now);
    let part = EmbeddedPicture::of(&graph, &model.config, &link);
    let mut changes = PageUpdates::default();
    part.updates("x", &mut changes);
    let changes = serde_json::to_value(&changes).unwrap();
    let ids: Vec<&str> =
        changes.as_array().unwrap().iter().map(|it| it[0].as_str().unwrap()).collect();
    let whole = part.cards("x");
    for id in &ids {
        assert!(whole.contains(&format!("id=\"{id}\"")), "no {id} in {whole}");
    }
    for (form, drawn) in [("narrow", part.narrow("x")), ("overview", part.overview("x"))] {
        for id in ["xn2", "xn3", "xn2-p50", "xn3-rate", "xf0"] {
            assert!(drawn.contains(&format!("id=\"{id}\"")), "no {id} in {form}: {drawn}");
        }
        let unknown = drawn.split("id=\"").skip(1).map(|it| it.split('"').next().unwrap());
        let unknown: Vec<&str> = unknown.filter(|it| !ids.contains(it)).collect();
        assert_eq!(unknown, [""; 0], "{form}");
    }
}

#[test]
fn strange_names_stay_text() {
    let name = "</svg><script>alert(1)</script>";
    let strange = ENSEMBLE.replace("\"sum\"", &format!("\"{name}\""));
    let strange = strange.replace("\"INPUT0\"", "\"' onload='x\\\" y\"");
    let now = Instant::now();
    let live = Arc::new(EnsembleActivity::new(2, std::collections::HashMap::new()));
    let model = model(config(&strange), vec![single(ADD_SUB), single(MUL)], Some(live));
    let graph = LiveGraph::of(&model, now);
    let part = EmbeddedPicture::of(&graph, &model.config, &link);
    for drawn in [
        drawn(&model, GraphFormat::Svg, now),
        part.cards(""),
        part.narrow(""),
        part.overview(""),
        drawn(&model, GraphFormat::Mermaid, now),
    ] {
        assert!(!drawn.contains("<script") && !drawn.contains("x\" y"), "{drawn}");
    }
    assert_eq!(encode_path_segment("a b/c?é"), "a%20b%2Fc%3F%C3%A9");
}
