//! A real Prometheus that reads the metrics, and the dashboard for Grafana that asks for them.

use std::{collections::BTreeSet, fs, process::Command};

use serde_json::Value;

use crate::support::{
    Repository, Server, ensemble,
    http::floats,
    models::{delay, execute},
    prometheus::{Prometheus, has, lints},
};

const FLOATS: &str = "x:FP32[4] -> y:FP32[4]";
const DASHBOARD: &str = "pipelines/monitoring/grafana/dashboards/troupe.json";

/// Shows everything there is to show.
fn server() -> Server {
    let python = "return [pb_utils.InferenceResponse([pb_utils.Tensor('y', \
                  pb_utils.get_input_tensor_by_name(it, 'x').as_numpy())]) for it in requests]";
    let steps = ["slow: x=X -> y=A", "snake: x=A -> y=Y"];
    let repository = Repository::of([
        ("slow", delay(1, FLOATS)),
        ("snake", execute(FLOATS, python)),
        ("e", ensemble("X:FP32[4] -> Y:FP32[4]", &steps)),
    ]);
    Server::with(
        repository,
        &[
            "--metrics-interval-ms=50",
            "--metrics-config=histogram_latencies=true",
            "--metrics-config=summary_latencies=true",
        ],
    )
}

fn drive(server: &Server, requests: usize) {
    for _ in 0..requests {
        server.infer("e", &floats(&[("X", &[1.0, 2.0, 3.0, 4.0])])).ok();
    }
    // One that is wrong.
    server.infer("e", &floats(&[("X", &[1.0])])).refuses(400, "");
}

/// What the server exports, GPUs included: where there is none, it has no series of them.
fn families(server: &Server) -> BTreeSet<String> {
    let page = server.metrics.get("/metrics").ok().text();
    let named = page.lines().filter_map(|it| it.strip_prefix("# TYPE "));
    let mut families: BTreeSet<String> =
        troupe_base::metrics::gpu_families().map(str::to_owned).collect();
    for family in named {
        let (name, kind) = family.split_once(' ').unwrap();
        families.insert(name.to_owned());
        let parts: &[&str] = match kind {
            "histogram" => &["bucket", "sum", "count"],
            "summary" => &["sum", "count"],
            _ => &[],
        };
        families.extend(parts.iter().map(|it| format!("{name}_{it}")));
    }
    families
}

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(DASHBOARD).unwrap()).unwrap()
}

/// All queries of the panels, and the series that the variables are made of.
fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|it| it["targets"].as_array()).flatten();
    let expressions = targets.map(|it| it["expr"].as_str().unwrap());
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let queries = variables.filter_map(|it| it["query"]["query"].as_str());
    let series = queries.map(|it| {
        let inside = it.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
        inside.split(',').next().unwrap()
    });
    expressions.chain(series).map(str::to_owned).collect()
}

/// Names of metrics in a query: words that no parenthesis follows, once labels, ranges and what is
/// grouped by are cut out.
fn metrics_in(query: &str) -> BTreeSet<String> {
    let mut text = query.to_owned();
    for (begin, end) in [("{", "}"), ("[", "]"), ("by (", ")")] {
        while let Some(from) = text.find(begin) {
            let to = from + text[from..].find(end).expect("a bracket is closed");
            text.replace_range(from..=to, "");
        }
    }
    let is_part = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let mut found = BTreeSet::new();
    while let Some(from) = text.find(is_part) {
        let word: String = text[from..].chars().take_while(|it| is_part(*it)).collect();
        text.drain(..from + word.len());
        let is_called = text.trim_start().starts_with('(');
        if !is_called && word.starts_with(|it: char| it.is_ascii_lowercase()) {
            found.insert(word);
        }
    }
    found
}

#[test]
fn names_are_found_in_queries() {
    let names = |query: &str| metrics_in(query).into_iter().collect::<Vec<_>>();
    assert_eq!(names("a_total"), ["a_total"]);
    assert_eq!(
        names("histogram_quantile(0.9, sum by (le, x) (rate(a_bucket{m=~\"$m\"}[$__rate])))"),
        ["a_bucket"]
    );
    assert_eq!(names("sum by (x) (rate(a{b=\"c\"}[1m])) / sum by (x) (rate(d[1m]))"), ["a", "d"]);
}

#[test]
fn every_query_of_the_dashboard_names_a_metric_of_the_server() {
    let server = server();
    drive(&server, 1);
    crate::support::until("a look at the machine", || {
        families(&server).contains("nv_cpu_utilization")
    });
    let exported = families(&server);
    let queries = queries(&dashboard());
    assert!(30 < queries.len());
    for query in queries {
        let names = metrics_in(&query);
        assert!(!names.is_empty(), "{query}");
        let unknown: Vec<_> = names.difference(&exported).collect();
        assert!(unknown.is_empty(), "{unknown:?} of {query} are none of {exported:?}");
    }
}

#[test]
fn the_dashboard_is_one_grafana_takes() {
    let dashboard = dashboard();
    for field in ["uid", "title"] {
        assert!(dashboard[field].as_str().is_some_and(|it| !it.is_empty()), "{field}");
    }
    assert!((36..=41).contains(&dashboard["schemaVersion"].as_u64().unwrap()));
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let source = variables.iter().find(|it| it["type"] == "datasource").unwrap();
    assert_eq!((&source["name"], &source["query"]), (&"datasource".into(), &"prometheus".into()));
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels have the id of {title}");
        let place = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        let (x, y, w, h) = (place("x"), place("y"), place("w"), place("h"));
        assert!(x + w <= 24 && 0 < w && 0 < h, "{title} is outside");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{title} lies on another panel");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        let names: BTreeSet<_> = targets.iter().map(|it| it["refId"].as_str().unwrap()).collect();
        assert_eq!(names.len(), targets.len(), "{title}");
        for target in targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}

#[test]
fn prometheus_reads_what_the_dashboard_asks_for() {
    if !has("prometheus") {
        return;
    }
    let server = server();
    let prometheus = Prometheus::reads(&server);
    assert_eq!(prometheus.finds("up == 1")[0].0["job"], "troupe");
    drive(&server, 10);
    for (query, expected) in [
        ("nv_inference_request_success{model=\"e\",version=\"1\"} == 10", 10.0),
        ("nv_inference_request_failure{model=\"e\",reason=\"OTHER\"} == 1", 1.0),
        ("nv_inference_count{model=\"slow\"} == 10", 10.0),
        ("nv_inference_request_summary_us_count{model=\"snake\"} == 10", 10.0),
        // What the gateway refuses has no response.
        ("nv_inference_first_response_histogram_ms_count{model=\"e\"} == 10", 10.0),
        ("troupe_ensemble_step_duration_seconds_count{step=\"1\",model=\"snake\"} == 10", 10.0),
        ("troupe_ensemble_request_seconds_count{ensemble=\"e\"} == 10", 10.0),
        ("troupe_inference_batch_size_count{model=\"slow\"} == 10", 10.0),
    ] {
        let found = prometheus.finds(query);
        assert_eq!((found.len(), found[0].1), (1, expected), "{query}: {found:?}");
    }
    let of_gpus: BTreeSet<_> = troupe_base::metrics::gpu_families().map(str::to_owned).collect();
    for query in queries(&dashboard()) {
        let asked = query
            .replace("$__rate_interval", "1m")
            .replace("$model", ".*")
            .replace("$ensemble", ".*");
        assert!(!asked.contains('$'), "{asked}");
        match metrics_in(&query).is_disjoint(&of_gpus) {
            true => drop(prometheus.finds(&asked)),
            // There may be none: but the query is one.
            false => drop(prometheus.query(&asked)),
        }
    }
}

#[test]
fn promtool_has_nothing_to_say_but_of_tritons_names() {
    if !has("promtool") {
        return;
    }
    let server = server();
    drive(&server, 3);
    let page = server.metrics.get("/metrics").ok().text();
    let of_ours: Vec<_> = lints(&page).into_iter().filter(|it| !it.starts_with("nv_")).collect();
    assert!(of_ours.is_empty(), "{of_ours:#?}");
    let config = Command::new("promtool")
        .args(["check", "config", "pipelines/monitoring/prometheus.yml"])
        .output()
        .unwrap();
    assert!(config.status.success(), "{config:?}");
}
