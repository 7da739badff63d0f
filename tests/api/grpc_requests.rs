//! gRPC requests one by one: typed contents, and errors in Triton's words.

use std::collections::HashMap;

use tonic::Code;
use troupe_proto::inference::{
    InferParameter, InferTensorContents, ModelInferRequest,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

use crate::support::grpc::{bytes_of, floats};

use crate::api::grpc::{SERVER, grpc, refused};

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn typed_contents_are_taken_for_every_type() {
    let contents = InferTensorContents::default;
    let rows: Vec<(&str, InferTensorContents, Vec<u8>)> = vec![
        (
            "BOOL",
            InferTensorContents { bool_contents: vec![true, false], ..contents() },
            vec![1, 0],
        ),
        ("INT8", InferTensorContents { int_contents: vec![-1, 2], ..contents() }, vec![255, 2]),
        (
            "INT16",
            InferTensorContents { int_contents: vec![-1, 2], ..contents() },
            vec![255, 255, 2, 0],
        ),
        (
            "INT32",
            InferTensorContents { int_contents: vec![-1, 2], ..contents() },
            vec![255, 255, 255, 255, 2, 0, 0, 0],
        ),
        (
            "INT64",
            InferTensorContents { int64_contents: vec![-1, 2], ..contents() },
            [[255; 8], [2, 0, 0, 0, 0, 0, 0, 0]].concat(),
        ),
        ("UINT8", InferTensorContents { uint_contents: vec![255, 2], ..contents() }, vec![255, 2]),
        (
            "UINT16",
            InferTensorContents { uint_contents: vec![1, 2], ..contents() },
            vec![1, 0, 2, 0],
        ),
        (
            "UINT32",
            InferTensorContents { uint_contents: vec![1, 2], ..contents() },
            vec![1, 0, 0, 0, 2, 0, 0, 0],
        ),
        (
            "UINT64",
            InferTensorContents { uint64_contents: vec![1, u64::MAX], ..contents() },
            [[1, 0, 0, 0, 0, 0, 0, 0], [255; 8]].concat(),
        ),
        (
            "FP32",
            InferTensorContents { fp32_contents: vec![1.5, -2.0], ..contents() },
            bytes_of(&[1.5, -2.0]),
        ),
        (
            "FP64",
            InferTensorContents { fp64_contents: vec![1.5, -2.0], ..contents() },
            [1.5f64.to_le_bytes(), (-2.0f64).to_le_bytes()].concat(),
        ),
        (
            "BYTES",
            InferTensorContents {
                bytes_contents: vec![b"ab\0".to_vec().into(), Vec::new().into()],
                ..contents()
            },
            b"\x03\0\0\0ab\0\0\0\0\0".to_vec(),
        ),
    ];
    let mut grpc = grpc();
    for (dtype, contents, expected) in rows {
        let request = ModelInferRequest {
            model_name: format!("id_{dtype}"),
            inputs: vec![InferInputTensor {
                name: "x".to_owned(),
                datatype: dtype.to_owned(),
                shape: vec![2],
                contents: Some(contents),
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer = grpc.infer(request).unwrap();
        assert_eq!(answer.raw_output_contents[0][..], expected, "{dtype}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn wrong_requests_are_refused_in_tritons_words() {
    let good = || floats("add_sub", &[("a", &[1.0; 4]), ("b", &[1.0; 4])]);
    let with = |change: &dyn Fn(&mut ModelInferRequest)| {
        let mut request = good();
        change(&mut request);
        request
    };
    let typed = Some(InferTensorContents { fp32_contents: vec![1.0; 4], ..Default::default() });
    let ints = Some(InferTensorContents { int_contents: vec![1; 4], ..Default::default() });
    let parameter = |value: ParameterChoice| InferParameter { parameter_choice: Some(value) };
    let rows: Vec<(ModelInferRequest, Code, &str)> = vec![
        (with(&|it| it.model_name = "no".to_owned()), Code::NotFound, "unknown model: 'no'"),
        (
            with(&|it| it.model_version = "7".to_owned()),
            Code::NotFound,
            "Request for unknown model: 'add_sub' version 7 is not found",
        ),
        (
            with(&|it| it.inputs[0].contents = typed.clone()),
            Code::InvalidArgument,
            "contents field must not be specified when using raw_input_contents for 'a' for model \
             'add_sub'",
        ),
        (
            with(&|it| {
                it.raw_input_contents.clear();
                it.inputs[0].contents = ints.clone();
                it.inputs[1].contents = typed.clone();
            }),
            Code::InvalidArgument,
            "unexpected explicit tensor data for input tensor 'a' for model 'add_sub'",
        ),
        (
            with(&|it| it.raw_input_contents.truncate(1)),
            Code::InvalidArgument,
            "unable to find data for input tensor 'b' for model 'add_sub' in request.",
        ),
        (
            with(&|it| it.raw_input_contents[0].truncate(12)),
            Code::InvalidArgument,
            "input byte size mismatch for input 'a' for model 'add_sub'. Expected 16, got 12",
        ),
        (with(&|it| it.inputs[0].shape = vec![-4]), Code::InvalidArgument, "invalid dimensions"),
        (with(&|it| it.inputs[0].shape = vec![1 << 40, 1 << 40]), Code::InvalidArgument, "exceed"),
        (
            with(&|it| it.inputs[0].shape = vec![2, 2]),
            Code::InvalidArgument,
            "unexpected shape for input 'a' for model 'add_sub'. Expected [4], got [2,2].",
        ),
        (
            with(&|it| it.inputs[0].datatype = "INT32".to_owned()),
            Code::InvalidArgument,
            "inference input 'a' data-type is 'INT32', but model 'add_sub' expects 'FP32'",
        ),
        (
            with(&|it| it.inputs[0].datatype = "FP33".to_owned()),
            Code::InvalidArgument,
            "inference input 'a' data-type is '<invalid>', but model 'add_sub' expects 'FP32'",
        ),
        (
            with(&|it| it.inputs[1].name = "a".to_owned()),
            Code::InvalidArgument,
            "input 'a' already exists in request",
        ),
        (
            with(&|it| it.inputs[1].name = "c".to_owned()),
            Code::InvalidArgument,
            "unexpected inference input 'c' for model 'add_sub'",
        ),
        (
            with(&|it| {
                it.inputs.pop();
                it.raw_input_contents.pop();
            }),
            Code::InvalidArgument,
            "expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['a'], but \
             missing required input(s) ['b'].",
        ),
        (
            with(&|it| {
                it.outputs = vec![InferRequestedOutputTensor {
                    name: "no".to_owned(),
                    ..Default::default()
                }];
            }),
            Code::InvalidArgument,
            "unexpected inference output 'no' for model 'add_sub'",
        ),
        (
            with(&|it| {
                let key = "triton_secret".to_owned();
                it.parameters = HashMap::from([(key, parameter(ParameterChoice::BoolParam(true)))]);
            }),
            Code::InvalidArgument,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not \
             be specified.",
        ),
    ];
    let mut grpc = grpc();
    for (request, code, text) in rows {
        refused(grpc.infer(request), code, text);
        assert_eq!(grpc.infer(good()).unwrap().outputs.len(), 2, "after `{text}`");
    }
    SERVER.is_well();
}
