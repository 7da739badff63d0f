//! Series of steps as a page shows them.

use super::*;
use crate::metrics::Metrics;

fn text(metrics: &Metrics) -> String {
    prometheus::TextEncoder::new().encode_to_string(&metrics.gather()).unwrap()
}

#[track_caller]
fn check(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|it| it == *line), "no `{line}` in\n{text}");
    }
}

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

#[test]
fn a_step_counts_what_it_did() {
    let metrics = Metrics::new();
    let step = metrics.step("e", 1, "m");
    let now = Instant::now();
    let [first, second, _] = [0, 1, 2].map(|_| step.started(now));
    step.finished(first, &StepDurations { queue: us(20), compute: us(150), edge: us(30) });
    step.failed(second);
    let waits = step.waits();
    assert_eq!(metrics.waiting("e", 1, "m"), 1);
    drop(waits);
    assert_eq!(metrics.waiting("e", 1, "m"), 0);
    check(
        &text(&metrics),
        &[
            r#"troupe_ensemble_step_in_flight{ensemble="e",model="m",step="1"} 1"#,
            r#"troupe_ensemble_step_failures_total{ensemble="e",model="m",step="1"} 1"#,
            r#"troupe_ensemble_step_queue_seconds_count{ensemble="e",model="m",step="1"} 1"#,
            r#"troupe_ensemble_step_duration_seconds_sum{ensemble="e",model="m",step="1"} 0.0002"#,
            r#"troupe_ensemble_step_compute_seconds_sum{ensemble="e",model="m",step="1"} 0.00015"#,
            r#"troupe_ensemble_step_edge_seconds_sum{ensemble="e",model="m",step="1"} 0.00003"#,
            r#"troupe_ensemble_step_queue_seconds_bucket{ensemble="e",model="m",step="1",le="0.00001"} 0"#,
            r#"troupe_ensemble_step_queue_seconds_bucket{ensemble="e",model="m",step="1",le="0.000025"} 1"#,
        ],
    );
}

#[test]
fn an_ensemble_counts_its_requests_and_what_it_costs_itself() {
    let metrics = Metrics::new();
    let ensemble = metrics.ensemble("e");
    ensemble.answered_with(us(100), us(90));
    ensemble.answered_with(us(100), us(110));
    ensemble.answered(us(50));
    check(
        &text(&metrics),
        &[
            r#"troupe_ensemble_request_seconds_count{ensemble="e"} 3"#,
            r#"troupe_ensemble_request_seconds_sum{ensemble="e"} 0.00025"#,
            r#"troupe_ensemble_overhead_seconds_count{ensemble="e"} 2"#,
            r#"troupe_ensemble_overhead_seconds_sum{ensemble="e"} 0.00001"#,
        ],
    );
}

#[test]
fn what_is_known_of_a_step_is_never_more_than_its_time() {
    let check = |whole, queue, compute, expected: (u64, u64, u64)| {
        let spent = StepDurations::of(us(whole), us(queue), us(compute));
        let expected =
            StepDurations { queue: us(expected.0), compute: us(expected.1), edge: us(expected.2) };
        assert_eq!(spent, expected, "{queue} + {compute} of {whole}");
        assert_eq!(spent.whole(), us(whole));
    };
    check(100, 20, 70, (20, 70, 10));
    check(100, 20, 80, (20, 80, 0));
    check(100, 50, 150, (25, 75, 0));
    check(0, 0, 10, (0, 0, 0));
    check(0, 0, 0, (0, 0, 0));
}

#[test]
fn a_reload_counts_on_and_an_unload_takes_the_series_away() {
    let metrics = Metrics::new();
    let old = metrics.step("e", 0, "m");
    let new = metrics.step("e", 0, "m");
    old.failed(old.started(Instant::now()));
    drop(old);
    new.clone().failed(new.started(Instant::now()));
    assert!(text(&metrics).contains(r#"failures_total{ensemble="e",model="m",step="0"} 2"#));
    drop(new);
    assert_eq!(text(&metrics), "");
    drop(metrics.step("e", 0, "m"));
}

#[test]
fn names_that_only_concatenate_alike_are_different_series() {
    let metrics = Metrics::new();
    let a = metrics.step("a", 11, "m");
    let _b = metrics.step("a1", 1, "m");
    a.failed(a.started(Instant::now()));
    check(
        &text(&metrics),
        &[
            r#"troupe_ensemble_step_failures_total{ensemble="a",model="m",step="11"} 1"#,
            r#"troupe_ensemble_step_failures_total{ensemble="a1",model="m",step="1"} 0"#,
        ],
    );
}

#[test]
fn nothing_is_counted_when_metrics_are_off() {
    let metrics = Metrics::off();
    let (step, ensemble) = (metrics.step("e", 0, "m"), metrics.ensemble("e"));
    assert_eq!(step.started(Instant::now()), None);
    step.finished(None, &StepDurations::default());
    ensemble.answered(us(1));
    assert!(!step.is_on() && !ensemble.is_on());
    assert_eq!(text(&metrics), "");
}
