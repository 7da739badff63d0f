//! The generate extension: what its flat objects mean, and when its events come.

use super::*;
use crate::{
    request::Credit,
    tensor::{DataType, Tensor},
};

impl Bench {
    async fn generate(&self, model: &str, body: &str) -> Answered {
        self.post(&format!("/v2/models/{model}/generate"), body).await
    }

    /// A request for a stream on its way, and what its model got of it.
    async fn started(&mut self, path: &str) -> (tokio::task::JoinHandle<Answered>, Request, Reply) {
        let sent = message("POST", &format!("/v2/models/{path}"), &[], br#"{"IN0":1,"id":"7"}"#);
        let address = self.address;
        let answer = tokio::spawn(async move { exchange(address, &sent).await });
        let (request, reply) = self.asked.recv().await.unwrap();
        (answer, request, reply)
    }
}

#[actix_rt::test]
async fn members_are_inputs_or_parameters() {
    let bench = Bench::start().await;
    let two = r#""IN0":[1,2,3,4],"IN1":[5,6]"#;
    let said = |model: &str, rest: &str| {
        format!(r#"{{"model_name":"{model}","model_version":"1"{rest}}}"#)
    };
    let both = said("two", r#","OUT0":[1.0,2.0,3.0,4.0],"OUT1":[5,6]"#);
    for (model, body, expected) in [
        ("two", format!("{{{two}}}"), both.clone()),
        ("two", r#"{"parameters":{"IN1":[5,6]},"IN0":[1,2,3,4]}"#.into(), both.clone()),
        ("two", format!(r#"{{"id":"7",{two}}}"#), both.replacen('{', r#"{"id":"7","#, 1)),
        (
            "two",
            format!(r#"{{"a":1,{two},"parameters":{{"b":"x","c":true,"id":"y"}},"d":-0.5}}"#),
            both.replacen(r#","OUT0""#, r#","a":1,"b":"x","c":true,"id":"y","d":-0.5,"OUT0""#, 1),
        ),
        (
            "two",
            format!(r#"{{"OUT1":1,"model_name":"mine",{two}}}"#),
            format!(
                r#"{{"model_version":"1","model_name":"mine",{}}}"#,
                r#""OUT0":[1.0,2.0,3.0,4.0],"OUT1":[5,6]"#
            ),
        ),
        ("batched", r#"{"IN0":[1,2,3,4]}"#.into(), said("batched", r#","OUT0":[1.0,2.0,3.0,4.0]"#)),
        ("many", r#"{"IN0":[1]}"#.into(), said("many", r#","OUT0":1.0"#)),
        ("many", r#"{"IN0":[NaN,Infinity]}"#.into(), said("many", r#","OUT0":[NaN,Infinity]"#)),
        ("fp32", r#"{"IN0":[]}"#.into(), said("fp32", r#","OUT0":[]"#)),
        ("bool", r#"{"IN0":true}"#.into(), said("bool", r#","OUT0":true"#)),
        ("bool", r#"{"IN0":[true,false]}"#.into(), said("bool", r#","OUT0":[true,false]"#)),
        ("uint8", r#"{"IN0":255}"#.into(), said("uint8", r#","OUT0":255"#)),
        ("int8", r#"{"IN0":-128}"#.into(), said("int8", r#","OUT0":-128"#)),
        (
            "uint64",
            r#"{"IN0":18446744073709551615}"#.into(),
            said("uint64", r#","OUT0":18446744073709551615"#),
        ),
        (
            "int64",
            r#"{"IN0":-9223372036854775808}"#.into(),
            said("int64", r#","OUT0":-9223372036854775808"#),
        ),
        ("fp64", r#"{"IN0":0.1}"#.into(), said("fp64", r#","OUT0":0.1"#)),
        (
            "text",
            r#"{"text_IN":"a [\"b\", \u00e9\n]"}"#.into(),
            said("text", r#","text_OUT":"a [\"b\", é\n]""#),
        ),
        ("string", r#"{"IN0":["a",""]}"#.into(), said("string", r#","OUT0":["a",""]"#)),
    ] {
        let answer = bench.generate(model, &body).await;
        assert_eq!((answer.status, answer.text()), (200, expected.clone()), "{model} {body}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let streamed = bench.post(&format!("/v2/models/{model}/generate_stream"), &body).await;
        assert_eq!((streamed.status, streamed.chunks()), (200, format!("data: {expected}\n\n")));
        assert_eq!(streamed.header("content-type"), Some("text/event-stream; charset=utf-8"));
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn wrong_requests_are_refused_in_json() {
    let bench = Bench::start().await;
    let unfit = "The schema can not convert input 'IN0' to tensor with proper shape";
    let no_string = "Unable to parse 'data': attempt to access JSON non-string as string";
    let no_object = "attempt to access JSON non-object as object";
    let invalid = |it: &str| {
        format!(
            "parameter '{it}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )
    };
    let nested = format!("Converting keyword: 'parameters': {}", invalid("nested"));
    let missing = "[request id: a] expected 2 inputs but got 0 inputs for model 'two'. Got \
                   input(s) [], but missing required input(s) ['IN0','IN1']. Please provide all \
                   required input(s).";
    for (model, body, status, error) in [
        ("nope", "{}", 404, "Request for unknown model: 'nope' is not found"),
        ("two", r#"{"id":"a"}"#, 400, missing),
        (
            "two",
            r#"{"id":7}"#,
            400,
            "Unable to parse 'id': attempt to access JSON non-string as string",
        ),
        ("two", "[]", 400, no_object),
        (
            "two",
            "",
            400,
            "failed to parse the request JSON buffer: EOF while parsing a value at line 1 column 0",
        ),
        ("two", r#"{"IN0":[1,2,3]}"#, 400, unfit),
        ("two", r#"{"IN0":[[1,2],[3,4]]}"#, 400, unfit),
        ("two", r#"{"IN0":[]}"#, 400, unfit),
        ("batched", r#"{"IN0":[1,2,3]}"#, 400, unfit),
        (
            "two",
            r#"{"IN0":[1,2,3,"x"]}"#,
            400,
            "Unable to parse 'data': attempt to access JSON non-number as number",
        ),
        (
            "int32",
            r#"{"IN0":1.5}"#,
            400,
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
        ),
        (
            "bool",
            r#"{"IN0":"true"}"#,
            400,
            "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
        ),
        ("word", r#"{"IN0":123}"#, 400, no_string),
        ("word", r#"{"IN0":null}"#, 400, no_string),
        ("word", r#"{"IN0":{"a":"b","c":"d"}}"#, 400, no_string),
        ("word", r#"{"IN0":["a","b"]}"#, 400, unfit),
        (
            "fp16",
            r#"{"IN0":1}"#,
            400,
            "receiving FP16 data via JSON is not supported. Please use the binary data format for input IN0",
        ),
        (
            "fp32",
            r#"{"IN0":1,"IN0":2}"#,
            400,
            "[request id: <id_unknown>] input 'IN0' already exists in request",
        ),
        ("fp32", r#"{"IN0":1,"x":{"y":1}}"#, 400, &invalid("x")),
        ("fp32", r#"{"IN0":1,"parameters":{"nested":{"twice":1}}}"#, 400, &nested),
        (
            "fp32",
            r#"{"IN0":1,"parameters":1}"#,
            400,
            &format!("Expected JSON object for keyword: 'parameters': {no_object}"),
        ),
        (
            "fp32",
            r#"{"IN0":1,"triton_x":1}"#,
            400,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        ),
        (
            "fp32",
            &format!(r#"{{"x":{}{}}}"#, "[".repeat(100), "]".repeat(100)),
            400,
            "JSON nesting depth exceeds maximum allowed limit (100)",
        ),
        (
            "keyword",
            r#"{"parameters":1}"#,
            400,
            "Keyword 'parameters' for nested schema also given as input tensor name",
        ),
    ] {
        for path in ["generate", "generate_stream"] {
            let answer = bench.post(&format!("/v2/models/{model}/{path}"), body).await;
            assert_eq!(answer.error(), (status, error.to_owned()), "{model} {path} {body}");
        }
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn limits_are_those_of_every_request() {
    let bench = Bench::start().await;
    let path = "/v2/models/text/generate_stream";
    let long = format!(r#"{{"text_IN":"{}"}}"#, "x".repeat(LIMIT));
    let (status, error) = bench.post(path, &long).await.error();
    assert!(status == 400 && error.contains("exceeds the maximum allowed input size"), "{error}");
    let members: String = (0..5000).map(|it| format!(r#","p{it}":1"#)).collect();
    let (status, error) = bench.post(path, &format!(r#"{{"text_IN":"x"{members}}}"#)).await.error();
    assert!(status == 400 && error.contains("more than 4096"), "{error}");
    for coding in ["gzip", "deflate", "br"] {
        let sent = message("POST", path, &[("Content-Encoding", coding)], b"{}");
        let text = "Unsupported content-encoding, only 'identity' is supported.";
        assert_eq!(bench.send(&sent).await.error(), (400, text.to_owned()));
    }
    assert_eq!(bench.get(path).await.error(), (405, "Method Not Allowed".to_owned()));
    bench.gate.lifecycle.exit();
    assert_eq!(bench.post(path, r#"{"text_IN":"x"}"#).await.status, 503);
    bench.stop().await;
}

fn response(value: f32) -> Response {
    let tensor =
        Tensor::new(DataType::Fp32, [1].into_iter().collect(), value.to_le_bytes().to_vec().into());
    Response { outputs: vec![Some(tensor.unwrap())], ..Default::default() }
}

fn event(value: &str) -> String {
    let said = r#"{"id":"7","model_name":"decoupled","model_version":"1","OUT0""#;
    format!("data: {said}:{value}}}\n\n")
}

#[actix_rt::test]
async fn generate_wants_exactly_one_response() {
    let not_one = "generate expects model to produce exactly 1 response, use generate stream for \
                   model that generates various number of responses";
    type Answers = fn(Reply);
    let cases: [(Answers, u16, &str); 8] = [
        (|it| it.answer(Ok(response(1.0))), 200, ""),
        (
            |mut it| {
                it.part(Ok(response(1.0)));
                it.end(Default::default());
            },
            200,
            "",
        ),
        (|it| it.end(Default::default()), 500, not_one),
        (
            |mut it| {
                it.part(Ok(response(1.0)));
                it.answer(Ok(response(2.0)));
            },
            500,
            not_one,
        ),
        (
            |mut it| {
                it.part(Ok(response(1.0)));
                it.part(Ok(response(2.0)));
                std::mem::forget(it);
            },
            500,
            not_one,
        ),
        (|it| it.answer(Err(Error::unavailable("it broke"))), 503, "it broke"),
        (
            |mut it| {
                it.part(Err(Error::unavailable("it broke")));
                std::mem::forget(it);
            },
            503,
            "it broke",
        ),
        (
            |mut it| {
                it.part(Ok(response(1.0)));
                it.answer(Err(Error::unavailable("it broke")));
            },
            503,
            "it broke",
        ),
    ];
    let mut bench = Bench::start().await;
    for (answers, status, error) in cases {
        let (answer, _, reply) = bench.started("decoupled/generate").await;
        answers(reply);
        let answer = answer.await.unwrap();
        assert_eq!(answer.status, status, "{}", answer.text());
        if status == 200 {
            assert_eq!(format!("data: {}\n\n", answer.text()), event("1.0"));
        } else {
            assert_eq!(answer.error().1, error);
        }
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn the_credit_of_the_only_response_is_given_back_before_the_end() {
    let mut bench = Bench::start().await;
    let (answer, _, mut reply) = bench.started("decoupled/generate").await;
    let (given_back, back) = tokio::sync::oneshot::channel();
    let credit = Credit::new(move || {
        let _ = given_back.send(());
    });
    reply.part(Ok(Response { credit: Some(credit), ..response(1.0) }));
    back.await.unwrap();
    reply.end(Default::default());
    assert_eq!(answer.await.unwrap().status, 200);
    bench.stop().await;
}

#[actix_rt::test]
async fn the_first_event_decides_the_status() {
    let mut bench = Bench::start().await;
    let broken = || Err(Error::unavailable("it broke"));
    let error = "data: {\"error\":\"it broke\"}\n\n";
    for (results, is_ended, status, expected) in [
        (vec![], true, 200, String::new()),
        (vec![Ok(response(1.0)), Ok(response(2.0))], true, 200, event("1.0") + &event("2.0")),
        (vec![Ok(response(1.0)), Ok(response(2.0))], false, 200, event("1.0") + &event("2.0")),
        (vec![Ok(response(1.0)), broken()], false, 200, event("1.0") + error),
        (vec![broken(), Ok(response(1.0))], true, 503, error.to_owned() + &event("1.0")),
        (vec![broken()], false, 503, error.to_owned()),
    ] {
        let (answer, _, mut reply) = bench.started("decoupled/generate_stream").await;
        let mut results: Vec<Result<Response>> = results;
        let last = if is_ended { None } else { results.pop() };
        results.into_iter().for_each(|it| reply.part(it));
        match last {
            Some(last) => reply.answer(last),
            None => reply.end(Default::default()),
        }
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, answer.chunks()), (status, expected));
        assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn what_json_cannot_say_is_an_error_in_its_place() {
    let mut bench = Bench::start().await;
    let (answer, _, mut reply) = bench.started("decoupled/generate_stream").await;
    let half = Tensor::new(DataType::Fp16, [1].into_iter().collect(), vec![0, 60].into()).unwrap();
    reply.part(Ok(Response { outputs: vec![Some(half)], ..Default::default() }));
    let bytes = vec![1, 0, 0, 0, 255].into();
    let bytes = Tensor::new(DataType::Bytes, [1].into_iter().collect(), bytes).unwrap();
    reply.part(Ok(Response { outputs: vec![Some(bytes)], ..Default::default() }));
    reply.answer(Ok(response(1.0)));
    let answer = answer.await.unwrap();
    assert_eq!(answer.status, 400);
    let text = answer.chunks();
    let events: Vec<_> = text.split_inclusive("\n\n").collect();
    assert!(events[0].starts_with("data: {\"error\":\"sending FP16 data via JSON"), "{text}");
    assert!(events[1].contains("bytes that are not UTF-8"), "{text}");
    assert_eq!(events[2..], [event("1.0")]);
    bench.stop().await;
}

/// How many of a thousand responses of 64 KiB a client that reads nothing has taken.
#[actix_rt::test]
async fn responses_are_taken_as_the_client_reads() {
    let mut bench = Bench::start().await;
    let mut stream = TcpStream::connect(bench.address).await.unwrap();
    let sent = message("POST", "/v2/models/decoupled/generate_stream", &[], br#"{"IN0":1}"#);
    stream.write_all(&sent).await.unwrap();
    let (request, mut reply) = bench.asked.recv().await.unwrap();
    let taken = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = || taken.load(std::sync::atomic::Ordering::SeqCst);
    for _ in 0..1000 {
        let taken = taken.clone();
        let credit = Credit::new(move || {
            taken.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        });
        let ones: Vec<u8> = [1.0f32; 1 << 14].iter().flat_map(|it| it.to_le_bytes()).collect();
        let tensor = Tensor::new(DataType::Fp32, [1 << 14].into_iter().collect(), ones.into());
        let outputs = vec![Some(tensor.unwrap())];
        reply.part(Ok(Response { outputs, credit: Some(credit), ..Default::default() }));
    }
    let mut first = [0; 15];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    // Whatever the kernel buffers, it is not 60 MiB.
    let mut seen = 0;
    for _ in 0..100 {
        tokio::task::yield_now().await;
        seen = seen.max(count());
    }
    assert!(seen < 900, "{seen} of 1000 responses were taken");
    assert!(!request.context.is_cancelled());
    drop(stream);
    let left = async {
        while !request.context.is_cancelled() || count() != 1000 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), left).await.unwrap();
    assert_eq!(bench.gate.lifecycle.in_flight(), 0);
    bench.stop().await;
}

#[actix_rt::test]
async fn a_client_that_leaves_cancels_whatever_was_said_before() {
    for (path, parts) in [("generate", 0), ("generate_stream", 0), ("generate_stream", 2)] {
        let mut bench = Bench::start().await;
        let mut stream = TcpStream::connect(bench.address).await.unwrap();
        let path = format!("/v2/models/decoupled/{path}");
        stream.write_all(&message("POST", &path, &[], br#"{"IN0":1}"#)).await.unwrap();
        let (request, mut reply) = bench.asked.recv().await.unwrap();
        for _ in 0..parts {
            reply.part(Ok(response(1.0)));
            stream.read_u8().await.unwrap();
        }
        assert!(!request.context.is_cancelled());
        assert_eq!(bench.gate.lifecycle.in_flight(), 1);
        drop(stream);
        let left = async {
            while !request.context.is_cancelled() || bench.gate.lifecycle.in_flight() != 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), left).await.unwrap();
        bench.stop().await;
    }
}
