//! What `troupe check` notes of schedulers that are right and may surprise.

use crate::support::{Model, Repository, native, troupe};

fn checked(model: Model) -> String {
    let repository = Repository::of([("m", model)]);
    let ended = troupe(&["check", repository.models().to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    ended.output
}

#[test]
fn schedulers_are_noted_with_their_numbers_and_are_no_problem() {
    let model = |more: &str| native("identity", "x:FP32[1] -> y:FP32[1]").batch(4).with(more);
    for (more, told) in [
        (
            "instance_group { count: 3 kind: KIND_CPU } sequence_batching { direct { } }",
            "'m' has slots for 12 sequences: 3 instances × 4 (`max_batch_size`)",
        ),
        (
            "dynamic_batching { priority_levels: 3 default_priority_level: 1 \
             default_queue_policy { max_queue_size: 100 } }",
            "300 requests of 'm' may wait: each of the 3 levels has a queue",
        ),
        ("response_cache { enable: true }", "answers of 'm' are kept only by a server with"),
    ] {
        let output = checked(model(more));
        let note = output.lines().find(|it| it.starts_with("note: ")).unwrap_or_default();
        assert!(note.contains("config.pbtxt:") && note.contains(told), "{output}");
        assert!(output.contains("no problems"), "{output}");
    }
    let output = checked(model("dynamic_batching { }"));
    assert!(!output.contains("note: "), "{output}");
}
