//! Ensembles of native models: shapes of graphs, pruning, optional inputs, batches, types.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::support::{
    Model, Repository, Server, ensemble,
    grpc::{self, Grpc, floats_of},
    http::{floats, input, rows},
    models::{TYPES, delay},
    native,
};

/// An ensemble, what is sent and what comes back.
struct Topology {
    name: &'static str,
    signature: &'static str,
    steps: &'static [&'static str],
    inputs: &'static [(&'static str, &'static [f32])],
    outputs: &'static [(&'static str, &'static [f32])],
}

const A_B: &[(&str, &[f32])] = &[("A", &[1.0, 2.0, 3.0]), ("B", &[10.0, 20.0, 30.0])];

const TOPOLOGIES: &[Topology] = &[
    Topology {
        name: "one_step_with_an_unmapped_output",
        signature: "A:FP32[-1] B:FP32[-1] -> S:FP32[-1]",
        steps: &["add_sub: a=A b=B -> sum=S"],
        inputs: A_B,
        outputs: &[("S", &[11.0, 22.0, 33.0])],
    },
    Topology {
        name: "chain_of_three",
        signature: "A:FP32[-1] -> Z:FP32[-1]",
        steps: &["id: x=A -> y=one", "id: x=one -> y=two", "id: x=two -> y=Z"],
        inputs: &[("A", &[7.0])],
        outputs: &[("Z", &[7.0])],
    },
    Topology {
        name: "diamond",
        signature: "A:FP32[-1] B:FP32[-1] -> Z:FP32[-1]",
        steps: &[
            "add_sub: a=A b=B -> sum=s difference=d",
            "id: x=s -> y=left",
            "id: x=d -> y=right",
            "mul: x=left y=right -> z=Z",
        ],
        inputs: A_B,
        outputs: &[("Z", &[-99.0, -396.0, -891.0])],
    },
    Topology {
        name: "four_branches_that_join",
        signature: "A:FP32[-1] -> Z:FP32[-1]",
        steps: &[
            "id: x=A -> y=a1",
            "id: x=A -> y=a2",
            "id: x=A -> y=a3",
            "id: x=A -> y=a4",
            "add_sub: a=a1 b=a2 -> sum=s",
            "add_sub: a=a3 b=a4 -> sum=t",
            "mul: x=s y=t -> z=Z",
        ],
        inputs: &[("A", &[1.0, 3.0])],
        outputs: &[("Z", &[4.0, 36.0])],
    },
    Topology {
        name: "one_tensor_in_two_inputs",
        signature: "A:FP32[-1] -> Z:FP32[-1]",
        steps: &["mul: x=A y=A -> z=Z"],
        inputs: &[("A", &[3.0, -4.0])],
        outputs: &[("Z", &[9.0, 16.0])],
    },
    Topology {
        name: "steps_written_backwards",
        signature: "A:FP32[-1] B:FP32[-1] -> Z:FP32[-1]",
        steps: &["mul: x=s y=d -> z=Z", "add_sub: a=A b=B -> sum=s difference=d"],
        inputs: A_B,
        outputs: &[("Z", &[-99.0, -396.0, -891.0])],
    },
    Topology {
        name: "intermediate_exposed",
        signature: "A:FP32[-1] B:FP32[-1] -> S:FP32[-1] Z:FP32[-1]",
        steps: &["add_sub: a=A b=B -> sum=S difference=d", "mul: x=S y=d -> z=Z"],
        inputs: A_B,
        outputs: &[("S", &[11.0, 22.0, 33.0]), ("Z", &[-99.0, -396.0, -891.0])],
    },
    Topology {
        name: "three_levels",
        signature: "A:FP32[-1] B:FP32[-1] -> Z:FP32[-1]",
        steps: &["two_levels: P=A Q=B -> R=z", "id: x=z -> y=Z"],
        inputs: A_B,
        outputs: &[("Z", &[-99.0, -396.0, -891.0])],
    },
    Topology {
        name: "two_levels",
        signature: "P:FP32[-1] Q:FP32[-1] -> R:FP32[-1]",
        steps: &["diamond: A=P B=Q -> Z=r", "id: x=r -> y=R"],
        inputs: &[("P", &[2.0]), ("Q", &[1.0])],
        outputs: &[("R", &[3.0])],
    },
    Topology {
        name: "split_and_concat",
        signature: "A:FP32[-1] -> Z:FP32[-1]",
        steps: &["split: x=A -> first=f second=s", "concat: a=s b=f -> c=Z"],
        inputs: &[("A", &[1.0, 2.0, 3.0, 4.0])],
        outputs: &[("Z", &[3.0, 4.0, 1.0, 2.0])],
    },
    Topology {
        name: "many_tensors_of_no_elements",
        signature: "A:FP32[-1] B:FP32[-1] -> Z:FP32[-1]",
        steps: &["add_sub: a=A b=B -> sum=s difference=d", "mul: x=s y=d -> z=Z"],
        inputs: &[("A", &[]), ("B", &[])],
        outputs: &[("Z", &[])],
    },
];

fn steps_of(placement: &str) -> Vec<(&'static str, Model)> {
    let models = [
        ("add_sub", "a:FP32[-1] b:FP32[-1] -> sum:FP32[-1] difference:FP32[-1]"),
        ("mul", "x:FP32[-1] y:FP32[-1] -> z:FP32[-1]"),
        ("id", "x:FP32[-1] -> y:FP32[-1]"),
        ("split", "x:FP32[-1] -> first:FP32[-1] second:FP32[-1]"),
        ("concat", "a:FP32[-1] b?:FP32[-1] -> c:FP32[-1]"),
    ];
    let op = |name: &'static str| if name == "id" { "identity" } else { name };
    let model =
        |(name, signature)| (name, native(op(name), signature).parameter("placement", placement));
    models.into_iter().map(model).collect()
}

#[test]
fn every_topology_answers_over_both_protocols_wherever_its_steps_run() {
    for placement in ["shared", "own"] {
        let mut repository = Repository::of(steps_of(placement));
        for it in TOPOLOGIES {
            repository.write(it.name, &ensemble(it.signature, it.steps));
        }
        let server = Server::start(repository);
        let mut grpc = Grpc::connect(server.grpc);
        for it in TOPOLOGIES {
            let answer = server.infer(it.name, &floats(it.inputs));
            for (name, expected) in it.outputs {
                let expected: Vec<f64> = expected.iter().map(|it| f64::from(*it)).collect();
                assert_eq!(answer.numbers(name), expected, "{} on {placement}", it.name);
            }
            assert_eq!(answer.outputs().len(), it.outputs.len(), "{}", it.name);
            let answer = grpc.infer(grpc::floats(it.name, it.inputs)).unwrap();
            let tensors = answer.outputs.iter().zip(&answer.raw_output_contents);
            let got: Vec<_> = tensors.map(|(it, raw)| (it.name.as_str(), floats_of(raw))).collect();
            let expected: Vec<_> = it.outputs.iter().map(|it| (it.0, it.1.to_vec())).collect();
            assert_eq!(got, expected, "{} on {placement}", it.name);
        }
        server.is_well();
    }
}

static PRUNED: LazyLock<Server> = LazyLock::new(|| {
    let id = || native("identity", "x:FP32[-1] -> y:FP32[-1]");
    Server::start(
        Repository::of(["before", "left", "right", "behind", "inner"].map(|it| (it, id())))
            .with(
                "branches",
                ensemble(
                    "A:FP32[-1] -> L:FP32[-1] R:FP32[-1]",
                    &["before: x=A -> y=a", "left: x=a -> y=L", "right: x=a -> y=R"],
                ),
            )
            .with(
                "exposed",
                ensemble(
                    "A:FP32[-1] -> MIDDLE:FP32[-1] LAST:FP32[-1]",
                    &["inner: x=A -> y=MIDDLE", "behind: x=MIDDLE -> y=LAST"],
                ),
            ),
    )
});

fn wanting(mut request: Value, outputs: &[&str]) -> Value {
    request["outputs"] = outputs.iter().map(|it| json!({"name": it})).collect();
    request
}

#[test]
fn a_step_that_no_requested_output_needs_does_not_run() {
    let server = &*PRUNED;
    let request = floats(&[("A", &[5.0])]);
    let answer = server.infer("branches", &wanting(request.clone(), &["L"]));
    assert_eq!(answer.outputs(), ["L"]);
    assert_eq!(answer.numbers("L"), [5.0]);
    let counts = || ["before", "left", "right"].map(|it| server.executions(it));
    assert_eq!(counts(), [1, 1, 0]);
    let answer = server.infer("branches", &request);
    assert_eq!(answer.outputs(), ["L", "R"]);
    assert_eq!(counts(), [2, 2, 1]);
}

#[test]
fn a_step_whose_output_feeds_a_needed_step_runs_though_that_output_is_not_requested() {
    let server = &*PRUNED;
    let request = floats(&[("A", &[6.0])]);
    let answer = server.infer("exposed", &wanting(request.clone(), &["LAST"]));
    assert_eq!(answer.outputs(), ["LAST"]);
    assert_eq!(answer.numbers("LAST"), [6.0]);
    let counts = || ["inner", "behind"].map(|it| server.executions(it));
    assert_eq!(counts(), [1, 1]);
    let answer = server.infer("exposed", &wanting(request, &["MIDDLE"]));
    assert_eq!(answer.outputs(), ["MIDDLE"]);
    assert_eq!(counts(), [2, 1]);
}

#[test]
fn inputs_that_were_not_sent_are_not_handed_on() {
    let maybe_add = native("add_sub", "a:FP32[-1] b?:FP32[-1] -> sum:FP32[-1] difference:FP32[-1]");
    let server = Server::start(
        Repository::of(steps_of("shared"))
            .with("maybe_add", maybe_add)
            .with(
                "optional",
                ensemble("A:FP32[-1] B?:FP32[-1] -> C:FP32[-1]", &["concat: a=A b=B -> c=C"]),
            )
            .with("unmapped", ensemble("A:FP32[-1] -> C:FP32[-1]", &["concat: a=A -> c=C"]))
            .with(
                "into_optional",
                ensemble(
                    "A:FP32[-1] B?:FP32[-1] -> C:FP32[-1]",
                    &["maybe_add: a=A b=B -> sum=s", "concat: a=A b=s -> c=C"],
                ),
            )
            .with(
                "into_required",
                ensemble(
                    "A:FP32[-1] B?:FP32[-1] -> C:FP32[-1]",
                    &["maybe_add: a=A b=B -> sum=s", "mul: x=A y=s -> z=C"],
                ),
            )
            .with(
                "left_out",
                ensemble(
                    "A:FP32[-1] B?:FP32[-1] -> S:FP32[-1] C:FP32[-1]",
                    &["maybe_add: a=A b=B -> sum=S", "id: x=A -> y=C"],
                ),
            ),
    );
    let a: &[(&str, &[f32])] = &[("A", &[1.0])];
    let both: &[(&str, &[f32])] = &[("A", &[1.0]), ("B", &[2.0])];
    for (model, inputs, expected) in [
        ("optional", a, vec![1.0]),
        ("optional", both, vec![1.0, 2.0]),
        ("unmapped", a, vec![1.0]),
        ("into_optional", a, vec![1.0]),
        ("into_optional", both, vec![1.0, 3.0]),
        ("into_required", both, vec![3.0]),
    ] {
        assert_eq!(server.infer(model, &floats(inputs)).numbers("C"), expected, "{model}");
    }
    assert_eq!(server.infer("left_out", &floats(a)).outputs(), ["C"]);
    assert_eq!(server.infer("left_out", &floats(both)).outputs(), ["S", "C"]);
    server.infer("into_required", &floats(a)).refuses(
        400,
        "expected 2 inputs but got 1 inputs for model 'mul'. Got input(s) ['x'], but missing \
         required input(s) ['y']. Please provide all required input(s).",
    );
    server.infer("optional", &floats(&both[1..])).refuses(
        400,
        "expected number of inputs between 1 and 2 but got 1 inputs for model 'optional'. Got \
         input(s) ['B'], but missing required input(s) ['A']. Please provide all required \
         input(s).",
    );
}

#[test]
fn models_that_batch_and_models_that_do_not_go_together() {
    let id = |dims: &str| native("identity", &format!("x:FP32[{dims}] -> y:FP32[{dims}]"));
    let two = |dims: &str, first: &str, second: &str| {
        let signature = format!("A:FP32[{dims}] -> Z:FP32[{dims}]");
        ensemble(&signature, &[&format!("{first}: x=A -> y=m"), &format!("{second}: x=m -> y=Z")])
    };
    let server = Server::start(
        Repository::new()
            .with("batch8", id("1").batch(8))
            .with("batch16", id("1").batch(16))
            .with("rows", id("-1,1"))
            .with("one_row", id("1"))
            .with("same", two("1", "batch8", "batch8").batch(8))
            .with("wider", two("1", "batch8", "batch16").batch(8))
            .with("as_rows", two("1", "batch8", "rows").batch(8))
            .with("stripped", two("1", "batch8", "one_row").batch(8))
            .with("from_rows", two("-1,1", "rows", "batch16"))
            .with("only_batching", two("-1,1", "batch8", "batch16")),
    );
    let data: &[f32] = &[1.0, 2.0, 3.0];
    for (model, count) in [
        ("same", 3),
        ("wider", 3),
        ("as_rows", 3),
        ("as_rows", 1),
        ("stripped", 1),
        ("from_rows", 3),
        ("only_batching", 3),
        ("only_batching", 1),
    ] {
        let answer = server.infer(model, &rows(&[("A", &data[..count])]));
        assert_eq!(answer.shape("Z"), json!([count, 1]), "{model}");
        let expected: Vec<f64> = data[..count].iter().map(|it| f64::from(*it)).collect();
        assert_eq!(answer.numbers("Z"), expected, "{model}");
    }
    server.infer("stripped", &rows(&[("A", data)])).refuses(
        400,
        "unexpected shape for input 'x' for model 'one_row'. Expected [1], got [3,1]",
    );
    server
        .infer("same", &rows(&[("A", &[0.0; 9])]))
        .refuses(400, "inference request batch-size must be <= 8 for 'same'");
    let answer = server.infer("only_batching", &rows(&[("A", &[0.5; 9])]));
    assert_eq!((answer.shape("Z"), answer.numbers("Z")), (json!([9, 1]), vec![0.5; 9]));
}

#[test]
fn every_type_passes_through() {
    let mut repository = Repository::new();
    for (dtype, _) in TYPES {
        let id = native("identity", &format!("x:{dtype}[-1] -> y:{dtype}[-1]"));
        repository.write(&format!("id_{dtype}"), &id);
        let steps = [format!("id_{dtype}: x=A -> y=m"), format!("id_{dtype}: x=m -> y=Z")];
        let signature = format!("A:{dtype}[-1] -> Z:{dtype}[-1]");
        let chain = ensemble(&signature, &[&steps[0], &steps[1]]);
        repository.write(&format!("chain_{dtype}"), &chain);
    }
    let server = Server::start(repository);
    for (dtype, bytes) in TYPES {
        let mut request = json!({
            "inputs": [{"name": "A", "datatype": dtype, "shape": [2],
                        "parameters": {"binary_data_size": bytes.len()}}],
            "outputs": [{"name": "Z", "parameters": {"binary_data": true}}],
        });
        let model = format!("chain_{dtype}");
        let answer = server.http.infer_binary(&model, &request, &[bytes]);
        let length = answer.ok().header("inference-header-content-length").unwrap();
        assert_eq!(&answer.body[length.parse::<usize>().unwrap()..], *bytes, "{dtype}");
        request["inputs"][0]["shape"] = json!([0]);
        request["inputs"][0]["parameters"]["binary_data_size"] = json!(0);
        let answer = server.http.infer_binary(&model, &request, &[]);
        let length = answer.ok().header("inference-header-content-length").unwrap();
        assert_eq!(length.parse::<usize>().unwrap(), answer.body.len(), "{dtype} without elements");
    }
}

#[test]
fn statistics_of_an_ensemble_add_up_its_steps() {
    let server = Server::start(
        Repository::new()
            .with("left", delay(3, "x:FP32[1] -> y:FP32[1]").batch(4))
            .with("right", delay(2, "x:FP32[1] -> y:FP32[1]").batch(4))
            .with("e", {
                let steps = ["left: x=A -> y=L", "right: x=A -> y=R"];
                ensemble("A:FP32[1] -> L:FP32[1] R:FP32[1]", &steps).batch(4)
            }),
    );
    let request = json!({"inputs": [input("A", "FP32", &[3, 1], vec![1.0, 2.0, 3.0])]});
    server.infer("e", &request).ok();
    let stats = server.stats("e");
    assert_eq!(stats["inference_count"], 3);
    assert_eq!(stats["execution_count"], 1);
    assert_eq!(stats["batch_stats"][0]["batch_size"], 3);
    assert_eq!(stats["inference_stats"]["success"]["count"], 1);
    let infer = |of: &Value| of["inference_stats"]["compute_infer"]["ns"].as_u64().unwrap();
    assert_eq!(infer(&stats), infer(&server.stats("left")) + infer(&server.stats("right")));
}
