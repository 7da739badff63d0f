//! Models that Triton's examples of sequences ask for: `simple_sequence` and those with ids.

use crate::support::{Model, models::execute};

/// The output is the input, 1 more for the first of a sequence; the last one of a sequence has its id
/// added where the model is told it.
const SEQUENCE: &str = "
    def number(it, name):
        tensor = pb_utils.get_input_tensor_by_name(it, name)
        return 0 if tensor is None else int(tensor.as_numpy().item())

    def answer(it):
        id = number(it, 'CORRID') if number(it, 'END') else 0
        output = number(it, 'INPUT') + number(it, 'START') + id
        output = pb_utils.Tensor('OUTPUT', np.array([[output]], np.int32))
        return pb_utils.InferenceResponse([output])

    return [answer(it) for it in requests]";

pub(super) fn sequence_models() -> [(&'static str, Model); 3] {
    let flag = |name: &str| {
        format!(
            "control_input {{ name: '{name}' control {{ kind: CONTROL_SEQUENCE_{name} \
             int32_false_true: [0, 1] }} }}"
        )
    };
    let (start, ready, end) = (flag("START"), flag("READY"), flag("END"));
    let model = |rest: String| {
        let sequences = format!(
            "sequence_batching {{ max_sequence_idle_microseconds: 5000000 {start} {ready} {rest} }}"
        );
        let signature = "INPUT:INT32[1] -> OUTPUT:INT32[1]";
        execute(signature, SEQUENCE).batch(8).with(sequences)
    };
    let dyna = |dtype: &str| {
        format!(
            "{end} oldest {{ max_candidate_sequences: 36 preferred_batch_size: [4, 6] \
             max_queue_delay_microseconds: 1000 }} control_input {{ name: 'CORRID' control {{ kind: \
             CONTROL_SEQUENCE_CORRID data_type: TYPE_{dtype} }} }}"
        )
    };
    [
        ("simple_sequence", model("direct { }".to_owned())),
        ("simple_dyna_sequence", model(dyna("UINT64"))),
        ("simple_string_dyna_sequence", model(dyna("STRING"))),
    ]
}
