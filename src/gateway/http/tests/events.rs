//! The generate extension: how many answers there are, when they come, and who stops them.

use super::*;
use troupe_base::{
    request::{Credit, Part},
    tensor::{DataType, Tensor},
};

impl Bench {
    /// A request for a stream on its way, and what its model got of it.
    async fn started(&mut self, path: &str) -> (tokio::task::JoinHandle<Answered>, Request, Reply) {
        let sent = message("POST", &format!("/v2/models/{path}"), &[], br#"{"IN0":1,"id":"7"}"#);
        let address = self.address;
        let answer = tokio::spawn(async move { exchange(address, &sent).await });
        let (request, reply) = self.asked.recv().await.unwrap();
        (answer, request, reply)
    }
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
    reply.part(Part { result: Ok(response(1.0)), credit: Some(credit) });
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

/// How many of a thousand responses and errors of 64 KiB a client that reads nothing has taken.
#[actix_rt::test]
async fn responses_are_taken_as_the_client_reads() {
    let mut bench = Bench::start().await;
    let mut stream = TcpStream::connect(bench.address).await.unwrap();
    let sent = message("POST", "/v2/models/decoupled/generate_stream", &[], br#"{"IN0":1}"#);
    stream.write_all(&sent).await.unwrap();
    let (request, mut reply) = bench.asked.recv().await.unwrap();
    let taken = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = || taken.load(std::sync::atomic::Ordering::SeqCst);
    for number in 0..1000 {
        let taken = taken.clone();
        let credit = Credit::new(move || {
            taken.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        });
        let ones: Vec<u8> = [1.0f32; 1 << 14].iter().flat_map(|it| it.to_le_bytes()).collect();
        let tensor = Tensor::new(DataType::Fp32, [1 << 14].into_iter().collect(), ones.into());
        let outputs = vec![Some(tensor.unwrap())];
        let result = match number % 2 {
            0 => Ok(Response { outputs, ..Default::default() }),
            _ => Err(Error::internal("no".repeat(32 << 10))),
        };
        reply.part(Part { result, credit: Some(credit) });
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
    assert!(!request.context.is_stopped());
    drop(stream);
    let left = async {
        let in_flight = || bench.state.lifecycle.in_flight();
        while !request.context.is_stopped() || count() != 1000 || in_flight() != 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), left).await.unwrap();
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
        assert!(!request.context.is_stopped());
        assert_eq!(bench.state.lifecycle.in_flight(), 1);
        drop(stream);
        let left = async {
            while !request.context.is_stopped() || bench.state.lifecycle.in_flight() != 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), left).await.unwrap();
        bench.stop().await;
    }
}
