//! Formats a finished trace as Triton's trace file has it: JSON objects with identifiers, times and
//! tensors.

use std::{
    collections::HashMap,
    fmt::{Display, Write},
    time::Instant,
};

use half::{bf16, f16};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use troupe_base::{
    tensor::{DataType, Tensor},
    trace::{FinishedTrace, ModelSpan},
};
use troupe_options::TraceLevels;

/// The objects of one request, joined by commas; empty if no model has seen it. Requests of models
/// are numbered from `last` on.
pub(super) fn text(finished: &FinishedTrace, levels: TraceLevels, last: &mut u64) -> String {
    let begin = *last + 1;
    *last += finished.model_spans.len() as u64;
    let spans = || finished.model_spans.iter().zip(begin..);
    let numbers: HashMap<u64, u64> = spans().map(|(it, number)| (it.id, number)).collect();
    let clock = MonotonicClock::now();
    let mut objects = Vec::new();
    for (span, id) in spans() {
        objects.push(head(span, id, numbers.get(&span.parent)));
        let mut marks = Vec::new();
        if id == begin {
            marks.extend(finished.marks.iter().copied());
        }
        marks.extend(moments(span));
        if levels.timestamps {
            objects.extend(marks.into_iter().map(
                |(name, at)| json!({"id": id, "timestamps": [{"name": name, "ns": clock.at(at)}]}),
            ));
        }
        for (activity, tensors) in
            [("TENSOR_QUEUE_INPUT", &span.inputs), ("TENSOR_BACKEND_OUTPUT", &span.outputs)]
        {
            objects.extend(tensors.iter().map(|(name, tensor)| {
                json!({"id": id, "activity": activity, "tensor": contents(name, tensor)})
            }));
        }
    }
    objects.iter().map(Value::to_string).collect::<Vec<_>>().join(",")
}

/// Nanoseconds of the monotonic clock, as in Triton's traces.
struct MonotonicClock(Instant, i64);

impl MonotonicClock {
    fn now() -> MonotonicClock {
        let now = clock_gettime(ClockId::Monotonic);
        MonotonicClock(Instant::now(), now.tv_sec * 1_000_000_000 + now.tv_nsec)
    }

    fn at(&self, moment: Instant) -> i64 {
        match moment.checked_duration_since(self.0) {
            Some(after) => self.1 + after.as_nanos() as i64,
            None => self.1 - self.0.saturating_duration_since(moment).as_nanos() as i64,
        }
    }
}

fn head(span: &ModelSpan, id: u64, above: Option<&u64>) -> Value {
    let begin = &span.start;
    let mut head = json!({"id": id, "model_name": *begin.model, "model_version": begin.version});
    if !begin.request_id.is_empty() {
        head["request_id"] = begin.request_id.as_str().into();
    }
    if let Some(above) = above {
        head["parent_id"] = (*above).into();
    }
    head
}

fn moments(span: &ModelSpan) -> Vec<(&'static str, Instant)> {
    let begun = span.start.at;
    let mut moments = vec![("REQUEST_START", begun), ("QUEUE_START", begun)];
    if let Some(execution) = &span.execution {
        let [input, infer, output] = execution.moments();
        moments.extend([
            ("COMPUTE_START", execution.begun.max(begun)),
            ("COMPUTE_INPUT_END", input),
            ("COMPUTE_OUTPUT_START", infer),
            ("COMPUTE_END", output),
        ]);
    }
    moments.extend(span.ended.map(|it| ("REQUEST_END", it)));
    moments
}

fn contents(name: &str, tensor: &Tensor) -> Value {
    let shape: Vec<String> = tensor.shape().iter().map(i64::to_string).collect();
    let dtype = tensor.dtype().as_str();
    json!({"name": name, "data": data(tensor), "shape": shape.join(","), "dtype": dtype})
}

/// Elements between commas; bytes that are no text are replaced.
fn data(tensor: &Tensor) -> String {
    use DataType::*;
    let data = tensor.data();
    match tensor.dtype() {
        Bool => elements(data, |[it]: [u8; 1]| it),
        Uint8 => elements(data, u8::from_le_bytes),
        Uint16 => elements(data, u16::from_le_bytes),
        Uint32 => elements(data, u32::from_le_bytes),
        Uint64 => elements(data, u64::from_le_bytes),
        Int8 => elements(data, i8::from_le_bytes),
        Int16 => elements(data, i16::from_le_bytes),
        Int32 => elements(data, i32::from_le_bytes),
        Int64 => elements(data, i64::from_le_bytes),
        Fp16 => elements(data, |it| f16::from_le_bytes(it).to_f32()),
        Bf16 => elements(data, |it| bf16::from_le_bytes(it).to_f32()),
        Fp32 => elements(data, f32::from_le_bytes),
        Fp64 => elements(data, f64::from_le_bytes),
        Bytes => {
            let strings = tensor.strings().map(|it| String::from_utf8_lossy(it).into_owned());
            strings.collect::<Vec<_>>().join(",")
        }
    }
}

fn elements<T: Display, const N: usize>(data: &[u8], read: impl Fn([u8; N]) -> T) -> String {
    let mut text = String::with_capacity(data.len());
    for (index, element) in data.as_chunks::<N>().0.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{}", read(*element));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use troupe_base::trace::{OpenSpan, Span, SpanStart, TraceContext, TraceRecord, TraceSink};

    struct Kept(parking_lot::Mutex<Vec<Arc<FinishedTrace>>>);

    impl TraceSink for Kept {
        fn take(&self, finished: Arc<FinishedTrace>) {
            self.0.lock().push(finished);
        }
    }

    fn begin(model: &str, request_id: &str) -> SpanStart {
        SpanStart {
            model: model.into(),
            version: 1,
            is_ensemble: false,
            request_id: request_id.to_owned(),
            at: Instant::now(),
        }
    }

    fn floats(name: &str, values: [f32; 2]) -> (String, Tensor) {
        let data: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        let tensor = Tensor::new(DataType::Fp32, [1, 2].as_slice().into(), data.into());
        (name.to_owned(), tensor.unwrap())
    }

    /// An ensemble with one step.
    fn finished() -> Arc<FinishedTrace> {
        let kept = Arc::new(Kept(Default::default()));
        let mut record =
            TraceRecord::new(TraceContext::default(), Instant::now(), vec![kept.clone()]);
        record.has_tensors = true;
        let record = Arc::new(record);
        record.mark("HTTP_RECV_START", record.begun);
        let outer = Span::root(record).begin(begin("outer", "r")).unwrap();
        let inner: OpenSpan = outer.span().at_step(0).begin(begin("inner", "")).unwrap();
        let inner = inner.with_tensors(vec![floats("x", [1.5, -2.0])], vec!["y".to_owned()]);
        inner.outputs(&[Some(floats("y", [0.0, 3.0]).1)]);
        inner.end(&Ok(&Default::default()), Instant::now());
        outer.end(&Ok(&Default::default()), Instant::now());
        kept.0.lock().pop().unwrap()
    }

    #[test]
    fn objects_have_tritons_schema() {
        let levels = TraceLevels { timestamps: true, tensors: true };
        let mut last = 4;
        let text = text(&finished(), levels, &mut last);
        let objects: Vec<Value> = serde_json::from_str(&format!("[{text}]")).unwrap();
        let outer = json!({"id": 5, "model_name": "outer", "model_version": 1, "request_id": "r"});
        let inner = json!({"id": 6, "model_name": "inner", "model_version": 1, "parent_id": 5});
        assert_eq!((&objects[0], last), (&outer, 6));
        assert!(objects.contains(&inner));
        let names: Vec<&str> =
            objects.iter().filter_map(|it| it["timestamps"][0]["name"].as_str()).collect();
        let model = ["REQUEST_START", "QUEUE_START", "REQUEST_END"];
        assert_eq!(names, [&["HTTP_RECV_START"], &model[..], &model[..]].concat());
        let tensor = json!({"name": "x", "data": "1.5,-2", "shape": "1,2", "dtype": "FP32"});
        assert!(
            objects.contains(&json!({"id": 6, "activity": "TENSOR_QUEUE_INPUT", "tensor": tensor}))
        );
        let tensor = json!({"name": "y", "data": "0,3", "shape": "1,2", "dtype": "FP32"});
        assert!(
            objects
                .contains(&json!({"id": 6, "activity": "TENSOR_BACKEND_OUTPUT", "tensor": tensor}))
        );
    }

    #[test]
    fn every_type_has_a_text() {
        for (dtype, bytes, expected) in [
            (DataType::Bool, &[1, 0][..], "1,0"),
            (DataType::Int16, &[255, 255, 2, 0], "-1,2"),
            (DataType::Fp16, &[0, 0x3c, 0, 0xc0, 1, 0], "1,-2,0.000000059604645"),
            (DataType::Bf16, &[0x80, 0x3f], "1"),
            (DataType::Fp64, &[0, 0, 0, 0, 0, 0, 0xf8, 0x3f], "1.5"),
            (DataType::Bytes, &[2, 0, 0, 0, b'h', b'i', 1, 0, 0, 0, 255], "hi,\u{fffd}"),
        ] {
            let count = expected.split(',').count() as i64;
            let shape = [count].as_slice().into();
            let tensor = Tensor::new(dtype, shape, bytes.to_vec().into()).unwrap();
            assert_eq!(data(&tensor), expected, "{dtype:?}");
        }
    }
}
