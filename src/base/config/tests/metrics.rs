//! Bounds of the histogram of first responses, and what is wrong with them.

use super::{check, good};

fn model(controls: &str) -> String {
    format!(
        "name: 'm' backend: 'python'\nmodel_metrics {{ {controls} }}\n\
         input {{ name: 'x' data_type: TYPE_FP32 dims: 1 }}\n\
         output {{ name: 'y' data_type: TYPE_FP32 dims: 1 }}"
    )
}

const FAMILY: &str = "metric_identifier { family: 'nv_inference_first_response_histogram_ms' }";

#[test]
fn the_bounds_of_the_first_response_are_the_models() {
    let bounds = |controls: &str| good(&model(controls)).first_response_bounds;
    assert_eq!(bounds(""), None);
    let own = format!("metric_control {{ {FAMILY} histogram_options {{ buckets: [1, 2.5] }} }}");
    assert_eq!(bounds(&own), Some(vec![1.0, 2.5]));
    let other = "metric_control { metric_identifier { family: 'x' } \
                 histogram_options { buckets: 1 } }";
    assert_eq!(bounds(other), None);
}

#[test]
fn a_metric_control_has_to_be_complete() {
    let rows = [
        ("metric_control { }", "metric control must specify 'metric_identifier'"),
        (
            "metric_control { metric_identifier { } histogram_options { buckets: 1 } }",
            "metric identifier must specify non-empty 'family'",
        ),
        (
            "metric_control { metric_identifier { family: 'x' } }",
            "metric control must specify 'histogram_options'",
        ),
        (
            "metric_control { metric_identifier { family: 'x' } histogram_options { } }",
            "histogram options must specify non-empty 'buckets'",
        ),
        (
            "metric_control { metric_identifier { family: 'x' } histogram_options { buckets: [2, 1] } }",
            "'buckets' must be in rising order, each once, got [2.0, 1.0]",
        ),
    ];
    for (controls, expected) in rows {
        let problems = super::finish(&model(controls)).unwrap_err();
        let texts: Vec<_> = problems.iter().map(|it| (it.position.line, &*it.text)).collect();
        assert_eq!(texts, [(2, expected)], "{controls}");
    }
    check(&model("metric_control { }"), &[&format!("2:17: {}", rows[0].1)]);
}
