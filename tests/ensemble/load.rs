//! Errors of an ensemble's config, in Triton's words, when it is loaded.

use crate::support::{Model, Repository, Server, ensemble, native, server::troupe};

/// What is in the repository for all rows to use.
fn steps() -> Repository {
    Repository::of([
        ("id", native("identity", "x:FP32[4] -> y:FP32[4]")),
        ("id_int", native("identity", "x:INT32[4] -> y:INT32[4]")),
        ("id_rank2", native("identity", "x:FP32[4,4] -> y:FP32[4,4]")),
        ("add_sub", native("add_sub", "a:FP32[4] b:FP32[4] -> sum:FP32[4] difference:FP32[4]")),
        ("small_batch", native("identity", "x:FP32[4] -> y:FP32[4]").batch(2)),
    ])
}

const PLAIN: &str = "A:FP32[4] -> Z:FP32[4]";

/// A row: its ensemble's name, its config, and the texts of everything that is wrong in it.
type Row = (&'static str, Model, &'static [&'static str]);

#[expect(clippy::too_many_lines, reason = "a table")]
fn written_wrong() -> Vec<Row> {
    let good = || ensemble(PLAIN, &["id: x=A -> y=Z"]);
    let step = |text: &str| {
        let tensors = crate::support::models::tensors(PLAIN);
        let steps = format!("ensemble_scheduling {{ step {{ {text} }} }}");
        Model::of(format!("platform: \"ensemble\"\n{tensors}{steps}\n"))
    };
    vec![
        (
            "m1",
            good().with("backend: \"native\""),
            &["Ensemble model 'm1' must have platform type 'ensemble' and empty backend type"],
        ),
        (
            "m2",
            Model::of("platform: \"ensemble\"\n"),
            &["ensemble scheduling must be set for ensemble m2 whose platform is ensemble"],
        ),
        (
            "m3",
            native("identity", "x:FP32[4] -> y:FP32[4]").with("ensemble_scheduling {}"),
            &["ensemble scheduling cannot be set for model 'm3' whose platform is not ensemble"],
        ),
        (
            "m4",
            good().with("instance_group { count: 2 }"),
            &["instance group should not be specified for ensemble 'm4'"],
        ),
        (
            "m5",
            good().with("optimization { priority: PRIORITY_MAX }"),
            &["optimization should not be specified for ensemble 'm5'"],
        ),
        ("m7", ensemble(PLAIN, &[]), &["must specify 'step' for ensemble 'm7'"]),
        (
            "m8",
            step(""),
            &[
                "must specify 'model_name' in step 0 of ensemble 'm8'",
                "must specify 'input_map' in step 0 of ensemble 'm8'",
                "must specify 'output_map' in step 0 of ensemble 'm8'",
            ],
        ),
        (
            "m9",
            ensemble(PLAIN, &["id: x=A -> y=Z", "id: x=A -> y=Z"]),
            &["ensemble tensor 'Z' can appear in an output map only once for ensemble 'm9' step 1"],
        ),
        (
            "m10",
            ensemble("A:FP32[4] B:FP32[4] -> Z:FP32[4]", &["id: x=A x=B -> y=Z"]),
            &["input 'x' in model 'id' is mapped to multiple ensemble tensors for ensemble 'm10' \
             step 0"],
        ),
        (
            "m11",
            ensemble("A:FP32[4] B:FP32[4] -> Z:FP32[4]", &["id: x=A -> y=Z"]),
            &["ensemble input 'B' for ensemble m11' is not used"],
        ),
        (
            "m12",
            ensemble("A:FP32[4] -> Z:FP32[4] Y:FP32[4]", &["id: x=A -> y=Z"]),
            &["ensemble output 'Y' for ensemble m12' is not used"],
        ),
        (
            "m13",
            ensemble(PLAIN, &["id: x=A -> y=m", "add_sub: a=m b=nowhere -> sum=Z"]),
            &[
                "output 'Z' for ensemble 'm13' is not written: at least one of its depending tensors, \
             'nowhere', is not connected",
            ],
        ),
        (
            "m14",
            ensemble(PLAIN, &["add_sub: a=A b=z -> sum=y", "id: x=y -> y=z", "id: x=z -> y=Z"]),
            &["output 'Z' for ensemble 'm14' is not written"],
        ),
        (
            "m15",
            ensemble(PLAIN, &["add_sub: a=A b=A -> sum=Z difference=rest"]),
            &["ensemble tensor 'rest' is unused in ensemble 'm15'"],
        ),
        (
            "m16",
            ensemble("A:FP32[4] B:FP32[4] -> Z:FP32[4] Y:FP32[4]", &["id: x=A -> y=Z"])
                .with("instance_group { count: 2 }"),
            &[
                "instance group should not be specified for ensemble 'm16'",
                "ensemble input 'B' for ensemble m16' is not used",
                "ensemble output 'Y' for ensemble m16' is not used",
            ],
        ),
        (
            "m17",
            good().with("max_batch_size: -1"),
            &["'max_batch_size' must be non-negative value for m17"],
        ),
        (
            "m18",
            good().with(
                "batch_input { target_name: \"N\" data_type: TYPE_FP32 source_input: \"A\" }",
            ),
            &["batch_input can not be specified for ensemble 'm18'"],
        ),
    ]
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn wrong_with_its_steps() -> Vec<Row> {
    vec![
        (
            "n1",
            ensemble(PLAIN, &["nobody: x=A -> y=m", "none: x=m -> y=Z"]),
            &["ensemble n1 contains models that are not available or ambiguous: nobody, none"],
        ),
        (
            "n2",
            ensemble(PLAIN, &["n2: A=A -> Z=Z"]),
            &["circular dependency between ensembles: n2 -> ... -> n2 -> n2"],
        ),
        ("n3", ensemble(PLAIN, &["n4: A=A -> Z=Z"]), &["circular dependency between ensembles: "]),
        ("n4", ensemble(PLAIN, &["n3: A=A -> Z=Z"]), &["circular dependency between ensembles: "]),
        (
            "n5",
            ensemble(PLAIN, &["m7: A=A -> Z=Z"]),
            &[
                "ensemble 'n5' depends on 'm7' which is not valid. Model 'm7' failed with error: ",
                "must specify 'step' for ensemble 'm7'",
            ],
        ),
        (
            "n6",
            ensemble(PLAIN, &["broken: x=A -> y=Z"]),
            &[
                "ensemble 'n6' depends on 'broken' which has no loaded version. Model 'broken' loading \
             failed with error: ",
                "names the native op 'nonsense'",
            ],
        ),
        (
            "n7",
            ensemble(PLAIN, &["id@3: x=A -> y=Z"]),
            &["ensemble 'n7' depends on 'id' whose required version 3 is not loaded."],
        ),
        (
            "n8",
            ensemble(PLAIN, &["id: x=A wrong=A -> y=Z"]),
            &[
                "in ensemble n8, ensemble tensor A is mapping to non-existing input wrong in model id",
            ],
        ),
        (
            "n9",
            ensemble(PLAIN, &["add_sub: a=A -> sum=Z"]),
            &["in ensemble n9, input b in model add_sub is not mapped to any ensemble tensors"],
        ),
        (
            "n10",
            ensemble(PLAIN, &["id: x=A -> z=Z"]),
            &[
                "in ensemble n10, ensemble tensor Z is mapped from non-existing output z in model id",
            ],
        ),
        (
            "n11",
            ensemble(PLAIN, &["id_int: x=A -> y=Z"]),
            &[
                "in ensemble n11, ensemble tensor A: inconsistent data type: TYPE_FP32 is inferred \
             from model n11 while TYPE_INT32 is inferred from model id_int",
                "in ensemble n11, ensemble tensor Z: inconsistent data type: TYPE_FP32 is inferred \
             from model n11 while TYPE_INT32 is inferred from model id_int",
            ],
        ),
        (
            "n12",
            ensemble(PLAIN, &["id: x=A -> y=m", "id_int: x=m -> y=n", "id: x=n -> y=Z"]),
            &[
                "in ensemble n12, ensemble tensor m: inconsistent data type: TYPE_FP32 is inferred \
             from model id while TYPE_INT32 is inferred from model id_int",
                "in ensemble n12, ensemble tensor n: inconsistent data type: TYPE_INT32 is inferred \
             from model id_int while TYPE_FP32 is inferred from model id",
            ],
        ),
        (
            "n13",
            ensemble("A:FP32[5] -> Z:FP32[4]", &["id: x=A -> y=Z"]),
            &[
                "in ensemble n13, ensemble tensor A: inconsistent shape: [5] is inferred from model \
             n13 while [4] is inferred from model id",
            ],
        ),
        (
            "n14",
            ensemble("A:FP32[4] -> Z:FP32[4,4]", &["id_rank2: x=A -> y=Z"]).batch(0),
            &[
                "in ensemble n14, ensemble tensor A: inconsistent shape: [4] is inferred from model \
             n14 while [4,4] is inferred from model id_rank2",
            ],
        ),
        (
            "n15",
            ensemble("A:FP32[5,5] -> Z:FP32[4,4]", &["id_rank2: x=A -> y=Z"]).batch(2),
            &[
                "inconsistent shape: [-1,5,5] is inferred from model n15 while [4,4] is inferred from \
             model id_rank2",
            ],
        ),
    ]
}

#[test]
fn everything_that_is_wrong_is_said_at_load() {
    // A config that cannot be read is Triton's 500, one that cannot be used its 400.
    let unreadable = written_wrong().into_iter().map(|it| (500, it));
    let unusable = wrong_with_its_steps().into_iter().map(|it| (400, it));
    let rows: Vec<_> = unreadable.chain(unusable).collect();
    let mut repository = steps().with("broken", native("nonsense", "x:FP32[4] -> y:FP32[4]"));
    for (_, (name, model, _)) in &rows {
        repository.write(name, model);
    }
    let server = Server::explicit(repository);
    for (status, (name, _, texts)) in &rows {
        let answer = server.load(name);
        assert_eq!(answer.status, *status, "{name}: {}", answer.text());
        let (error, state) = (answer.error(), server.state(name));
        for text in *texts {
            assert!(error.contains(text), "{name}: expected\n{text}\nin\n{error}");
            assert!(state.contains(text), "{name}: expected\n{text}\nin\n{state}");
            assert!(state.starts_with("UNAVAILABLE"), "{name}: {state}");
        }
    }
    server.load("id").ok();
    assert_eq!(server.state("id"), "READY");
}

#[test]
fn check_says_the_same_of_what_is_written_with_file_and_line() {
    for (name, model, texts) in written_wrong() {
        let repository = steps().with(name, model);
        let ended = troupe(&["check", repository.models().to_str().unwrap()]);
        assert_eq!(ended.code, Some(1), "{name}: {}", ended.output);
        for text in texts {
            let line = ended.output.lines().find(|it| it.contains(text));
            let line = line.unwrap_or_else(|| panic!("{name}: no `{text}` in\n{}", ended.output));
            assert!(line.contains(&format!("{name}/config.pbtxt")), "{line}");
        }
    }
}

#[test]
fn what_looks_odd_but_is_right_loads() {
    let server = Server::start(
        steps()
            .with("unmapped_output", ensemble(PLAIN, &["add_sub: a=A b=A -> sum=Z"]))
            .with(
                "wildcards",
                ensemble("A:FP32[-1] -> Z:FP32[-1]", &["id: x=A -> y=m", "id: x=m -> y=Z"]),
            )
            .with(
                "batch_of_rank2_is_rank1_in_a_batch",
                ensemble("A:FP32[-1,4] -> Z:FP32[-1,4]", &["small_batch: x=A -> y=Z"]),
            )
            .with("reads_an_output", {
                let steps = ["id: x=A -> y=Z", "id: x=Z -> y=Y"];
                ensemble("A:FP32[4] -> Z:FP32[4] Y:FP32[4]", &steps)
            })
            .with("other_batch", ensemble(PLAIN, &["small_batch: x=A -> y=Z"]).batch(2))
            .with("larger_batch", ensemble(PLAIN, &["small_batch: x=A -> y=Z"]).batch(8)),
    );
    server.is_well();
    assert_eq!(server.state("wildcards"), "READY");
}

#[test]
fn a_start_with_a_wrong_ensemble_fails_and_names_it() {
    let repository = steps().with("wrong", ensemble(PLAIN, &["nobody: x=A -> y=Z"]));
    let ended = Server::fails(&repository, &[]);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    for text in [
        "failed to load all models",
        "ensemble wrong contains models that are not available or ambiguous: nobody",
    ] {
        assert!(ended.output.contains(text), "no `{text}` in\n{}", ended.output);
    }
}

#[test]
fn wrong_numbers_of_inflight_requests_fail_to_parse() {
    for (value, text) in [
        ("-1", "Expected integer, got: -"),
        ("\"abc\"", "Expected integer, got: "),
        ("4294967296", "Integer out of range (4294967296)"),
    ] {
        let mut wrong = ensemble(PLAIN, &["id: x=A -> y=Z"]);
        let field = format!("ensemble_scheduling {{ max_inflight_requests: {value} ");
        wrong.config = wrong.config.replace("ensemble_scheduling {", &field);
        let repository = steps().with("wrong", wrong);
        let ended = troupe(&["check", repository.models().to_str().unwrap()]);
        assert_eq!(ended.code, Some(1));
        assert!(ended.output.contains(text), "no `{text}` in\n{}", ended.output);
    }
}
