//! `troupe bench` on models with schedulers: sequences are sent as such, and policies that refuse are
//! told.

use crate::{
    decoupled::models::{FLOATS, REPEATS, decoupled},
    support::{
        Model, Repository, Server, ensemble,
        models::{delay, execute},
        native, troupe, until,
    },
    tools::bench::{TENSORS, measured},
};

/// A model with sequences, whose config this is, that takes as long as its `execute` sleeps.
fn stateful(strategy: &str, id: &str) -> Model {
    let body = "
        import time
        time.sleep(0.01)
        get = pb_utils.get_input_tensor_by_name
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor('y', get(it, 'x').as_numpy())])
            for it in requests
        ]";
    execute("x:FP32[2] -> y:FP32[2]", body).batch(2).with(format!(
        "sequence_batching {{ {strategy} max_sequence_idle_microseconds: 3600000000 \
         control_input {{ name: 'r' control {{ kind: CONTROL_SEQUENCE_READY \
         fp32_false_true: [0, 1] }} }} \
         control_input {{ name: 'c' control {{ kind: CONTROL_SEQUENCE_CORRID \
         data_type: {id} }} }} }}"
    ))
}

#[test]
fn sequences_are_sent_whole_and_leave_no_slot_taken() {
    let inner = stateful("oldest { max_candidate_sequences: 3 }", "TYPE_STRING");
    let all = ensemble("x:FP32[2] -> y:FP32[2]", &["text: x=x -> y=y"]);
    let repository = Repository::new()
        .with("number", stateful("direct { }", "TYPE_UINT64"))
        .with("text", inner)
        .with("all", all.batch(2));
    let server = Server::start(repository);
    for (model, step, slots) in [("number", "number", 2), ("all", "text", 3)] {
        let flags = ["--concurrency=2,8", "--seconds=1", "--warmup=0.2", "--sequence-length=5"];
        let (report, output) = measured(&server, model, &flags);
        assert_eq!(report["sequence_length"], 5, "{report:#}");
        for level in report["levels"].as_array().unwrap() {
            assert_eq!((&level["failed"], &level["steps"][0]["slots"]), (&0.into(), &slots.into()));
            assert!(0 < level["requests"].as_u64().unwrap(), "{report:#}");
        }
        // Where other programs leave it the cores.
        if report["advice"]["limited_by"] != "cores" && report["advice"]["concurrency"] == 8 {
            assert!(output.contains("for 8 sequences at a time"), "{output}");
        }
        let free = |state, count: i32| {
            let labels = [format!("model=\"{step}\""), format!("state=\"{state}\"")];
            let labels = [&*labels[0], &*labels[1]];
            server.metric("troupe_sequence_slots", &labels) == Some(f64::from(count))
        };
        until("all slots to be free", || free("taken", 0) && free("free", slots));
    }
    server.is_well();
}

#[test]
fn queues_that_refuse_are_told_with_their_policy() {
    let policy = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }";
    let model = delay(30, "x:FP32[2] -> y:FP32[2]").batch(1).with(policy);
    let server = Server::start(Repository::of([("m", model)]));
    let (report, output) = measured(&server, "m", &["--concurrency=8", "--seconds=1"]);
    let level = &report["levels"][0];
    assert!(0 < level["refused_full"].as_u64().unwrap(), "{report:#}");
    assert_eq!(level["timed_out"], 0, "{report:#}");
    assert!(output.contains("`m` lets 1 wait (max_queue_size)"), "{output}");
}

#[test]
fn decoupled_models_have_steps_and_times_of_responses() {
    let server = Server::start(Repository::of([("m", decoupled(execute(FLOATS, REPEATS)))]));
    let flags = ["--concurrency=1,2", "--seconds=0.5", "-i", "[1,2,3]"];
    let (report, output) = measured(&server, "m", &flags);
    assert_eq!(report["advice"]["slowest_step"], "m", "{report:#}");
    assert!(output.contains("the last of 3.00 each after"), "{output}");
}

#[test]
fn a_length_of_sequences_that_there_are_none_of_is_refused() {
    let server = Server::start(Repository::of([("m", native("identity", TENSORS))]));
    let url = server.grpc.to_string();
    let ended = troupe(&["bench", "m", "--url", &url, "--sequence-length=3"]);
    assert_eq!(ended.code, Some(1));
    let told = "neither model `m` nor a step of it keeps the requests of a sequence together";
    assert!(ended.output.contains(told), "{}", ended.output);
}
