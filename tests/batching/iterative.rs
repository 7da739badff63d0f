//! Iterative sequences: a model reschedules a request until it is done with it, and others join the
//! batch meanwhile.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::support::{
    Answer, Model, Repository, Server, at_once,
    grpc::{Grpc, floats},
    http::input,
    models::execute,
    python,
};

const ITERATIVE: &str =
    "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 2 } }";

/// Answers after `x` executions with what it saw in each of them.
const COUNTS: &str = "
    class TritonPythonModel:
        def initialize(self, args):
            self.seen = {}

        def execute(self, requests):
            answers = []
            for it in requests:
                key = it.correlation_id()
                seen = self.seen.setdefault(key, [])
                seen.append([key, it.flags(), len(requests)])
                x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()[0, 0]
                # A negative one waits for company.
                is_done = len(seen) == x if 0 < x else seen[-1][2] == -x
                if not is_done:
                    it.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    answers.append(None)
                    continue
                told = np.array([[json.dumps(self.seen.pop(key))]], dtype=object)
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('told', told)]))
            return answers";

/// Sends a token in each of `x` executions.
const STREAMS: &str = "
    class TritonPythonModel:
        def initialize(self, args):
            self.steps = {}

        def execute(self, requests):
            for it in requests:
                key = it.correlation_id()
                step = self.steps.get(key, 0) + 1
                self.steps[key] = step
                x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
                y = pb_utils.Tensor('y', x * 0 + step)
                sender = it.get_response_sender()
                if step < x[0, 0] and step % 2:
                    it.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                sender.send(pb_utils.InferenceResponse([y]))
                if step < x[0, 0]:
                    it.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                else:
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    del self.steps[key]
            return None";

const SEEN: &str = "x:FP32[1] -> told:BYTES[1]";

const EXECUTE: &str = "def execute(self, requests):";
/// Takes 30 ms for each execution.
const SLOW: &str = "def execute(self, requests):
            __import__('time').sleep(0.03)";

fn timed(model: Model) -> Model {
    model.batch(2).with(ITERATIVE)
}

fn counts() -> Model {
    python(SEEN, COUNTS).batch(2)
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let text_id = "sequence_batching { iterative_sequence: true
        control_input { name: \"ID\" control { kind: CONTROL_SEQUENCE_CORRID
        data_type: TYPE_STRING } } }";
    let again = "
        for it in requests:
            it.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return [None for _ in requests]";
    Server::start(Repository::of([
        ("counts", counts().with(ITERATIVE)),
        ("joins", counts().with(ITERATIVE)),
        ("own", counts().with(ITERATIVE)),
        ("direct", counts().with("sequence_batching { iterative_sequence: true direct { } }")),
        ("text", counts().with(text_id)),
        (
            "streams",
            python("x:FP32[1] -> y:FP32[1]", STREAMS)
                .batch(2)
                .with("model_transaction_policy { decoupled: true }")
                .with(ITERATIVE),
        ),
        ("timed", timed(python(SEEN, &COUNTS.replace(EXECUTE, SLOW)))),
        (
            "timed_streams",
            timed(python("x:FP32[1] -> y:FP32[1]", &STREAMS.replace(EXECUTE, SLOW)))
                .with("model_transaction_policy { decoupled: true }"),
        ),
        ("plain", execute(SEEN, again).batch(2).with("sequence_batching { }")),
    ]))
});

fn request(x: f32, parameters: Value) -> Value {
    json!({"inputs": [input("x", "FP32", &[1, 1], [x])], "parameters": parameters})
}

/// Id, flags and requests of each execution.
fn told(answer: &Answer) -> Vec<(Value, u64, u64)> {
    let text = answer.ok().output("told")[0].as_str().unwrap().to_owned();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_request_without_an_id_is_a_sequence_of_as_many_executions_as_its_model_wants() {
    for model in ["counts", "direct"] {
        let mut ids = Vec::new();
        // More than there are slots: each is free again when its request is answered.
        for _ in 0..5 {
            let seen = told(&SERVER.infer(model, &request(3., json!({}))));
            let flags: Vec<u64> = seen.iter().map(|it| it.1).collect();
            assert_eq!(flags, [1, 0, 0], "only the first execution begins the sequence");
            assert!(seen.iter().all(|it| it.0 == seen[0].0), "{seen:?}");
            ids.push(seen[0].0.as_u64().unwrap());
        }
        assert_eq!(ids, [1, 2, 3, 4, 5], "{model}");
    }
    let seen = told(&SERVER.infer("text", &request(1., json!({}))));
    assert_eq!(seen, [(json!("1"), 1, 1)], "an id of the type that the model wants");
}

#[test]
fn requests_join_and_leave_a_running_batch() {
    let answers = at_once(6, |_| SERVER.infer("joins", &request(-2., json!({}))));
    for answer in answers {
        let seen = told(&answer);
        assert_eq!(seen.last().unwrap().2, 2, "it was executed with another one: {seen:?}");
    }
}

#[test]
fn a_client_that_gives_an_id_begins_and_ends_its_sequence_itself() {
    let ask = |x: f32, more: Value| SERVER.infer("own", &request(x, more));
    let id = "own";
    let answer = ask(1., json!({"sequence_id": id}));
    assert!(answer.error().contains("must specify the START flag"), "{}", answer.error());
    let seen = told(&ask(2., json!({"sequence_id": id, "sequence_start": true})));
    assert_eq!(seen, [(json!(id), 1, 1), (json!(id), 0, 1)]);
    let seen = told(&ask(1., json!({"sequence_id": id})));
    assert_eq!(seen, [(json!(id), 0, 1)]);
    let seen = told(&ask(2., json!({"sequence_id": id, "sequence_end": true})));
    assert_eq!(seen, [(json!(id), 2, 1), (json!(id), 0, 1)]);
    assert!(ask(1., json!({"sequence_id": id})).error().contains("must specify the START flag"));
}

#[test]
fn a_decoupled_model_sends_something_in_each_iteration() {
    let counts = at_once(4, |count| {
        let mut asked = floats("streams", &[("x", &[count as f32 + 1.])]);
        asked.inputs[0].shape = vec![1, 1];
        let answers = Grpc::connect(SERVER.grpc).stream(vec![asked]).unwrap();
        let values = answers.iter().map(|it| {
            assert_eq!(it.error_message, "");
            it.infer_response.as_ref().unwrap().raw_output_contents.len()
        });
        values.filter(|it| *it != 0).count()
    });
    assert_eq!(counts, [1, 2, 3, 4]);
}

#[test]
fn the_time_of_a_request_is_that_of_all_its_iterations() {
    assert_eq!(told(&SERVER.infer("timed", &request(5., json!({})))).len(), 5);
    let mut asked = floats("timed_streams", &[("x", &[5.])]);
    asked.inputs[0].shape = vec![1, 1];
    Grpc::connect(SERVER.grpc).stream(vec![asked]).unwrap();
    for model in ["timed", "timed_streams"] {
        let stats = SERVER.stats(model);
        let of = |phase: &str| stats["inference_stats"][phase]["ns"].as_u64().unwrap();
        let compute = of("compute_input") + of("compute_infer") + of("compute_output");
        assert!(5 * 30_000_000 <= compute, "{model}: {stats}");
        assert!(of("queue") + compute <= of("success"), "{model}: {stats}");
        // As Triton counts: executions of rows; but one request.
        let counts = ["inference_count", "execution_count"].map(|it| stats[it].as_u64());
        assert_eq!(counts, [Some(5), Some(5)], "{model}");
        assert_eq!(SERVER.successes(model), 1, "{model}");
    }
}

#[test]
fn a_model_that_is_not_iterative_cannot_reschedule_what_is_of_a_sequence() {
    let parameters = json!({"sequence_id": 1, "sequence_start": true, "sequence_end": true});
    let answer = SERVER.infer("plain", &request(1., parameters));
    let text = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model \
                is not configured to handle such a flag.";
    assert!(answer.error().contains(text), "{}", answer.error());
}
