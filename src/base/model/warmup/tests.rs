//! Samples made of configs, and how they are run.

use std::{cell::RefCell, collections::BTreeMap};

use super::*;
use crate::{
    config::{ServerFeatures, read_text},
    request::Response,
};

const INPUTS: &str = "input { name: 'x' data_type: TYPE_FP32 dims: [ -1, 2 ] }
    input { name: 's' data_type: TYPE_STRING dims: 2 optional: true }";

const ENSEMBLE: &str = "ensemble_scheduling { step { model_name: 'n' input_map [ { key: 'x' \
                        value: 'x' }, { key: 's' value: 's' } ] output_map { key: 'y' value: 'y' } \
                        } } output { name: 'y' data_type: TYPE_FP32 dims: 2 }";

fn config(rest: &str) -> ModelConfig {
    read_text(&format!("name: 'm' {rest}"), "f")
        .unwrap()
        .finish(&ServerFeatures::default())
        .unwrap()
}

/// Samples of a model that is batched by four, with these files.
fn made(warmup: &str, files: &[(&str, &[u8])]) -> Result<Vec<WarmupSample>, Vec<String>> {
    of(&format!("backend: 'native' max_batch_size: 4 {INPUTS}\n{warmup}"), files)
}

fn of(rest: &str, files: &[(&str, &[u8])]) -> Result<Vec<WarmupSample>, Vec<String>> {
    let files: BTreeMap<_, _> = files.iter().copied().collect();
    let read = |file: &str, size: ReadLimit| {
        let bytes = files.get(file).ok_or(format!("no {file}"))?;
        let length = match size {
            ReadLimit::Exactly(length) => length,
            ReadLimit::AtMost(limit) => bytes.len().min(limit),
        };
        Ok(Bytes::copy_from_slice(&bytes[..length]))
    };
    let made = samples(&config(rest), &read);
    made.map_err(|it| it.iter().map(|it| it.to_string()).collect())
}

/// A sample of this size and these inputs, `name TYPE dims what`.
fn sample(size: &str, inputs: &[&str]) -> String {
    let input = |it: &&str| {
        let mut words = it.splitn(4, ' ');
        let mut next = || words.next().unwrap();
        let (name, dtype, dims, data) = (next(), next(), next(), next());
        format!(
            "inputs {{ key: '{name}' value {{ data_type: TYPE_{dtype} dims: [{dims}] {data} }} }}"
        )
    };
    let inputs: Vec<_> = inputs.iter().map(input).collect();
    format!("model_warmup {{ name: 'w' {size} {} }}", inputs.join(" "))
}

const X: &str = "x FP32 3,2 zero_data: true";

fn shapes(request: &Request) -> Vec<Option<&[i64]>> {
    request.inputs.iter().map(|it| it.as_ref().map(Tensor::shape)).collect()
}

#[test]
fn a_model_gets_requests_of_one_row_that_share_their_bytes() {
    let warmup = sample("batch_size: 3 count: 7", &[X]);
    let samples = made(&warmup, &[]).unwrap();
    let [sample] = &samples[..] else { panic!("{} samples", samples.len()) };
    assert_eq!((&*sample.name, sample.count, sample.requests.len()), ("w", 7, 3));
    let data = |index: usize| sample.requests[index].inputs[0].as_ref().unwrap().data();
    for (index, request) in sample.requests.iter().enumerate() {
        assert_eq!(shapes(request), [Some(&[1, 3, 2][..]), None]);
        assert_eq!((request.batch, data(index).as_ptr()), (1, data(0).as_ptr()));
        assert!(data(index).iter().all(|it| *it == 0));
    }
}

#[test]
fn an_ensemble_gets_one_request_of_many_rows() {
    let strings = b"\x01\0\0\0a\0\0\0\0";
    let warmup = sample("batch_size: 3", &[X, "s STRING 2 input_data_file: 'f'"]);
    let rest = format!("platform: 'ensemble' max_batch_size: 4 {INPUTS} {ENSEMBLE} {warmup}");
    let samples = of(&rest, &[("f", strings)]).unwrap();
    let [request] = &samples[0].requests[..] else { panic!("several requests") };
    assert_eq!((shapes(request), request.batch), (vec![Some(&[3, 3, 2][..]), Some(&[3, 2])], 3));
    let words: Vec<_> = request.inputs[1].as_ref().unwrap().strings().collect();
    assert_eq!(words, [b"a", &b""[..], b"a", b"", b"a", b""]);
}

#[test]
fn inputs_come_as_the_model_sees_them() {
    let rest = format!(
        "backend: 'native' input {{ name: 'x' data_type: TYPE_FP32 dims: [ 1, 6 ] reshape {{ \
         shape: [ 3, 2 ] }} }} {}",
        sample("batch_size: 1", &["x FP32 1,6 random_data: true"])
    );
    let samples = of(&rest, &[]).unwrap();
    assert_eq!(shapes(&samples[0].requests[0]), [Some(&[3, 2][..])]);
}

#[test]
fn strings_that_are_made_up_are_empty() {
    let warmup = sample("batch_size: 1", &[X, "s STRING 2 random_data: true"]);
    let samples = made(&warmup, &[]).unwrap();
    let strings = samples[0].requests[0].inputs[1].as_ref().unwrap();
    assert_eq!(strings.strings().collect::<Vec<_>>(), [b"", b""]);
}

#[test]
fn samples_of_size_zero_are_skipped() {
    assert_eq!(made(&sample("", &["nobody INT8 1 zero_data: true"]), &[]).unwrap().len(), 0);
}

#[track_caller]
fn wrong(size: &str, inputs: &[&str], expected: &str) {
    let problems = made(&sample(size, inputs), &[("short", b"abc")]).err().unwrap();
    assert_eq!(problems.len(), 1, "{problems:?}");
    let (place, text) = problems[0].split_once(": warmup sample 'w': ").unwrap();
    assert!(text.starts_with(expected), "{text}");
    assert!(place.starts_with("f:3:"), "{place}");
}

#[test]
fn what_the_model_cannot_take_is_a_problem_with_its_line() {
    let one = "batch_size: 1";
    wrong(one, &[X, "q FP32 1 zero_data: true"], "unexpected inference input 'q' for model 'm'");
    wrong(
        one,
        &[],
        "expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. Got input(s) \
         [], but missing required input(s) ['x']. Please provide all required input(s).",
    );
    wrong(
        one,
        &["x INT32 3,2 zero_data: true"],
        "inference input 'x' data-type is 'INT32', but model 'm' expects 'FP32'",
    );
    wrong(
        one,
        &["x FP32 3,3 zero_data: true"],
        "unexpected shape for input 'x' for model 'm'. Expected [-1,-1,2], got [1,3,3]. NOTE: ",
    );
    wrong(
        one,
        &["x FP32 -2,2 zero_data: true"],
        "input 'x': shape [-2,2] contains one or more invalid dimensions",
    );
    wrong("batch_size: 5", &[X], "batch size 5 for 'm', max allowed is 4");
    wrong(one, &["x FP32 3,2 input_data_file: 'none'"], "no none");
    wrong(
        one,
        &[X, "s STRING 2 input_data_file: 'short'"],
        "input 's' from 'short': incomplete string length indicator, expecting 4 bytes but only 3 \
         bytes available",
    );
}

#[test]
fn memory_has_a_limit() {
    let one = "batch_size: 1";
    let limit = format!("takes more than {MAX_SAMPLE_BYTES} bytes");
    for dims in ["1000000000,2", "9223372036854775807,1"] {
        let text = format!("shape [{dims}] of input 'x' {limit}");
        wrong(one, &[&format!("x FP32 {dims} random_data: true")], &text);
    }
    wrong(
        one,
        &["x FP32 9223372036854775807,9223372036854775807 zero_data: true"],
        "input 'x': shape [9223372036854775807,9223372036854775807] causes total element count",
    );
    let rest = format!(
        "backend: 'native' max_batch_size: 2147483647 {INPUTS} {}",
        sample("batch_size: 2147483647", &[X])
    );
    let problems = of(&rest, &[]).err().unwrap();
    assert!(problems[0].ends_with(&format!("batch size 2147483647 {limit}")), "{problems:?}");
}

#[test]
fn without_a_batch_dimension_one_request_is_all() {
    let rest = |size: &str| format!("backend: 'native' {INPUTS} {}", sample(size, &[X]));
    let samples = of(&rest("batch_size: 1"), &[]).unwrap();
    assert_eq!(shapes(&samples[0].requests[0])[0], Some(&[3, 2][..]));
    let problems = of(&rest("batch_size: 2"), &[]).err().unwrap();
    assert!(problems[0].ends_with("batch size 2 for 'm', max allowed is 0"), "{problems:?}");
}

/// Runs two samples and answers with what `answer` says to each execution's number.
async fn ran(answer: impl Fn(usize) -> Result<Response>) -> (Vec<usize>, Result<()>) {
    let warmup = format!(
        "{}{}",
        sample("batch_size: 3 count: 2", &[X]),
        sample("batch_size: 1", &[X]).replace("'w'", "'v'")
    );
    let samples = made(&warmup, &[]).unwrap();
    let groups = RefCell::new(Vec::new());
    let result = run(&samples, "somebody", |group| {
        let number = groups.borrow().len();
        groups.borrow_mut().push(group.len());
        for pending in group {
            assert_eq!(pending.request.counted_rows(), 0);
            pending.reply.answer(answer(number));
        }
    });
    let result = result.await;
    (groups.into_inner(), result)
}

#[tokio::test]
async fn samples_run_in_order_and_as_often_as_they_say() {
    let (groups, result) = ran(|_| Ok(Response::default())).await;
    assert_eq!((groups, result), (vec![3, 3, 1], Ok(())));
}

#[tokio::test]
async fn the_first_failure_ends_it_and_is_told_once() {
    let (groups, result) = ran(|number| match number {
        0 => Ok(Response::default()),
        _ => Err(Error::internal("it broke")),
    })
    .await;
    assert_eq!(groups, [3, 3]);
    assert_eq!(result.unwrap_err().to_string(), "failed to run warmup sample 'w': it broke");
}
