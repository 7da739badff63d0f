//! What `execute` is given and what becomes of what it returns.

use super::*;

const ADD_SUB: &str = "
    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                a = pb_utils.get_input_tensor_by_name(request, 'IN0').as_numpy()
                b = pb_utils.get_input_tensor_by_name(request, 'IN1').as_numpy()
                outs = [pb_utils.Tensor('OUT0', a + b), pb_utils.Tensor('OUT1', a - b)]
                answers.append(pb_utils.InferenceResponse(output_tensors=outs))
            return answers
    ";

#[actix_rt::test]
async fn groups_are_executed_in_order_and_answered_one_by_one() {
    let four: (DataType, &[i64]) = (FP32, &[4]);
    let model = model(ADD_SUB, &[four, four], &[four, four]);
    let mut remote = model.open();
    let pair = |x: f32| request(vec![fp32(&[4], &[x; 4]), fp32(&[4], &[1.0, 2.0, 3.0, 4.0])]);
    let groups = vec![vec![pair(1.0)], vec![pair(2.0), pair(3.0)], vec![]];
    let answers = run(&mut *remote, groups).await;
    let values: Vec<Vec<Vec<f32>>> = answers
        .iter()
        .map(|group| {
            let responses = group.as_ref().unwrap().iter();
            let outputs = responses.flat_map(|it| it.as_ref().unwrap().outputs.iter().flatten());
            outputs.map(floats).collect()
        })
        .collect();
    let both =
        |x: f32| vec![vec![x + 1., x + 2., x + 3., x + 4.], vec![x - 1., x - 2., x - 3., x - 4.]];
    assert_eq!(values, [both(1.), [both(2.), both(3.)].concat(), vec![]]);
}

/// Workers keep in mind how the last request began, to take the next one apart in less time.
#[actix_rt::test]
async fn requests_that_begin_alike_and_others_are_told_apart() {
    let source = "
        class TritonPythonModel:
            def execute(self, requests):
                answers = []
                for request in requests:
                    array = request.inputs()[0].as_numpy()
                    told = [len(request.request_id()), request.inputs()[0].shape()[0]]
                    sizes = pb_utils.Tensor('OUT1', np.array(told, np.float32))
                    outs = [pb_utils.Tensor('OUT0', array + 1), sizes]
                    answers.append(pb_utils.InferenceResponse(output_tensors=outs))
                return answers
        ";
    let source = format!("import numpy as np\n{}", dedent(source));
    let any: (DataType, &[i64]) = (FP32, &[-1]);
    let mut remote = model(&source, &[any], &[any, (FP32, &[2])]).open();
    // How many elements, and how long the id is.
    let asked = [(1, 0), (1, 0), (2, 0), (1, 0), (1, 3), (1, 9), (1, 3), (0, 0), (0, 1), (300, 0)];
    let made = |(count, id): (usize, usize)| {
        let id = "x".repeat(id);
        let context = Context { id, ..Context::default() };
        Request {
            context: context.into(),
            ..request(vec![fp32(&[count as i64], &vec![count as f32; count])])
        }
    };
    let each = asked.iter().map(|it| vec![made(*it)]);
    let groups: Vec<Vec<Request>> =
        each.chain([asked.into_iter().rev().map(made).collect()]).collect();
    let answers = run(&mut *remote, groups).await.into_iter().flat_map(Result::unwrap);
    let expected = asked.iter().chain(asked.iter().rev());
    for (answer, &(count, id)) in answers.zip(expected) {
        let outputs = answer.unwrap().outputs;
        let values = outputs.iter().flatten().map(floats).collect::<Vec<_>>();
        let told = vec![id as f32, count as f32];
        assert_eq!(values, [vec![count as f32 + 1.; count], told], "{count} {id}");
    }
}

#[actix_rt::test]
async fn every_type_makes_the_round_trip() {
    use DataType::*;
    let fixed = [Bool, Uint8, Uint16, Uint32, Uint64, Int8, Int16, Int32, Int64, Fp16, Fp32, Fp64];
    let any: &[i64] = &[-1, -1];
    let kinds: Vec<(DataType, &[i64])> =
        fixed.iter().chain([&Bytes]).map(|it| (*it, any)).collect();
    let source = "
        class TritonPythonModel:
            def execute(self, requests):
                answers = []
                for request in requests:
                    outs = []
                    for index, tensor in enumerate(request.inputs()):
                        assert tensor.name() == f'IN{index}' and tensor.is_cpu()
                        array = tensor.as_numpy()
                        assert list(array.shape) == tensor.shape() and array.flags.writeable
                        wanted = pb_utils.triton_string_to_numpy('TYPE_' + tensor.triton_dtype())
                        assert array.dtype == wanted, (array.dtype, wanted)
                        outs.append(pb_utils.Tensor(f'OUT{index}', array))
                    answers.append(pb_utils.InferenceResponse(output_tensors=outs))
                return answers
        ";
    let model = model(source, &kinds, &kinds);
    let mut remote = model.open();
    for (rows, columns) in [(2i64, 3i64), (0, 3), (100, 200)] {
        let count = (rows * columns) as usize;
        let mut inputs: Vec<Tensor> = fixed
            .iter()
            .map(|dtype| {
                let bytes = (0..count * dtype.size().unwrap()).map(|it| it as u8 & 1);
                let data = bytes.collect::<Vec<u8>>().into();
                Tensor::new(*dtype, Shape::from_slice(&[rows, columns]), data).unwrap()
            })
            .collect();
        let elements: Vec<&[u8]> =
            [&b"a\0"[..], b"", b"\xff\xfe"].into_iter().cycle().take(count).collect();
        inputs.push(strings(&[rows, columns], &elements));
        let answer = ask(&mut *remote, request(inputs.clone())).await.unwrap();
        for (input, output) in inputs.iter().zip(answer.outputs.iter().flatten()) {
            assert_eq!(input.dtype(), output.dtype());
            assert_eq!(input.shape(), output.shape());
            assert_eq!(input.data(), output.data(), "{:?}", input.dtype());
        }
    }
}

#[actix_rt::test]
async fn bf16_goes_through_dlpack_only() {
    let source = "
        class TritonPythonModel:
            def execute(self, requests):
                answers = []
                for request in requests:
                    tensor = request.inputs()[0]
                    assert tensor.triton_dtype() == 'BF16'
                    try:
                        tensor.as_numpy()
                    except pb_utils.TritonModelException as error:
                        assert str(error) == (
                            'Tensor dtype is BF16 and cannot be converted to NumPy. '
                            'Use to_dlpack() and from_dlpack() instead.'), error
                    out = pb_utils.Tensor.from_dlpack('OUT0', tensor)
                    out = pb_utils.Tensor.from_dlpack('OUT0', out.to_dlpack())
                    del tensor
                    answers.append(pb_utils.InferenceResponse(output_tensors=[out]))
                return answers
        ";
    let bf16: (DataType, &[i64]) = (DataType::Bf16, &[-1]);
    let model = model(source, &[bf16], &[bf16]);
    let mut remote = model.open();
    for count in [3, 0, 100_000] {
        let bytes: Vec<u8> = (0..2 * count).map(|it| it as u8).collect();
        let shape = Shape::from_slice(&[count as i64]);
        let tensor = Tensor::new(DataType::Bf16, shape, bytes.clone().into()).unwrap();
        let answer = output(&mut *remote, request(vec![tensor])).await;
        assert_eq!(answer.data(), &bytes);
    }
}

/// `body` is the body of `execute`; the answer to one request with IN0 = [1, 2] must begin so.
async fn check_error(body: &str, expected: (ErrorKind, &str)) {
    let source = format!(
        "import numpy as np\nclass TritonPythonModel:\n    def execute(self, requests):\n        {}\n",
        body.trim().replace('\n', "\n        ")
    );
    let two: (DataType, &[i64]) = (FP32, &[2]);
    let model = model(&source, &[two], &[two]);
    let mut remote = model.open();
    let answer = ask(&mut *remote, request(vec![fp32(&[2], &[1.0, 2.0])])).await;
    let error = answer.expect_err(body);
    let text = error.to_string();
    assert!(text.starts_with(expected.1), "{body}\ngave     {text}\nexpected {}", expected.1);
    assert_eq!(error.kind(), expected.0, "{body}");
}

#[actix_rt::test]
async fn wrong_answers_are_errors_that_say_so() {
    let prefix = "Failed to process the request(s) for model instance 'm_0_0', message: ";
    let whole =
        |body: &'static str, text: &str| (body, ErrorKind::Internal, format!("{prefix}{text}"));
    let alone = |body: &'static str, text: &str| (body, ErrorKind::Internal, text.to_owned());
    let cases = [
        whole(
            "return None",
            "Expected a list in the execute return, found type '<class 'NoneType'>'.",
        ),
        whole("return 7", "Expected a list in the execute return, found type '<class 'int'>'."),
        whole(
            "return []",
            "Number of InferenceResponse objects do not match the number of InferenceRequest \
             objects. InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0",
        ),
        whole(
            "return [None]",
            "Expected an 'InferenceResponse' object in the execute function return list, found \
             type '<class 'NoneType'>'.",
        ),
        whole("raise ValueError('no luck')", "ValueError: no luck\n\nAt:\n  "),
        whole("import sys; sys.exit(3)", "SystemExit: 3\n\nAt:\n  "),
        whole(
            "pb_utils.Tensor('', np.zeros(2))",
            "TritonModelException: Tensor name cannot be an empty string.\n\nAt:\n",
        ),
        whole(
            "return [pb_utils.InferenceResponse(output_tensors=[None])]",
            "TritonModelException: Output tensor for inference response should not be empty.\n",
        ),
        (
            "return [it.exec() for it in requests]",
            ErrorKind::NotFound,
            "Failed for execute the inference request. Model 'm' is not ready.".into(),
        ),
        alone(
            "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT0', np.zeros(2))])]",
            "output 'OUT0' of model 'm' has data-type 'FP64', expected 'FP32'",
        ),
        alone(
            "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT0', np.zeros((2, 1), 'f4'))])]",
            "output 'OUT0' of model 'm' has shape [2,1], expected [2]",
        ),
        alone(
            "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT0', np.zeros(2, 'c16'))])]",
            "Numpy dtype complex128 is not supported by Triton.",
        ),
        alone("return [pb_utils.InferenceResponse(error=pb_utils.TritonError('bad'))]", "bad"),
        (
            "return [pb_utils.InferenceResponse([], pb_utils.TritonError('bad', \
             pb_utils.TritonError.INVALID_ARG))]",
            ErrorKind::InvalidArg,
            "bad".into(),
        ),
        (
            "return [pb_utils.InferenceResponse([], pb_utils.TritonError('gone', \
             pb_utils.TritonError.CANCELLED))]",
            ErrorKind::Cancelled,
            "gone".into(),
        ),
    ];
    for (body, kind, text) in cases {
        check_error(body, (kind, &text)).await;
    }
}

#[actix_rt::test]
async fn one_bad_answer_leaves_the_rest_of_its_group_alone() {
    let source = "
        class TritonPythonModel:
            def execute(self, requests):
                assert len(requests) == 3
                answers = []
                for index, request in enumerate(requests):
                    error = pb_utils.TritonError('not this one') if index == 1 else None
                    out = pb_utils.Tensor('OUT0', request.inputs()[0].as_numpy() * 2)
                    answers.append(pb_utils.InferenceResponse([out], error=error))
                return answers
        ";
    let one: (DataType, &[i64]) = (FP32, &[1]);
    let mut model = model(source, &[one], &[one]);
    model.config.max_batch_size = 8;
    let mut remote = model.open();
    let rows = |rows: usize| Request {
        batch: rows as u32,
        ..request(vec![fp32(&[rows as i64, 1], &vec![1.5; rows])])
    };
    let answers = run(&mut *remote, vec![vec![rows(1), rows(2), rows(3)]]).await;
    let group = answers[0].as_ref().unwrap();
    let shape = |index: usize| {
        let response: &Result<Response> = &group[index];
        response.as_ref().map(|it| it.outputs[0].as_ref().unwrap().shape().to_vec())
    };
    assert_eq!(shape(0).unwrap(), [1, 1]);
    assert_eq!(shape(1).unwrap_err().to_string(), "not this one");
    assert_eq!(shape(2).unwrap(), [3, 1]);
}

#[actix_rt::test]
async fn a_batching_model_may_answer_with_other_rows_and_without_the_batch_dimension() {
    let one: (DataType, &[i64]) = (FP32, &[-1]);
    let source = IDENTITY.replace("array)", "array[:1])");
    let mut model = model(&source, &[one], &[one]);
    model.config.max_batch_size = 8;
    let mut remote = model.open();
    let two = Request { batch: 2, ..request(vec![fp32(&[2, 1], &[1.0, 2.0])]) };
    let response = ask(&mut *remote, two).await.unwrap();
    assert_eq!(response.outputs[0].as_ref().unwrap().shape(), [1, 1]);
}

#[actix_rt::test]
async fn only_what_is_wanted_and_known_comes_back() {
    let source = "
        class TritonPythonModel:
            def execute(self, requests):
                answers = []
                for request in requests:
                    names = request.requested_output_names()
                    array = request.inputs()[0].as_numpy()
                    outs = [pb_utils.Tensor(name, array + len(names)) for name in
                            ('OUT1', 'OUT0', 'OUT2')]
                    answers.append(pb_utils.InferenceResponse(outs, parameters={
                        'names': ','.join(names), 'n': len(names), 'yes': True}))
                return answers
        ";
    let one: (DataType, &[i64]) = (FP32, &[1]);
    let model = model(source, &[one], &[one, one]);
    let mut remote = model.open();
    let mut wanted = request(vec![fp32(&[1], &[1.0])]);
    let all = ask(&mut *remote, wanted.clone()).await.unwrap();
    let values: Vec<_> = all.outputs.iter().map(|it| it.as_ref().map(floats)).collect();
    assert_eq!(values, [Some(vec![3.0]), Some(vec![3.0])]);
    wanted.wanted = Wanted::Only([1].into_iter().collect());
    let some = ask(&mut *remote, wanted).await.unwrap();
    let values: Vec<_> = some.outputs.iter().map(|it| it.as_ref().map(floats)).collect();
    assert_eq!(values, [None, Some(vec![2.0])]);
    let parameters = [
        ("names".into(), Parameter::String("OUT1".into())),
        ("n".into(), Parameter::Int(1)),
        ("yes".into(), Parameter::Bool(true)),
    ];
    let mut got = some.parameters;
    got.sort_by_key(|it| parameters.iter().position(|known| known.0 == it.0));
    assert_eq!(got, parameters);
}

#[actix_rt::test]
async fn a_request_tells_what_the_client_sent() {
    let source = "
        import json
        import numpy as np
        class TritonPythonModel:
            def execute(self, requests):
                r = requests[0]
                pb_utils.Logger.log_info('one\\ntwo')
                pb_utils.Logger.log('three', pb_utils.Logger.WARNING)
                told = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.priority(),
                        json.loads(r.parameters()), r.model_name(), r.model_version(),
                        r.is_cancelled(), r.trace().get_context()]
                out = pb_utils.Tensor('OUT0', np.array([json.dumps(told)], dtype=object))
                return [pb_utils.InferenceResponse([out])]
        ";
    let model = model(source, &[(FP32, &[1])], &[(DataType::Bytes, &[1])]);
    let mut remote = model.open();
    let tell = async |remote: &mut dyn Remote, context: Context| {
        let context = Arc::new(context);
        let one = Request { context, ..request(vec![fp32(&[1], &[1.0])]) };
        let tensor = output(remote, one).await;
        let text = tensor.strings().next().unwrap().to_vec();
        String::from_utf8(text).unwrap()
    };
    let plain = tell(&mut *remote, Context::default()).await;
    assert_eq!(plain, r#"["", 0, 0, 0, 0, {}, "m", 1, false, null]"#);
    let context = Context {
        id: "7 \"x\"\n".into(),
        parameters: vec![("a".into(), Parameter::Int(-1)), ("b".into(), Parameter::Bool(true))],
        priority: 2,
        timeout_us: 5,
        correlation: troupe_base::request::Correlation::Text("seq".into()),
        flags: 3,
        ..Context::default()
    };
    context.cancel();
    let full = tell(&mut *remote, context).await;
    let expected = r#"["7 \"x\"\n", "seq", 3, 5, 2, {"a": -1, "b": true}, "m", 1, true, null]"#;
    assert_eq!(full, expected);
}

#[actix_rt::test]
async fn execute_may_be_a_coroutine() {
    let source = IDENTITY
        .replace("def execute", "async def execute")
        .replace("answers = []", "import asyncio; await asyncio.sleep(0); answers = []");
    let one: (DataType, &[i64]) = (FP32, &[1]);
    let model = model(&source, &[one], &[one]);
    let mut remote = model.open();
    for x in [1.0, 2.0] {
        assert_eq!(floats(&output(&mut *remote, request(vec![fp32(&[1], &[x])])).await), [x]);
    }
}
