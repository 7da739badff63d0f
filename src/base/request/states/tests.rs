//! States of sequences from one request to the next.

use super::*;
use crate::{
    config::{ServerFeatures, read_text},
    error::ErrorKind,
    request::{Context, Reply, Response},
};

/// A model with an output `y` that clients see, and states `s` (not seen) and `t`, which is `y`.
fn set(cap: usize) -> Arc<StateSet> {
    let text = "name: 'm' backend: 'native' max_batch_size: 4 \
        input { name: 'x' data_type: TYPE_UINT8 dims: 1 } \
        output { name: 'y' data_type: TYPE_UINT8 dims: -1 } \
        sequence_batching { \
          state { input_name: 's' output_name: 'S' data_type: TYPE_UINT8 dims: -1 } \
          state { input_name: 't' output_name: 'y' data_type: TYPE_UINT8 dims: -1 } }";
    let config = read_text(text, "f").unwrap().finish(&ServerFeatures::default()).unwrap();
    let config = config.for_executor().unwrap();
    let initial = vec![Bytes::from_static(b"i"), Bytes::from_static(b"j")];
    StateSet::new(&config, initial, &ByteBudget::new(cap)).unwrap().unwrap()
}

fn tensor(rows: i64, bytes: &'static [u8]) -> Option<Tensor> {
    let shape = [rows, bytes.len() as i64 / rows].into_iter().collect();
    Some(Tensor::new(DataType::Uint8, shape, Bytes::from_static(bytes)).unwrap())
}

fn request(flags: u32) -> Request {
    let context = Arc::new(Context { flags, ..Context::default() });
    Request { context, inputs: vec![tensor(1, b"x")], ..Request::default() }
}

fn inputs(request: &Request) -> String {
    let text = |it: &Tensor| String::from_utf8(it.data().to_vec()).unwrap();
    request.inputs.iter().flatten().map(text).collect::<Vec<_>>().join(" ")
}

/// What the model is given, and what the client gets of `y` and `S`.
fn step(
    states: &Arc<SequenceStates>,
    mut request: Request,
    outputs: [Option<Tensor>; 2],
) -> (String, Result<Vec<Option<Bytes>>>) {
    let keeper = states.keeper(&mut request);
    states.feed(&mut request);
    let given = inputs(&request);
    let (reply, mut answer) = Reply::channel();
    let response = Response { outputs: outputs.into(), ..Response::default() };
    reply.keeping(keeper).answer(Ok(response));
    let got = answer.try_recv().unwrap();
    (given, got.map(|it| it.outputs.iter().map(|it| Some(it.as_ref()?.data().clone())).collect()))
}

#[test]
fn what_a_request_leaves_is_given_to_the_next_until_a_sequence_starts() {
    let states = set(usize::MAX).begin();
    let y = |text: &'static str| vec![Some(Bytes::from(text))];
    for (flags, outputs, given, got) in [
        (1, [tensor(1, b"a"), tensor(1, b"A")], "x i j", y("a")),
        (0, [tensor(1, b"bb"), tensor(1, b"BBB")], "x A a", y("bb")),
        (0, [tensor(1, b"c"), None], "x BBB bb", y("c")),
        (0, [None, tensor(1, b"D")], "x BBB c", vec![None]),
        (2, [tensor(1, b"e"), tensor(1, b"E")], "x D c", y("e")),
        (1, [tensor(1, b"f"), tensor(1, b"F")], "x i j", y("f")),
    ] {
        let (was_given, was_got) = step(&states, request(flags), outputs);
        assert_eq!((&*was_given, was_got.unwrap()), (given, got));
    }
}

#[test]
fn a_state_is_asked_for_and_shown_only_to_who_asks() {
    let states = set(usize::MAX).begin();
    let mut asked = request(1);
    asked.wanted = Wanted::Only([].into_iter().collect());
    let mut seen = asked.clone();
    states.keeper(&mut seen);
    assert!(seen.wanted.has(0) && seen.wanted.has(1), "the model is asked for its states");
    let (_, got) = step(&states, asked, [tensor(1, b"a"), tensor(1, b"A")]);
    assert_eq!(got.unwrap(), [None]);
    let mut next = request(0);
    states.feed(&mut next);
    states.feed(&mut next);
    assert_eq!(inputs(&next), "x A a", "a request that is handed over again is fed anew");
}

#[test]
fn what_fails_leaves_states_as_they_were() {
    let states = set(64).begin();
    let wrong = [tensor(1, b"a"), tensor(2, b"AA")];
    let error = step(&states, request(1), wrong).1.unwrap_err();
    let text = "state output 'S' of model 'm' has shape [2,1], expected 1 row";
    assert_eq!(error.to_string(), text);
    // Three eighths of 64 bytes.
    let large = [tensor(1, b"0123456789abc"), tensor(1, b"0123456789abc")];
    let error = step(&states, request(0), large).1.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    let mut next = request(0);
    states.feed(&mut next);
    assert_eq!(inputs(&next), "x i j");
}

#[test]
fn bytes_are_held_as_long_as_the_sequence_lives() {
    let set = set(1 << 10);
    let states = set.begin();
    step(&states, request(1), [tensor(1, b"abc"), tensor(1, b"de")]).1.unwrap();
    assert_eq!((set.share.in_use(), set.budget.in_use()), (5, 5));
    step(&states, request(0), [tensor(1, b"fgh"), tensor(1, b"i")]).1.unwrap();
    assert_eq!(set.share.in_use(), 4);
    drop(states);
    assert_eq!((set.share.in_use(), set.budget.in_use()), (0, 0));
}

#[test]
fn rows_without_a_request_have_zeros_of_the_same_shape() {
    let set = set(usize::MAX);
    let states = set.begin();
    step(&states, request(1), [tensor(1, b"abc"), tensor(1, b"de")]).1.unwrap();
    let mut like = request(0);
    states.feed(&mut like);
    let mut empty = request(0);
    set.feed_zeros(&mut empty, &set.zeros(Some(&like)));
    let bytes: Vec<_> = empty.inputs.iter().flatten().map(|it| it.data().clone()).collect();
    assert_eq!(bytes[1..], [Bytes::from_static(&[0; 2]), Bytes::from_static(&[0; 3])]);
    assert!(set.are_alike(&like, &empty));
    set.feed_zeros(&mut empty, &set.zeros(None));
    assert!(!set.are_alike(&like, &empty));
}

/// Keeps this row of a tensor with so many rows of 100 KiB: does the state share its bytes?
fn check_sharing(max_batch: u32, rows: usize, is_shared: bool) {
    let size = MAX_COPIED_BYTES + 1;
    let text = format!(
        "name: 'm' backend: 'native' max_batch_size: {max_batch} \
         input {{ name: 'x' data_type: TYPE_UINT8 dims: 1 }} \
         output {{ name: 'y' data_type: TYPE_UINT8 dims: 1 }} \
         sequence_batching {{ \
           state {{ input_name: 's' output_name: 'S' data_type: TYPE_UINT8 dims: -1 }} }}"
    );
    let config = read_text(&text, "f").unwrap().finish(&ServerFeatures::default()).unwrap();
    let config = config.for_executor().unwrap();
    let budget = ByteBudget::new(usize::MAX);
    let set = StateSet::new(&config, vec![Bytes::from_static(b"i")], &budget).unwrap().unwrap();
    let states = set.begin();
    let lead = [rows as i64].into_iter().filter(|_| 0 < max_batch);
    let shape: Shape = lead.chain([size as i64]).collect();
    let batch = Tensor::new(DataType::Uint8, shape, vec![7; rows * size].into()).unwrap();
    let row = if max_batch == 0 { batch.clone() } else { batch.slice_rows(0, 1) };
    let (_, answered) = step(&states, request(1), [None, Some(row)]);
    answered.unwrap();
    let mut next = request(0);
    states.feed(&mut next);
    let state = next.inputs[1].as_ref().unwrap();
    assert_eq!((state.data().len(), state.data()[size - 1]), (size, 7));
    assert_eq!(state.data().as_ptr() == batch.data().as_ptr(), is_shared, "{max_batch} {rows}");
}

#[test]
fn a_large_state_is_copied_out_of_a_batch_and_otherwise_shared() {
    check_sharing(4, 3, false);
    check_sharing(1, 1, true);
    check_sharing(0, 1, true);
}
