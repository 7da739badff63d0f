//! Large tensors: never copied between workers, reused when free, never while somebody looks.

use super::*;
use crate::python::{
    memory::segments::Segments,
    protocol::{encode, frames::FRAME_LIMIT},
};
use troupe_base::{budget::ByteBudget, metrics::Metrics, tensor::SegmentSizes};

const ANY: (DataType, &[i64]) = (FP32, &[-1]);
const SIZE: usize = 16 << 20;

/// As a gateway makes it: read straight into shared memory.
fn large(fill: u8) -> Tensor {
    let mut segment = SegmentPool::new(0).take(SIZE, Owner::default()).unwrap();
    segment.bytes_mut()[..SIZE].fill(fill);
    let lease = segment.freeze();
    Tensor::in_segment(FP32, Shape::from_slice(&[(SIZE / 4) as i64]), &lease, 0..SIZE).unwrap()
}

#[actix_rt::test]
async fn a_chain_of_identities_copies_nothing() {
    let model = model(IDENTITY, &[ANY], &[ANY]);
    let mut remotes: Vec<_> = (0..8).map(|_| model.open()).collect();
    let mut tensor = large(1);
    let address = tensor.data().as_ptr();
    for remote in &mut remotes {
        tensor = output(&mut **remote, request(vec![tensor])).await;
        assert_eq!(tensor.data().as_ptr(), address);
    }
    assert!(tensor.data().iter().all(|it| *it == 1));
}

#[actix_rt::test]
async fn tensors_that_lie_elsewhere_are_placed_once() {
    let model = model(IDENTITY, &[ANY], &[ANY]);
    let mut remotes: Vec<_> = (0..3).map(|_| model.open()).collect();
    for size in [20 << 10, SIZE] {
        let data: Bytes = (0..size).map(|it| it as u8).collect::<Vec<u8>>().into();
        let shape = Shape::from_slice(&[(size / 4) as i64]);
        let mut tensor = Tensor::new(FP32, shape, data.clone()).unwrap();
        let mut addresses = Vec::new();
        for remote in &mut remotes {
            tensor = output(&mut **remote, request(vec![tensor])).await;
            addresses.push(tensor.data().as_ptr());
            assert_eq!(tensor.data(), &data);
        }
        assert!(addresses.iter().all(|it| *it == addresses[0]), "{addresses:?}");
    }
}

const DOUBLE: &str = "
    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                array *= 2
                out = pb_utils.Tensor('OUT0', array + 0)
                answers.append(pb_utils.InferenceResponse([out]))
            return answers
    ";

#[actix_rt::test]
async fn a_segment_is_used_again_once_nobody_holds_it() {
    let model = model(DOUBLE, &[ANY], &[ANY]);
    let mut remote = model.open();
    let count = 1 << 16;
    let ones = || request(vec![fp32(&[count as i64], &vec![1.0; count])]);
    let first = output(&mut *remote, ones()).await;
    let second = output(&mut *remote, ones()).await;
    let (one, two) = (first.data().as_ptr(), second.data().as_ptr());
    assert_ne!(one, two, "the first is still held");
    drop(first);
    let third = output(&mut *remote, ones()).await;
    assert_eq!(third.data().as_ptr(), one);
    for tensor in [second, third] {
        assert_eq!(floats(&tensor), vec![2.0; count]);
    }
}

#[actix_rt::test]
async fn a_model_that_writes_to_its_input_spoils_nobody_elses() {
    let model = model(DOUBLE, &[ANY], &[ANY]);
    let mut remote = model.open();
    let shared = large(0x3f);
    let before = shared.data().clone();
    let copy = before.to_vec();
    let answers =
        run(&mut *remote, vec![vec![request(vec![shared.clone()]), request(vec![shared.clone()])]]);
    let answers = answers.await;
    let group = answers[0].as_ref().unwrap();
    let values: Vec<f32> = group
        .iter()
        .map(|it| floats(it.as_ref().unwrap().outputs[0].as_ref().unwrap())[0])
        .collect();
    let one = floats(&shared)[0];
    assert_eq!(values, [2.0 * one, 2.0 * one]);
    assert!(before == copy);
}

#[actix_rt::test]
async fn what_a_model_keeps_is_never_overwritten() {
    let source = "
        class TritonPythonModel:
            def initialize(self, args):
                self.kept = None
            def execute(self, requests):
                array = requests[0].inputs()[0].as_numpy()
                if self.kept is None:
                    self.kept = array[1:]
                out = pb_utils.Tensor('OUT0', self.kept[:1].copy())
                return [pb_utils.InferenceResponse([out])]
        ";
    let model = model(source, &[ANY], &[ANY]);
    let mut remote = model.open();
    for fill in [1.0f32, 2.0, 3.0] {
        let count = 1 << 16;
        let input = fp32(&[count as i64], &vec![fill; count]);
        assert_eq!(floats(&output(&mut *remote, request(vec![input])).await), [1.0]);
    }
}

#[actix_rt::test]
async fn many_large_tensors_in_one_frame_arrive() {
    let model = model(IDENTITY, &[ANY], &[ANY]);
    let mut remote = model.open();
    let count = 8 << 10;
    for _ in 0..2 {
        let of = |i: usize| request(vec![fp32(&[count as i64], &vec![i as f32; count])]);
        let answers = run(&mut *remote, vec![(0..400).map(of).collect()]).await;
        for (i, answer) in answers[0].as_ref().unwrap().iter().enumerate() {
            let tensor = answer.as_ref().unwrap().outputs[0].as_ref().unwrap();
            assert_eq!(floats(tensor), vec![i as f32; count]);
        }
    }
}

#[actix_rt::test]
async fn without_shared_memory_tensors_travel_in_the_frame_as_far_as_it_goes() {
    // Nobody is at the other end: no segment can be shown.
    let (passing, _) = std::os::unix::net::UnixStream::pair().unwrap();
    let copied = Metrics::new().copied_bytes("m");
    let mut segments = Segments::new(passing.into(), SegmentPool::new(0), copied.into());
    let mut frame = Vec::new();
    let mut encoded = |sizes: &[usize]| {
        let tensor = |size: usize| {
            let lease = SegmentPool::new(0).take(size, Owner::default()).unwrap().freeze();
            let shape = Shape::from_slice(&[size as i64]);
            Tensor::in_segment(DataType::Uint8, shape, &lease, 0..size).unwrap()
        };
        let one = request(sizes.iter().map(|it| tensor(*it)).collect());
        let failures = encode::execute(&mut frame, 1, &mut [vec![one]], &mut segments);
        failures.first().map_or(Ok(frame.len()), |(_, error)| Err(error.to_string()))
    };
    assert!((1 << 20..(1 << 20) + 200).contains(&encoded(&[1 << 20]).unwrap()));
    // No memory behind them: they are only refused, never read. The last has more than 32 bits.
    for sizes in [&[FRAME_LIMIT][..], &[1 << 10, FRAME_LIMIT], &[1 << 20, (4 << 30) + 8]] {
        let text = encoded(sizes).unwrap_err();
        let start = "the requests' tensors found no shared memory, and ";
        assert!(text.starts_with(start) && text.ends_with("is 1073741824"), "{text}");
    }
    assert!(encoded(&[1 << 20]).is_ok());
}

#[actix_rt::test]
async fn an_answer_too_large_for_a_frame_is_an_error_and_its_segments_are_used_again() {
    let source = "
        import numpy as np
        import troupe_encode, troupe_requests
        class TritonPythonModel:
            def execute(self, requests):
                kind = requests[0].inputs()[0].as_numpy()[0]
                large = pb_utils.Tensor('OUT0', np.zeros(1 << 20, 'f4'))
                if kind == 0:
                    own = len(troupe_requests.worker.segments.own)
                    return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT0', np.full(1, own, 'f4'))])]
                if kind == 1:
                    wrong = pb_utils.Tensor('OUT1', np.zeros(1, 'c16'))
                    return [pb_utils.InferenceResponse([large, wrong])]
                if kind == 2:
                    wrong = pb_utils.Tensor('OUT1', 'no array')
                    wrong._array = None
                    return [pb_utils.InferenceResponse([large, wrong])]
                troupe_encode.FRAME_LIMIT = 1 << 20
                return [pb_utils.InferenceResponse([large], parameters={'a': 'x' * (1 << 20)})]
        ";
    let model = model(source, &[(FP32, &[1])], &[ANY, ANY]);
    let mut remote = model.open();
    let send = |kind: f32| request(vec![fp32(&[1], &[kind])]);
    let cases = [
        (1.0, "Numpy dtype complex128 is not supported by Triton."),
        (2.0, "message: AttributeError: "),
        (3.0, "message: The answers are 1048"),
    ];
    for (kind, expected) in cases {
        for _ in 0..5 {
            let text = ask(&mut *remote, send(kind)).await.unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
        assert_eq!(floats(&output(&mut *remote, send(0.0)).await), [1.0], "{expected}");
    }
}

/// Groups that are sent together do not fail with it.
#[actix_rt::test]
async fn a_group_whose_tensors_find_no_memory_fails_alone() {
    let mut model = model(IDENTITY, &[ANY], &[ANY]);
    let sizes = SegmentSizes { most: 4 << 20, ..SegmentSizes::default() };
    model.settings.segments = SegmentPool::of_server(sizes, 0, &ByteBudget::unlimited());
    let mut remote = model.open();
    let of = |count: usize| vec![request(vec![fp32(&[count as i64], &vec![1.0; count])])];
    // Too large for the limit: before, between and behind others. The last would be copied elsewhere.
    for large in [5 << 20, 8 << 20] {
        let groups = vec![of(large / 4), of(1), of(8 << 10), of(large / 4), of(2), of(large / 4)];
        let told = run(&mut *remote, groups).await.into_iter().map(|group| {
            let response = group.and_then(|mut it| it.remove(0));
            response.map(|it| it.outputs[0].as_ref().map_or(0, |it| it.data().len()))
        });
        let told: Vec<_> =
            told.map(|it| it.map_err(|error| (error.kind(), error.to_string()))).collect();
        for (index, size) in [(1, 4), (2, 32 << 10), (4, 8)] {
            assert_eq!(told[index], Ok(size), "group {index}");
        }
        for index in [0, 3, 5] {
            let (kind, text) = told[index].clone().unwrap_err();
            assert_eq!(kind, ErrorKind::Unavailable, "{text}");
            assert!(text.contains("no shared memory for tensors"), "{text}");
            for internal in ["memfd", "/dev/shm", "/proc", "fd "] {
                assert!(!text.contains(internal), "{text}");
            }
        }
    }
    assert_eq!(output(&mut *remote, of(3).remove(0)).await.data().len(), 12);
}
