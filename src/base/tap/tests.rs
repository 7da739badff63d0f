//! Taps without an ensemble around them.

use std::sync::Weak;

use futures_util::FutureExt;

use super::*;
use crate::{
    budget::Budget,
    config::{ServerFeatures, read_text},
    request::{Context, Parameter},
    tap::{
        manifest::{CaptureOrigin, Manifest},
        reserve,
    },
    tensor::DataType,
};

const MANY: usize = 1 << 20;

fn taps() -> Taps {
    Taps::new(["IN", "mid", "OUT"].map(Into::into).to_vec())
}

fn wish(requests: usize, max_bytes: usize) -> CaptureSpec {
    CaptureSpec { requests, edges: None, max_bytes }
}

fn tensor(bytes: usize) -> Tensor {
    let shape = [bytes as i64].into_iter().collect();
    Tensor::new(DataType::Uint8, shape, vec![7; bytes].into()).unwrap()
}

fn request(id: &str, bytes: usize) -> Request {
    let parameters = vec![("mine".into(), Parameter::String("text".to_owned()))];
    let context = Context { id: id.to_owned(), flags: 1, parameters, ..Context::default() };
    Request { context: Arc::new(context), inputs: vec![Some(tensor(bytes))], ..Request::default() }
}

/// Slots and iterations of what was kept of each request.
fn kept(capture: &Capture) -> Vec<Vec<(usize, Option<u64>)>> {
    let edges = |it: &CapturedRequest| it.edges.iter().map(|it| (it.slot, it.iteration)).collect();
    capture.requests.iter().map(edges).collect()
}

#[test]
fn only_the_next_requests_are_captured() {
    let taps = taps();
    assert!(taps.begin(&request("before", 1), &[0]).is_none());
    let tap = taps.start("e", &wish(2, MANY)).unwrap();
    let first = taps.begin(&request("a", 1), &[0]).unwrap();
    let context = Arc::new(Context { is_warmup: true, ..Context::default() });
    assert!(taps.begin(&Request { context, ..Request::default() }, &[]).is_none());
    let second = taps.begin(&request("b", 1), &[0]).unwrap();
    assert!(taps.begin(&request("after", 1), &[0]).is_none());
    second.outputs(&[(1, 2)], &[None, Some(tensor(1))], 4);
    first.iteration(3).outputs(&[(0, 1), (1, 2)], &[Some(tensor(1)), None], 0);
    drop(second);
    assert!(tap.over().now_or_never().is_none());
    first.failed(1, &Error::invalid("no luck"));
    drop(first);
    assert_eq!(tap.over().now_or_never(), Some(CaptureEnd::Complete));
    let capture = tap.take();
    assert_eq!(kept(&capture), [vec![(0, None), (1, Some(3))], vec![(0, None), (2, None)]]);
    assert_eq!(capture.requests[1].edges[1].batch, 4);
    let failed = StepFailure { step: 1, iteration: None, text: "no luck".to_owned() };
    assert_eq!(capture.requests[0].failed, [failed]);
    assert!(capture.requests.iter().all(|it| it.has_ended));
    assert!(taps.begin(&request("later", 1), &[0]).is_none());
}

#[test]
fn chosen_tensors_only() {
    let taps = taps();
    let edges = Some(vec!["OUT".to_owned(), "OUT".to_owned()]);
    let tap = taps.start("e", &CaptureSpec { edges, ..wish(1, MANY) }).unwrap();
    let recording = taps.begin(&request("a", 1), &[0]).unwrap();
    recording.outputs(&[(0, 1), (1, 2)], &[Some(tensor(1)), Some(tensor(1))], 0);
    assert_eq!(kept(&tap.take()), [[(2, None)]]);
    for (edges, expected) in
        [(&["OUT", "b", "a"][..], "no tensor 'a', 'b'"), (&[], "'edges' names no tensor")]
    {
        let edges = Some(edges.iter().map(|it| (*it).to_owned()).collect());
        let error = taps.start("e", &CaptureSpec { edges, ..wish(1, MANY) }).unwrap_err();
        let expected = format!("{expected}: the tensors of ensemble 'e' are 'IN', 'mid', 'OUT'");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn one_tap_at_a_time() {
    let taps = taps();
    let tap = taps.start("e", &wish(1, MANY)).unwrap();
    let error = taps.start("e", &wish(1, MANY)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.to_string().starts_with("ensemble 'e' is being tapped already"), "{error}");
    drop(tap);
    let second = taps.start("e", &wish(1, MANY)).unwrap();
    assert_eq!(second.take().requests.len(), 0);
    taps.start("e", &wish(1, MANY)).unwrap();
}

#[test]
fn what_does_not_fit_is_left_out_and_counted() {
    let taps = taps();
    let tap = taps.start("e", &wish(3, 5000)).unwrap();
    let first = taps.begin(&request("a", 300), &[0]).unwrap();
    first.outputs(&[(0, 1), (1, 2)], &[Some(tensor(1_000_000)), Some(tensor(300))], 0);
    let second = taps.begin(&request("b", 10_000), &[0]).unwrap();
    first.failed(0, &Error::internal("x".repeat(3000)));
    let third = taps.begin(&request(&"long".repeat(500), 1), &[0]).unwrap();
    drop((first, second, third));
    assert_eq!(tap.over().now_or_never(), Some(CaptureEnd::Complete));
    let capture = tap.take();
    assert_eq!(kept(&capture), [vec![(0, None), (2, None)], vec![], vec![]]);
    assert!(600 < capture.bytes && capture.bytes <= 5000);
    assert_eq!((capture.tensors(), capture.left_out(), capture.left_out_bytes), (2, 3, 1_010_001));
    assert_eq!((capture.requests[0].failed.len(), capture.requests[0].more_failed), (0, 1));
    let is_left_out: Vec<_> = capture.requests.iter().map(|it| it.is_left_out).collect();
    assert_eq!(is_left_out, [false, false, true]);
}

#[test]
fn a_dropped_tap_lets_go_of_everything() {
    let taps = taps();
    let tap = taps.start("e", &wish(5, MANY)).unwrap();
    let recording = taps.begin(&request("a", 10), &[0]).unwrap();
    let session: Weak<TapSession> = Arc::downgrade(&tap.session);
    drop(tap);
    let session = session.upgrade().expect("the request under way knows it");
    recording.outputs(&[(0, 1)], &[Some(tensor(1))], 0);
    recording.failed(0, &Error::internal("late"));
    assert!(session.capture.lock().is_none());
    assert!(taps.begin(&request("b", 10), &[0]).is_none());
}

#[test]
fn an_ensemble_that_goes_ends_its_tap() {
    let taps = taps();
    let tap = taps.start("e", &wish(5, MANY)).unwrap();
    drop(taps.begin(&request("a", 10), &[0]));
    drop(taps);
    assert_eq!(tap.over().now_or_never(), Some(CaptureEnd::Unloaded));
    assert_eq!(tap.take().tensors(), 1);
}

#[test]
fn all_taps_share_a_limit() {
    let budget = Budget::new(100);
    let first = reserve(&budget, 60).unwrap();
    let error = reserve(&budget, 41).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().starts_with("other taps leave 40 of the 100 bytes"), "{error}");
    drop((reserve(&budget, 40).unwrap(), first));
    reserve(&budget, 100).unwrap();
}

#[test]
fn the_manifest_tells_what_was_captured() {
    let config = "name: 'e' platform: 'ensemble' input { name: 'IN' data_type: TYPE_UINT8 dims: -1 } \
                  output { name: 'OUT' data_type: TYPE_UINT8 dims: -1 } ensemble_scheduling { \
                  step { model_name: 'a' model_version: -1 input_map { key: 'x' value: 'IN' } \
                  output_map { key: 'y' value: 'mid' } } step { model_name: 'b' model_version: 3 \
                  input_map { key: 'x' value: 'mid' } output_map { key: 'y' value: 'OUT' } } }";
    let config = read_text(config, "config").unwrap().finish(&ServerFeatures::default()).unwrap();
    let taps = taps();
    let tap = taps.start("e", &wish(2, MANY)).unwrap();
    let recording = taps.begin(&request("a", 2), &[0]).unwrap();
    recording.iteration(5).outputs(&[(0, 1)], &[Some(tensor(3))], 2);
    let edges = tap.edges();
    let capture = tap.take();
    let steps = [(7, true), (3, false)];
    let origin = CaptureOrigin {
        config: &config,
        version: 1,
        steps: &steps,
        edges: &edges,
        requested: 2,
        max_bytes: MANY,
    };
    let parts = archive::write(&origin, &capture, CaptureEnd::Timeout).unwrap();
    let files = crate::numpy::npz::read(&parts.concat().into()).unwrap();
    let names: Vec<_> = files.iter().map(|it| &*it.0).collect();
    assert_eq!(names, ["manifest.json", "request-0/IN.npy", "request-0-iteration-5/mid.npy"]);
    let manifest: Manifest = serde_json::from_slice(&files[0].1).unwrap();
    assert_eq!((&*manifest.ended, manifest.requested, manifest.version), ("timeout", 2, 1));
    assert_eq!((manifest.steps[0].version, manifest.steps[0].decoupled), (7, true));
    let request = &manifest.requests[0];
    assert_eq!(
        (&*request.id, request.ended, &request.outputs[..]),
        ("a", false, &["OUT".into()][..])
    );
    let text = Parameter::String("text".to_owned());
    let parameters = [("mine".into(), text), ("sequence_start".into(), Parameter::Bool(true))];
    assert_eq!(request.parameters(), parameters);
    let mid = &request.tensors[1];
    assert_eq!((mid.written_by, &mid.read_by[..], mid.iteration), (Some(0), &[1][..], Some(5)));
    assert_eq!((&*mid.datatype, &mid.shape[..], &*mid.stored_as), ("UINT8", &[3][..], "|u1"));
}
