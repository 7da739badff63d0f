//! Models with state, and requests of their sequences.

use serde_json::{Value, json};

use crate::support::{Model, Server, http::Answer, models::python};

/// Adds up what its sequences were given: of the direct strategy by rows, of the oldest by ids. A
/// number of 1000 or more ends the process.
const ADDS_UP: &str = "
    class TritonPythonModel:
        def initialize(self, args):
            self.sums = {}

        def execute(self, requests):
            answers = []
            for row, it in enumerate(requests):
                get = lambda name: pb_utils.get_input_tensor_by_name(it, name)
                corrid = get('CORRID')
                key = row if corrid is None else corrid.as_numpy().item()
                number = get('INPUT').as_numpy().item()
                if number >= 1000:
                    os.kill(os.getpid(), 9)
                if get('READY').as_numpy().item():
                    start = get('START').as_numpy().item()
                    self.sums[key] = number + (0 if start else self.sums[key])
                total = self.sums.get(key, -1)
                if corrid is not None and get('END').as_numpy().item():
                    total += int(key)
                y = pb_utils.Tensor('OUTPUT', np.full(get('INPUT').shape(), total, np.int32))
                answers.append(pb_utils.InferenceResponse([y]))
            return answers";

/// The control inputs of flags, as INT32.
const FLAGS: &str = "
    control_input { name: 'START' control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
    control_input { name: 'READY' control { kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] } }";

const TENSORS: &str = "INPUT:INT32[1] -> OUTPUT:INT32[1]";

/// Sequences are idle for a minute before they are forgotten: not while a test runs.
pub(super) const PATIENT: &str = "max_sequence_idle_microseconds: 60000000";

/// Adds up, a sequence in each row.
pub(super) fn direct(batch: u32) -> Model {
    direct_with(batch, "")
}

/// The same with more in its `sequence_batching`.
pub(super) fn direct_with(batch: u32, more: &str) -> Model {
    let sequences = format!("sequence_batching {{ direct {{ }} {FLAGS} {more} }}");
    python(TENSORS, ADDS_UP).batch(batch).with(sequences)
}

/// Adds up, whichever sequences are there; the last answer has the id added. `dtype` is the id's.
pub(super) fn oldest(batch: u32, dtype: &str) -> Model {
    oldest_with(batch, dtype, "")
}

/// The same with more in its `sequence_batching`.
pub(super) fn oldest_with(batch: u32, dtype: &str, more: &str) -> Model {
    let sequences = format!(
        "sequence_batching {{ oldest {{ max_candidate_sequences: 8 }} {FLAGS} \
         control_input {{ name: 'END' control {{ kind: CONTROL_SEQUENCE_END bool_false_true: \
         [false, true] }} }} \
         control_input {{ name: 'CORRID' control {{ kind: CONTROL_SEQUENCE_CORRID data_type: \
         TYPE_{dtype} }} }} {more} }}"
    );
    python(TENSORS, ADDS_UP).batch(batch).with(sequences)
}

/// A request of the sequence `id`; in `flags`, `+` begins it and `!` ends it.
pub(super) fn request(id: impl Into<Value>, flags: &str, number: i32) -> Value {
    let mut parameters = json!({ "sequence_id": id.into() });
    if flags.contains('+') {
        parameters["sequence_start"] = true.into();
    }
    if flags.contains('!') {
        parameters["sequence_end"] = true.into();
    }
    let input = json!({"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [number]});
    json!({ "inputs": [input], "parameters": parameters })
}

/// Asks for one.
pub(super) fn ask(server: &Server, model: &str, id: impl Into<Value>, step: (&str, i32)) -> Answer {
    server.infer(model, &request(id, step.0, step.1))
}

/// Asks for one, and answers its sum.
#[track_caller]
pub(super) fn sum(server: &Server, model: &str, id: impl Into<Value>, step: (&str, i32)) -> f64 {
    ask(server, model, id, step).numbers("OUTPUT")[0]
}

/// Executed batch sizes, null rows among them, and how often.
pub(super) fn batches(server: &Server, model: &str) -> Vec<(u64, u64)> {
    let stats = server.stats(model);
    let number = |it: &Value| it.as_u64().unwrap();
    let of = |it: &Value| (number(&it["batch_size"]), number(&it["compute_infer"]["count"]));
    stats["batch_stats"].as_array().unwrap().iter().map(of).collect()
}
