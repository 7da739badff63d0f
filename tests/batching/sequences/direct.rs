//! Rows, null rows, control inputs, and who waits for a slot.

use serde_json::{Value, json};

use super::models::{PATIENT, ask, batches, direct, direct_with, oldest, request, sum};
use crate::support::{Repository, Server, at_once, http::finish, models::execute, native, until};

#[test]
fn sequences_meet_their_own_state() {
    let repository = Repository::of([("direct", direct(4)), ("oldest", oldest(4, "UINT64"))]);
    let server = Server::start(repository);
    for (model, id_is_added) in [("direct", 0.), ("oldest", 1.)] {
        let sums = at_once(6, |caller| {
            let id = caller as i64 + 1;
            let ask = |flags, number| sum(&server, model, id, (flags, number));
            let first = [ask("+", 10 * id as i32), ask("", 1), ask("", 2), ask("!", 3)];
            // The id is free again.
            (first, ask("+!", 5))
        });
        for (caller, (sums, again)) in sums.into_iter().enumerate() {
            let (id, begin) = ((caller + 1) as f64, 10. * (caller + 1) as f64);
            let last = begin + 6. + id_is_added * id;
            assert_eq!(sums, [begin, begin + 1., begin + 3., last], "{model}");
            assert_eq!(again, 5. + id_is_added * id, "{model}");
        }
    }
    assert_eq!(server.successes("direct"), 30);
    assert_eq!(server.stats("direct")["inference_count"], 30);
    server.is_well();
}

#[test]
fn null_rows_count_in_batches_and_as_no_requests() {
    let server = Server::start(Repository::of([("m", direct(4))]));
    assert_eq!(sum(&server, "m", 7, ("+", 1)), 1.);
    assert_eq!(sum(&server, "m", 8, ("+", 10)), 10.);
    assert_eq!(sum(&server, "m", 9, ("+", 100)), 100.);
    assert_eq!(sum(&server, "m", 7, ("!", 1)), 2.);
    // Rows do not move.
    assert_eq!(sum(&server, "m", 9, ("", 1)), 101.);
    assert_eq!(sum(&server, "m", 8, ("", 1)), 11.);
    assert_eq!(batches(&server, "m"), [(1, 2), (2, 2), (3, 2)]);
    let stats = server.stats("m");
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(6), &json!(6)));
    assert_eq!(server.successes("m"), 6);
}

/// Answers what it sees of each request of its batch.
const TELLS: &str = "
    def seen(it):
        inputs = {x.name(): x.as_numpy().ravel().tolist() for x in it.inputs()}
        wanted = sorted(it.requested_output_names())
        return [it.correlation_id(), it.flags(), wanted, inputs]
    said = json.dumps([seen(it) for it in requests])
    said = np.full((1, 1), said.encode(), np.object_)
    return [pb_utils.InferenceResponse([pb_utils.Tensor('said', said)]) for _ in requests]";

#[test]
fn models_see_control_inputs_and_null_requests() {
    let controls = "sequence_batching { direct { }
        control_input { name: 's' control { kind: CONTROL_SEQUENCE_START fp32_false_true: [-1, 2] } }
        control_input { name: 'r' control { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } }
        control_input { name: 'e' control { kind: CONTROL_SEQUENCE_END int32_false_true: [3, 4] } }
        control_input { name: 'c' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 } } }";
    let model = execute("INPUT:INT32[1] -> said:BYTES[1]", TELLS).batch(3).with(controls);
    let server = Server::start(Repository::of([("m", model)]));
    let seen = |id: i64, flags: &str, number| -> Value {
        let said = ask(&server, "m", id, (flags, number)).output("said");
        serde_json::from_str(said[0].as_str().unwrap()).unwrap()
    };
    let row = |id: i64, flags, x, [s, e]: [i32; 2]| {
        let inputs = json!({"INPUT": [x], "s": [f64::from(s)], "r": [true], "e": [e], "c": [id]});
        json!([id, flags, ["said"], inputs])
    };
    let nothing = json!([0, 0, [], {"INPUT": [0], "s": [-1.0], "r": [false], "e": [3], "c": [0]}]);
    assert_eq!(seen(5, "+", 1), json!([row(5, 1, 1, [2, 3])]));
    assert_eq!(seen(6, "+", 2), json!([nothing, row(6, 1, 2, [2, 3])]));
    assert_eq!(seen(6, "", 3), json!([nothing, row(6, 0, 3, [-1, 3])]));
    assert_eq!(seen(5, "!", 4), json!([row(5, 2, 4, [-1, 4])]));
    assert_eq!(seen(6, "!", 5), json!([nothing, row(6, 2, 5, [-1, 4])]));
    assert_eq!(seen(7, "+!", 6), json!([row(7, 3, 6, [2, 4])]));
}

#[test]
fn null_requests_need_no_response() {
    let model = execute(
        "INPUT:INT32[1] -> OUTPUT:INT32[1]",
        "
        def answer(it):
            x = pb_utils.get_input_tensor_by_name(it, 'INPUT').as_numpy()
            if it.correlation_id() == 0 or x.item() < 0:
                return None
            return pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT', x)])
        return [answer(it) for it in requests]",
    );
    let sequences = format!("sequence_batching {{ direct {{ }} {PATIENT} }}");
    let server = Server::start(Repository::of([("m", model.batch(4).with(sequences))]));
    assert_eq!(sum(&server, "m", 7, ("+", 1)), 1.);
    assert_eq!(sum(&server, "m", 8, ("+", 2)), 2.);
    assert_eq!(batches(&server, "m"), [(1, 1), (2, 1)]);
    let lacks = "Expected an 'InferenceResponse' object in the execute function return list, found \
                 type '<class 'NoneType'>'. It is that of request 2 of 2";
    ask(&server, "m", 8, ("", -1)).refuses(500, lacks);
}

#[test]
fn ids_are_told_as_the_config_wants_them() {
    let controls = |dtype: &str| {
        format!(
            "sequence_batching {{ oldest {{ }} control_input {{ name: 'c' control {{ kind: \
             CONTROL_SEQUENCE_CORRID data_type: TYPE_{dtype} }} }} }}"
        )
    };
    let model = |dtype: &str| {
        execute("INPUT:INT32[1] -> said:BYTES[1]", TELLS).batch(2).with(controls(dtype))
    };
    let types = ["UINT64", "INT64", "UINT32", "INT32", "STRING"];
    let server = Server::start(Repository::of(types.map(|it| (it.to_lowercase(), model(it)))));
    let seen = |model: &str, id: Value| {
        let said = ask(&server, model, id, ("+!", 0)).output("said");
        let said: Value = serde_json::from_str(said[0].as_str().unwrap()).unwrap();
        said[0][3]["c"][0].clone()
    };
    let big = (1_u64 << 32) + 7;
    assert_eq!(seen("uint64", big.into()), big);
    assert_eq!(seen("int64", big.into()), big);
    assert_eq!(seen("uint32", big.into()), 7);
    assert_eq!(seen("int32", big.into()), 7);
    for (model, id, got, expects) in [
        ("uint64", json!("a"), "BYTES", "UINT64"),
        ("int32", json!("a"), "BYTES", "INT32"),
        ("string", json!(7), "UINT64", "BYTES"),
    ] {
        ask(&server, model, id, ("+!", 0)).refuses(
            400,
            &format!(
                "sequence batching control 'c' data-type is '{got}', but model '{model}' expects \
                 '{expects}'"
            ),
        );
    }
}

#[test]
fn string_ids_are_told_as_strings() {
    let server = Server::start(Repository::of([("m", oldest(4, "STRING"))]));
    assert_eq!(sum(&server, "m", "1000", ("+", 1)), 1.);
    assert_eq!(sum(&server, "m", "1001", ("+", 50)), 50.);
    assert_eq!(sum(&server, "m", "1000", ("!", 2)), 1003.);
    assert_eq!(sum(&server, "m", "1001", ("!", 1)), 1052.);
}

#[test]
fn native_models_read_control_inputs_and_zeros() {
    // The sum of `x` and READY.
    let controls = "sequence_batching { direct { } control_input { name: 'r' control { kind: \
                    CONTROL_SEQUENCE_READY fp32_false_true: [0, 100] } } }";
    let model = native("add_sub", "x:FP32[1] -> sum:FP32[1] difference:FP32[1]").batch(3);
    let server = Server::start(Repository::of([("m", model.with(controls))]));
    let answer = |id: i64, flags, number: f32| {
        let mut asked = request(id, flags, 0);
        asked["inputs"] =
            json!([{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [number]}]);
        server.infer("m", &asked).numbers("sum")
    };
    assert_eq!(answer(1, "+", 1.), [101.]);
    assert_eq!(answer(2, "+", 2.), [102.]);
    assert_eq!(answer(3, "+", 3.), [103.]);
    assert_eq!(answer(2, "!", 5.), [105.]);
    assert_eq!(batches(&server, "m"), [(1, 1), (2, 2), (3, 1)]);
}

#[test]
fn a_sequence_waits_for_a_slot_until_another_one_ends_or_is_idle_for_too_long() {
    let brief = direct_with(1, "max_sequence_idle_microseconds: 300000");
    let models = [("brief", brief), ("patient", direct_with(1, PATIENT))];
    let server = Server::start(Repository::of(models));
    assert_eq!(sum(&server, "brief", 1, ("+", 1)), 1.);
    // Nobody ends the first one: it loses its slot after 300 ms.
    assert_eq!(sum(&server, "brief", 2, ("+", 2)), 2.);
    let text = "inference request for sequence 1 to model 'brief' must specify the START flag on the \
                first request of the sequence";
    ask(&server, "brief", 1, ("", 1)).refuses(400, text);
    let labels = ["model=\"patient\""];
    let pending = || server.metric("nv_inference_pending_request_count", &labels).unwrap();
    // The second one has it, ends, and the third one follows.
    assert_eq!(sum(&server, "patient", 2, ("+", 2)), 2.);
    let third = server.http.start("patient", &request(3, "+!", 3));
    until("the third one to wait", || pending() == 1.);
    assert_eq!(sum(&server, "patient", 2, ("!", 2)), 4.);
    assert_eq!(finish(third).numbers("OUTPUT"), [3.]);
    until("nothing to wait any more", || pending() == 0.);
}

#[test]
fn a_request_in_the_backlog_waits_as_long_as_its_timeout_says() {
    let server = Server::start(Repository::of([("m", direct_with(1, PATIENT))]));
    assert_eq!(sum(&server, "m", 1, ("+", 1)), 1.);
    let mut waits = request(2, "+", 2);
    waits["parameters"]["timeout"] = 2000.into();
    let text = "timeout of the corresponding sequence has been expired";
    server.infer("m", &waits).refuses(503, text);
    // In a slot it means nothing.
    let mut goes_on = request(1, "!", 2);
    goes_on["parameters"]["timeout"] = 1.into();
    assert_eq!(server.infer("m", &goes_on).numbers("OUTPUT"), [3.]);
}
