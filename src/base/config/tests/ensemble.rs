//! What is said about ensembles before any of their models is known.

use super::{check, good};

/// An ensemble with one FP32 input and output per name, and steps like `model: a -> b, c=d -> e`.
fn ensemble(inputs: &str, outputs: &str, steps: &[&str]) -> String {
    let tensors = |kind: &str, names: &str| -> String {
        let tensor = |name| format!("{kind} {{ name: '{name}' data_type: TYPE_FP32 dims: 1 }} ");
        names.split_whitespace().map(tensor).collect()
    };
    let map = |kind: &str, names: &str| -> String {
        let entry = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, pair));
            format!("{kind} {{ key: '{key}' value: '{value}' }} ")
        };
        names.split_whitespace().map(entry).collect()
    };
    let step = |step: &&str| {
        let (model, maps) = step.split_once(": ").unwrap();
        let (from, to) = maps.split_once("->").unwrap();
        let (from, to) = (map("input_map", from), map("output_map", to));
        format!("step {{ model_name: '{model}' model_version: -1\n{from}\n{to} }}\n")
    };
    let steps: String = steps.iter().map(step).collect();
    format!(
        "name: 'm' platform: 'ensemble'\n{}\n{}\nensemble_scheduling {{\n{steps}}}",
        tensors("input", inputs),
        tensors("output", outputs)
    )
}

/// Only the texts: where they stand is tested once, below.
#[track_caller]
fn says(text: &str, expected: &[&str]) {
    let problems = super::finish(text).err().unwrap_or_default();
    let texts: Vec<&str> = problems.iter().map(|problem| problem.text.as_str()).collect();
    assert_eq!(texts, expected, "{text}");
}

const FINE: [&str; 1] = ["n: x=a -> y=b"];

#[test]
fn an_ensemble_has_no_backend() {
    let text = ensemble("a", "b", &FINE) + "backend: 'python'";
    says(&text, &["Ensemble model 'm' must have platform type 'ensemble' and empty backend type"]);
}

#[test]
fn an_ensemble_needs_its_scheduling_and_only_it_may_have_one() {
    says(
        "name: 'm' platform: 'ensemble'",
        &["ensemble scheduling must be set for ensemble m whose platform is ensemble"],
    );
    let text = "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble";
    let other = ensemble("a", "b", &FINE).replace("platform: 'ensemble'", "backend: 'python'");
    says(&other, &[text]);
    says(&ensemble("a", "b", &FINE).replace("platform: 'ensemble'", ""), &[text]);
}

#[test]
fn an_ensemble_has_nothing_that_belongs_to_instances() {
    let text = ensemble("a", "b", &FINE) + "instance_group { count: 1 } optimization { }";
    says(
        &text,
        &[
            "instance group should not be specified for ensemble 'm'",
            "optimization should not be specified for ensemble 'm'",
        ],
    );
}

#[test]
fn every_step_says_what_it_runs_reads_and_writes() {
    says(&ensemble("", "", &[]), &["must specify 'step' for ensemble 'm'"]);
    says(
        &ensemble("a", "b", &["n: a -> b", ":  -> "]),
        &[
            "must specify 'model_name' in step 1 of ensemble 'm'",
            "must specify 'input_map' in step 1 of ensemble 'm'",
            "must specify 'output_map' in step 1 of ensemble 'm'",
        ],
    );
}

#[test]
fn a_tensor_is_written_once() {
    says(
        &ensemble("a", "b", &["n: a -> b", "n: a -> b"]),
        &[
            "ensemble tensor 'b' can appear in an output map only once for ensemble 'm' step 1: step 0 (model 'n') writes it, too",
        ],
    );
    says(
        &ensemble("a", "b", &["n: a -> x=b y=b"]),
        &["ensemble tensor 'b' can appear in an output map only once for ensemble 'm' step 0"],
    );
    says(
        &ensemble("a", "b", &["n: a -> c", "n: c -> a b"]),
        &[
            "ensemble input 'a' is also written by step 1 of ensemble 'm': give what model 'n' writes another name",
        ],
    );
}

#[test]
fn a_step_input_reads_one_tensor() {
    let text = ensemble("a b", "c", &["n: x=a x=b y=a -> c"]);
    says(
        &text,
        &["input 'x' in model 'n' is mapped to multiple ensemble tensors for ensemble 'm' step 0"],
    );
    let text = ensemble("a", "b c", &["k: a -> d", "n: d -> x=b x=c"]);
    says(
        &text,
        &["output 'x' in model 'n' is mapped to multiple ensemble tensors for ensemble 'm' step 1"],
    );
}

#[test]
fn every_input_and_output_of_an_ensemble_is_used() {
    says(
        &ensemble("a x", "b y", &["n: a -> b"]),
        &[
            "ensemble input 'x' for ensemble m' is not used: no step reads it",
            "ensemble output 'y' for ensemble m' is not used: no step writes it",
        ],
    );
}

#[test]
fn an_output_must_be_reachable_from_the_inputs() {
    says(
        &ensemble("a", "b", &["n: a -> c", "n: c x -> b"]),
        &[
            "output 'b' for ensemble 'm' is not written: at least one of its depending tensors, 'x', is not connected",
            "ensemble tensor 'x' is unused in ensemble 'm'",
        ],
    );
    says(
        &ensemble("a", "b", &["n: a x -> c", "n: c -> d", "n: d -> b"]),
        &[
            "output 'b' for ensemble 'm' is not written: at least one of its depending tensors, 'x', is not connected",
            "ensemble tensor 'x' is unused in ensemble 'm'",
        ],
    );
    says(
        &ensemble("a", "b c", &["n: a b -> c"]),
        &[
            "output 'b' for ensemble 'm' is not written",
            "output 'c' for ensemble 'm' is not written: at least one of its depending tensors, 'b', is not connected",
        ],
    );
}

#[test]
fn tensors_that_wait_for_each_other_are_reported() {
    says(
        &ensemble("a", "b", &["n: a d -> c", "n: c -> d b"]),
        &[
            "output 'b' for ensemble 'm' is not written: at least one of its depending tensors, 'd', is not connected",
            "ensemble tensor 'd' is unused in ensemble 'm': it waits for itself: d -> step 0 (model 'n') -> c -> step 1 (model 'n') -> d",
            "ensemble tensor 'c' is unused in ensemble 'm': it waits for itself: c -> step 1 (model 'n') -> d -> step 0 (model 'n') -> c",
        ],
    );
    says(
        &ensemble("a", "b", &["n: a -> b", "n: c -> d", "n: d -> c"]),
        &[
            "ensemble tensor 'c' is unused in ensemble 'm': it waits for itself: c -> step 1 (model 'n') -> d -> step 2 (model 'n') -> c",
            "ensemble tensor 'd' is unused in ensemble 'm': it waits for itself: d -> step 2 (model 'n') -> c -> step 1 (model 'n') -> d",
        ],
    );
    says(&ensemble("a", "b", &["n: a b -> b"]), &["output 'b' for ensemble 'm' is not written"]);
}

#[test]
fn a_tensor_nobody_reads_or_writes_is_reported_with_a_guess() {
    says(
        &ensemble("a", "b", &["n: a -> b x=c"]),
        &["ensemble tensor 'c' is unused in ensemble 'm'"],
    );
    says(
        &ensemble("image", "b", &["n: image -> pixels", "n: x=pixles -> b"]),
        &[
            "ensemble tensor 'pixles' is unused in ensemble 'm', did you mean `pixels`?",
            "output 'b' for ensemble 'm' is not written: at least one of its depending tensors, 'pixles', is not connected",
            "ensemble tensor 'pixels' is unused in ensemble 'm'",
        ],
    );
}

#[test]
fn every_problem_has_its_place() {
    let text = r#"
name: "m"
platform: "ensemble"
input [
  { name: "a" data_type: TYPE_FP32 dims: 1 },
  { name: "unused" data_type: TYPE_FP32 dims: 1 }
]
output { name: "b" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling {
  step [
    {
      model_name: "n"
      input_map { key: "x" value: "a" }
      output_map { key: "y" value: "b" }
      output_map { key: "z" value: "c" }
    }
  ]
}"#;
    check(
        text,
        &[
            "6:3: ensemble input 'unused' for ensemble m' is not used: no step reads it",
            "15:7: ensemble tensor 'c' is unused in ensemble 'm'",
        ],
    );
    let missing = text.replace("model_name: \"n\"", "").replace("input_map", "#");
    check(
        &missing,
        &[
            "11:5: must specify 'model_name' in step 0 of ensemble 'm'",
            "11:5: must specify 'input_map' in step 0 of ensemble 'm'",
        ],
    );
    let missing = text.replace("output_map", "#");
    check(&missing, &["11:5: must specify 'output_map' in step 0 of ensemble 'm'"]);
    let twice = text.replace("key: \"z\" value", "key: \"y\" value");
    check(
        &twice,
        &[
            "15:7: output 'y' in model 'n' is mapped to multiple ensemble tensors for ensemble 'm' step 0",
        ],
    );
}

#[test]
fn the_order_of_steps_does_not_matter_but_that_of_maps_is_kept() {
    let steps = ["last: q=d p=c -> b", "left: a -> c", "right: x=a y=a -> d"];
    let config = good(&(ensemble("a", "b", &steps) + "max_batch_size: 4"));
    assert!(config.is_ensemble());
    assert!(config.instance_groups.is_empty());
    let ensemble = config.ensemble.unwrap();
    let models: Vec<&str> = ensemble.steps.iter().map(|step| step.model.as_str()).collect();
    assert_eq!(models, ["last", "left", "right"]);
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(ensemble.steps[0].inputs, [pair("q", "d"), pair("p", "c")]);
    assert_eq!(ensemble.steps[0].outputs, [pair("b", "b")]);
    assert_eq!(ensemble.max_inflight_requests, 0);
}

#[test]
fn an_exposed_tensor_may_be_read_and_the_latest_version_need_not_be_asked_for() {
    let text = ensemble("a", "b c", &["n: a -> b", "n: b -> c"])
        .replace("model_version: -1", "")
        .replace("ensemble_scheduling {", "ensemble_scheduling { max_inflight_requests: 7");
    let ensemble = good(&text).ensemble.unwrap();
    assert_eq!(ensemble.max_inflight_requests, 7);
    assert!(ensemble.steps.iter().all(|step| step.version == -1));
    let pinned = good(&text.replace("model_name: 'n'", "model_name: 'n' model_version: 3"));
    assert!(pinned.ensemble.unwrap().steps.iter().all(|step| step.version == 3));
}

#[test]
fn a_long_chain_backwards_is_checked_without_recursion() {
    let steps: Vec<String> = (0..20_000).rev().map(|i| format!("n: t{i} -> t{}", i + 1)).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    assert!(super::finish(&ensemble("t0", "t20000", &steps)).is_ok());
    says(
        &ensemble("a", "b", &["n: a -> b", "n: x y -> z"]),
        &[
            "ensemble tensor 'x' is unused in ensemble 'm'",
            "ensemble tensor 'y' is unused in ensemble 'm'",
            "ensemble tensor 'z' is unused in ensemble 'm'",
        ],
    );
}
