//! Megabytes per second of the HTTP codecs: JSON and binary, numbers and strings, in and out.

use bytes::Bytes;
use criterion::{Criterion, Throughput};
use troupe_base::{
    request::{Response, Wanted},
    tensor::{DataType, Tensor},
};
use troupe_gateway::http::codec;

use crate::bed::Bed;

/// A tensor as it travels, and as JSON writes it.
struct Sample {
    name: &'static str,
    dtype: DataType,
    elements: usize,
    raw: Vec<u8>,
    json: String,
}

/// MB/s are of body bytes, so JSON, with more of them for the same tensor, seems faster than it is.
pub(crate) fn http(criterion: &mut Criterion, bed: &Bed) {
    for sample in [numbers("4 numbers", 4), numbers("64Ki numbers", 64 << 10), words(1024)] {
        let kind = sample.dtype.config_name();
        let model = bed.native(&format!(
            "name: \"identity\" backend: \"native\"
             input {{ name: \"INPUT0\" data_type: {kind} dims: [ -1 ] }}
             output {{ name: \"OUTPUT0\" data_type: {kind} dims: [ -1 ] }}
             parameters {{ key: \"op\" value {{ string_value: \"identity\" }} }}"
        ));
        let shape = [sample.elements as i64][..].into();
        let tensor = Tensor::new(sample.dtype, shape, sample.raw.clone().into());
        let outputs = vec![Some(tensor.expect("samples are whole"))];
        let response = Response { outputs, ..Response::default() };
        let mut group = criterion.benchmark_group(format!("HTTP codec, {}", sample.name));
        let forms = [("JSON", Wanted::Only(Default::default())), ("binary", Wanted::All)];
        for (form, wanted) in forms {
            let (body, header) = sample.body(wanted == Wanted::All);
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_function(format!("read {form}"), |bencher| {
                let read = || codec::decode(body.clone(), header, &model.config);
                read().expect("the sample is a valid request");
                bencher.iter(read);
            });
            group.bench_function(format!("write {form}"), |bencher| {
                bencher.iter(|| codec::encode(&model, &response, &wanted));
            });
        }
        group.finish();
    }
}

impl Sample {
    /// A request, and how much of it is JSON if tensors follow.
    fn body(&self, binary: bool) -> (Bytes, Option<usize>) {
        let about = format!(
            "\"name\":\"INPUT0\",\"datatype\":\"{}\",\"shape\":[{}]",
            self.dtype.as_str(),
            self.elements
        );
        if !binary {
            let text = format!("{{\"inputs\":[{{{about},\"data\":[{}]}}]}}", self.json);
            return (text.into(), None);
        }
        let size = format!("\"parameters\":{{\"binary_data_size\":{}}}", self.raw.len());
        let head = format!("{{\"inputs\":[{{{about},{size}}}]}}");
        ([head.as_bytes(), &self.raw].concat().into(), Some(head.len()))
    }
}

fn numbers(name: &'static str, elements: usize) -> Sample {
    // As long as numbers are that somebody has measured, not as short as those somebody made up.
    let values: Vec<f32> = (0..elements).map(|it| (it as f32 * 0.37).sin() * 10.0).collect();
    let texts: Vec<String> = values.iter().map(f32::to_string).collect();
    Sample {
        name,
        dtype: DataType::Fp32,
        elements,
        raw: values.iter().flat_map(|it| it.to_le_bytes()).collect(),
        json: texts.join(","),
    }
}

fn words(elements: usize) -> Sample {
    let words: Vec<String> = (0..elements).map(|it| format!("word number {it:04}")).collect();
    let raw =
        words.iter().flat_map(|it| [&(it.len() as u32).to_le_bytes(), it.as_bytes()].concat());
    let quoted: Vec<String> = words.iter().map(|it| format!("\"{it}\"")).collect();
    Sample {
        name: "1024 strings",
        dtype: DataType::Bytes,
        elements,
        raw: raw.collect(),
        json: quoted.join(","),
    }
}
