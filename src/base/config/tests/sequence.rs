//! Sequence batching of configs: what is read, and what is refused in Triton's words.

use std::time::Duration;

use super::{finish, good};
use crate::config::{
    Batching, ControlKind, DirectSequences, InitialState, OldestSequences, SequenceBatching,
    SequenceFlag, SequenceState, SequenceStrategy,
};
use crate::tensor::DataType;

/// A model with this sequence batching, on the third line.
fn sequence(text: &str) -> String {
    format!(
        "name: 'm' backend: 'python' max_batch_size: 4 input {{ name: 'x' data_type: TYPE_INT32 \
         dims: 1 }}\noutput {{ name: 'y' data_type: TYPE_INT32 dims: 1 }}\n\
         sequence_batching {{ {text} }}"
    )
}

fn batching(text: &str) -> SequenceBatching {
    match good(&sequence(text)).batching {
        Batching::Sequence(batching) => batching,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_left_out_has_tritons_defaults() {
    let batching = batching("");
    let expected = SequenceBatching {
        strategy: SequenceStrategy::Direct(DirectSequences::default()),
        max_idle: Duration::from_secs(1),
        controls: Vec::new(),
        states: Vec::new(),
        is_iterative: false,
    };
    assert_eq!(batching, expected);
    let config = good(&sequence("oldest { }"));
    let strategy = config.sequences().unwrap().strategy.clone();
    let oldest = OldestSequences { preferred: vec![4], ..OldestSequences::default() };
    assert_eq!(strategy, SequenceStrategy::Oldest(oldest));
    assert!(good("name: 'm' backend: 'python'").for_executor().is_none());
}

#[test]
fn strategies_are_read() {
    let us = Duration::from_micros;
    let text = "max_sequence_idle_microseconds: 5 iterative_sequence: true
        direct { max_queue_delay_microseconds: 7 minimum_slot_utilization: 0.5 }";
    let read = batching(text);
    assert_eq!((read.max_idle, read.is_iterative), (us(5), true));
    let direct = DirectSequences { max_queue_delay: us(7), minimum_slot_utilization: 0.5 };
    assert_eq!(read.strategy, SequenceStrategy::Direct(direct));
    let text = "oldest { max_candidate_sequences: 9 preferred_batch_size: [ 2, 3 ]
        max_queue_delay_microseconds: 8 preserve_ordering: true }";
    let oldest = OldestSequences {
        max_candidates: 9,
        preferred: vec![2, 3],
        max_queue_delay: us(8),
        preserve_ordering: true,
    };
    assert_eq!(batching(text).strategy, SequenceStrategy::Oldest(oldest));
}

#[test]
fn controls_are_read() {
    let text = "control_input { name: 's' control { int32_false_true: [ 0, 7 ] } }
        control_input { name: 'e' control { kind: CONTROL_SEQUENCE_END
            fp32_false_true: [ 0, 1 ] } }
        control_input { name: 'r' control { kind: CONTROL_SEQUENCE_READY
            bool_false_true: [ false, true ] } }
        control_input { name: 'c' control { kind: CONTROL_SEQUENCE_CORRID
            data_type: TYPE_STRING } }";
    let read = batching(text);
    let kinds: Vec<_> = read.controls.iter().map(|it| (&*it.name, it.dtype, &it.kind)).collect();
    let flag = |flag, no: &[u8], yes: &[u8]| ControlKind::Flag(flag, [no.to_vec(), yes.to_vec()]);
    assert_eq!(
        kinds,
        [
            ("s", DataType::Int32, &flag(SequenceFlag::Start, &[0; 4], &[7, 0, 0, 0])),
            ("e", DataType::Fp32, &flag(SequenceFlag::End, &[0; 4], &[0, 0, 128, 63])),
            ("r", DataType::Bool, &flag(SequenceFlag::Ready, &[0], &[1])),
            ("c", DataType::Bytes, &ControlKind::CorrelationId),
        ]
    );
}

#[test]
fn states_are_read_and_executors_see_all_tensors() {
    let text = "control_input { name: 'c' control { kind: CONTROL_SEQUENCE_CORRID
            data_type: TYPE_UINT64 } }
        state { input_name: 'i' output_name: 'o' data_type: TYPE_FP32 dims: [ -1, 2 ] }
        state { input_name: 'j' output_name: 'y' data_type: TYPE_INT32 dims: 1
            initial_state { name: 'k' data_type: TYPE_INT32 dims: 1 data_file: 'f' } }";
    let config = good(&sequence(text));
    let state = |input: &str, output: &str, dims: (&[i64], &[i64]), initial| SequenceState {
        input: input.into(),
        output: output.into(),
        dtype: if output == "y" { DataType::Int32 } else { DataType::Fp32 },
        dims: dims.0.to_vec(),
        initial_dims: dims.1.to_vec(),
        initial,
    };
    let expected = [
        state("i", "o", (&[-1, 2], &[1, 2]), InitialState::Zero),
        state("j", "y", (&[1], &[1]), InitialState::File("f".to_owned())),
    ];
    assert_eq!(config.states(), expected);
    let executor = config.for_executor().unwrap();
    let inputs: Vec<_> = executor.inputs.iter().map(|it| (&*it.name, &*it.dims)).collect();
    let expected: [(&str, &[i64]); 4] = [("x", &[1]), ("c", &[1]), ("i", &[-1, 2]), ("j", &[1])];
    assert_eq!(inputs, expected);
    let outputs: Vec<_> = executor.outputs.iter().map(|it| &*it.name).collect();
    assert_eq!(outputs, ["y", "o"], "what clients see is there already");
    assert_eq!(executor.proto, config.proto, "clients see what was written");
}

#[test]
fn wrong_strategies_are_refused_in_tritons_words() {
    for (text, expected) in [
        (
            "direct { minimum_slot_utilization: 1.5 }",
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
        ),
        (
            "oldest { preferred_batch_size: 0 }",
            "sequence batching preferred batch size must be positive for m",
        ),
        (
            "oldest { preferred_batch_size: 5 }",
            "sequence batching preferred batch size must be <= max batch size for m",
        ),
        (
            "oldest { max_candidate_sequences: -1 }",
            "sequence batching max candidate sequences must be non-negative for m",
        ),
    ] {
        refused(text, expected);
    }
}

#[test]
fn wrong_controls_are_refused_in_tritons_words() {
    let control = |name: &str, text: &str| format!("control_input {{ name: '{name}' {text} }}");
    let start = "control { int32_false_true: [ 0, 1 ] }";
    let corrid = "kind: CONTROL_SEQUENCE_CORRID";
    let either = "'int32_false_true', 'fp32_false_true'";
    let multiple = |name| {
        format!(
            "sequence batching control tensor '{name}' is specified for multiple control kinds for m"
        )
    };
    let allowed = "Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and \
                   TYPE_STRING";
    for (text, expected) in [
        (control("", start), "sequence batching control tensor must have a name for m".to_owned()),
        (
            format!(
                "{}{}",
                control("c", start),
                control("c", &format!("control {{ {corrid} data_type: TYPE_INT32 }}"))
            ),
            multiple("c"),
        ),
        (
            format!("{}{}", control("c", start), control("d", start)),
            "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m".to_owned(),
        ),
        (
            control("c", "control { kind: CONTROL_SEQUENCE_END }"),
            format!(
                "sequence batching must specify either {either} or 'bool_false_true' for \
                 CONTROL_SEQUENCE_END for m"
            ),
        ),
        (
            control("c", "control { int32_false_true: [0, 1] bool_false_true: [false, true] }"),
            format!(
                "sequence batching specifies more than one from {either} and 'bool_false_true' for \
                 CONTROL_SEQUENCE_START for m"
            ),
        ),
        (
            control("c", "control { fp32_false_true: [0, 1, 2] }"),
            "sequence batching control 'fp32_false_true' must have exactly 2 entries for \
             CONTROL_SEQUENCE_START for m"
                .to_owned(),
        ),
        (
            control(
                "c",
                &format!("control {{ {corrid} data_type: TYPE_INT32 int32_false_true: [0, 1] }}"),
            ),
            format!(
                "sequence batching must not specify either {either} or 'bool_false_true' for \
                 CONTROL_SEQUENCE_CORRID for m"
            ),
        ),
        (
            control("c", &format!("control {{ {corrid} data_type: TYPE_FP32 }}")),
            format!("unexpected data type for control CONTROL_SEQUENCE_CORRID for m. {allowed}"),
        ),
        (
            control("x", start),
            "sequence batching control tensor 'x' is made by the server, so it cannot be in 'input' \
             or 'batch_input' too, for m"
                .to_owned(),
        ),
    ] {
        refused(&text, &expected);
    }
}

#[test]
fn wrong_states_are_refused_in_tritons_words() {
    let state = |text: &str| {
        format!(
            "state {{ input_name: 'i' output_name: 'o' data_type: TYPE_FP32 dims: [ 2, -1 ] {text} }}"
        )
    };
    let initial = |text: &str| {
        state(&format!("initial_state {{ name: 'n' data_type: TYPE_FP32 zero_data: true {text} }}"))
    };
    let two = "initial_state { } initial_state { }";
    for (text, expected) in [
        (
            state(two),
            "initial_state field for state input 'i' must contain exactly one or zero element. \
             Found '2' elements.",
        ),
        (
            state("initial_state { name: 'n' data_type: TYPE_INT32 }"),
            "The data type used for 'initial_state' field of state 'i' does not match the state \
             data type.",
        ),
        (
            state("initial_state { data_type: TYPE_FP32 }"),
            "Field 'name' must be set when using initial_state for state input 'i'.",
        ),
        (format!("{}{}", state(""), state("")), "State input name 'i' specified more than once."),
        (
            initial("dims: 2"),
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions \
             for state input 'i'. 1 != 2",
        ),
        (
            initial("dims: [ 2, -1 ]"),
            "'initial_state' field for state input name 'i' contains variable dimensions.",
        ),
        (
            initial("dims: [ 3, 1 ]"),
            "'initial_state' dim for input name 'i' doesn't match 'state' dim description. 3 != 2",
        ),
        (
            state("initial_state { name: 'n' data_type: TYPE_FP32 dims: [ 2, 1 ] }"),
            "initial_state setting expects state'i' to have state_data set",
        ),
        (
            state("use_growable_memory: true"),
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state \
             input name 'i'.",
        ),
        (
            state("use_growable_memory: true use_same_buffer_for_input_output: true"),
            "'use_growable_memory' can only work with KIND_GPU model instances right now. Without \
             it a state grows too: each request may leave a larger one",
        ),
        (
            "state { input_name: 'i' output_name: 'y' data_type: TYPE_FP32 dims: 1 }".to_owned(),
            "state 'i' of model 'm' is TYPE_FP32, but its output 'y' is TYPE_INT32",
        ),
        (
            "state { input_name: 'x' output_name: 'o' data_type: TYPE_FP32 dims: 1 }".to_owned(),
            "state input 'x' is kept by the server, so it cannot be another input too",
        ),
        (
            state(
                "initial_state { name: 'n' data_type: TYPE_FP32 dims: [ 2, 1 ] data_file: '../f' }",
            ),
            "initial_state file path '../f' of state 'i' is outside the model's initial_state \
             directory",
        ),
    ] {
        refused(&text, expected);
    }
}

#[track_caller]
fn refused(text: &str, expected: &str) {
    let problems = finish(&sequence(text)).unwrap_err();
    let texts: Vec<_> = problems.iter().map(|it| (it.position.line, &*it.text)).collect();
    assert_eq!(texts, [(3, expected)], "{text}");
}
