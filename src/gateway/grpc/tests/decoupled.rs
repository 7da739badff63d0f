//! Streams of decoupled models: any number of responses, as the client takes them.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures_util::{FutureExt, stream};

use super::{
    streams::{brief, next, requests},
    *,
};
use troupe_base::{
    request::{Credit, Part},
    tensor::{DataType, Tensor},
};

const REFUSAL: &str = "GRPC server is shutting down and has stopped accepting new requests.";

fn wanting_the_end(id: &str) -> ModelInferRequest {
    let wish = ("triton_enable_empty_final_response", ParameterChoice::BoolParam(true));
    ModelInferRequest { parameters: parameters([wish]), ..one("many", id) }
}

fn response() -> Response {
    let tensor = Tensor::new(DataType::Int32, [1].into_iter().collect(), vec![1; 4].into());
    Response { outputs: vec![Some(tensor.unwrap())], ..Response::default() }
}

#[actix_web::test]
async fn responses_come_as_they_are_made_whatever_waits_before_them() {
    let mut server = Server::start().await;
    let (send, requests) = requests();
    let mut answers = server.client.model_stream_infer(requests).await.unwrap().into_inner();
    for request in [one("hold", "1"), one("many", "2"), wanting_the_end("3")] {
        send.send(request).unwrap();
    }
    let mut held = HashMap::new();
    for _ in 0..3 {
        let pending = server.held().await;
        held.insert(pending.request.context.id.clone(), pending);
    }
    let mut reply = |id: &str| held.remove(id).unwrap().reply;
    let (first, mut second, mut third) = (reply("1"), reply("2"), reply("3"));
    third.part(Ok(response()));
    assert_eq!(brief(&next(&mut answers).await), ("3", "", false));
    second.part(Ok(response()));
    assert_eq!(brief(&next(&mut answers).await), ("2", "", false));
    second.part(Err(Error::internal("it broke")));
    assert_eq!(brief(&next(&mut answers).await), ("2", "it broke", false));
    // Nobody asked for the end of the second.
    second.end(Default::default());
    third.end(Default::default());
    let end = next(&mut answers).await;
    assert_eq!(brief(&end), ("3", "", true));
    let end = end.infer_response.unwrap();
    assert_eq!((&*end.model_name, &*end.model_version), ("many", "3"));
    assert_eq!((end.outputs.len(), end.raw_output_contents.len()), (0, 0));
    // The client says no more; what is in flight is still answered.
    drop(send);
    first.answer(Ok(response()));
    assert_eq!(brief(&next(&mut answers).await), ("1", "", true));
    assert!(answers.message().await.unwrap().is_none());
}

#[actix_web::test]
async fn a_stream_stays_open_for_a_request_that_has_not_ended() {
    let mut server = Server::start().await;
    let asked = stream::iter([wanting_the_end("1")]);
    let mut answers = server.client.model_stream_infer(asked).await.unwrap().into_inner();
    let mut pending = server.held().await;
    for _ in 0..3 {
        assert!(next(&mut answers).now_or_never().is_none());
        pending.reply.part(Ok(response()));
        assert_eq!(brief(&next(&mut answers).await), ("1", "", false));
    }
    pending.reply.answer(Ok(response()));
    assert_eq!(brief(&next(&mut answers).await), ("1", "", true));
    assert!(answers.message().await.unwrap().is_none());
    server.state.lifecycle.exit();
    server.state.lifecycle.wait_idle().await;
}

#[actix_web::test]
async fn a_wrong_request_is_refused_and_the_stream_goes_on() {
    let mut server = Server::start().await;
    let wrong_type = raw("many", &[("a", "FP32", &[1], &[0; 4])]);
    let wrong_shape = raw("many", &[("a", "INT32", &[2], &[0; 8])]);
    let wrong_name = raw("many", &[("b", "INT32", &[1], &[0; 4])]);
    let asked = stream::iter([wrong_type, wrong_shape, wrong_name, one("many", "4")]);
    let mut answers = server.client.model_stream_infer(asked).await.unwrap().into_inner();
    let mut texts = Vec::new();
    for _ in 0..3 {
        let answer = next(&mut answers).await;
        let (_, text, is_last) = brief(&answer);
        assert!(is_last);
        texts.push(text.to_owned());
    }
    texts.sort();
    let expected = [
        "inference input 'a' data-type is 'FP32', but model 'many' expects 'INT32'",
        "unexpected inference input 'b' for model 'many' (its inputs: a)",
        "unexpected shape for input 'a' for model 'many'. Expected [1], got [2].",
    ];
    assert_eq!(texts, expected.map(|it| format!("[request id: <id_unknown>] {it}")));
    server.held().await.reply.answer(Ok(response()));
    assert_eq!(brief(&next(&mut answers).await), ("4", "", true));
    assert!(answers.message().await.unwrap().is_none());
}

#[actix_web::test]
async fn with_triton_grpc_error_the_failure_of_a_response_cancels_all_others() {
    for is_end in [false, true] {
        let mut server = Server::start().await;
        let (send, requests) = requests();
        let mut opening = tonic::Request::new(requests);
        opening.metadata_mut().insert("triton_grpc_error", "true".parse().unwrap());
        let mut answers = server.client.model_stream_infer(opening).await.unwrap().into_inner();
        send.send(one("many", "1")).unwrap();
        let mut first = server.held().await;
        send.send(one("many", "2")).unwrap();
        let mut second = server.held().await;
        send.send(one("hold", "3")).unwrap();
        let third = server.held().await;
        second.reply.part(Ok(response()));
        assert_eq!(brief(&next(&mut answers).await), ("2", "", false));
        let error = Err(Error::unavailable("it broke"));
        if is_end {
            first.reply.answer(error);
        } else {
            first.reply.part(error);
            cancelled(&Pending { request: first.request, reply: first.reply }).await;
        }
        second.reply.part(Ok(response()));
        let status = answers.message().await.unwrap_err();
        assert_eq!((status.code(), status.message()), (tonic::Code::Unavailable, "it broke"));
        cancelled(&second).await;
        cancelled(&third).await;
    }
}

#[actix_web::test]
async fn leaving_the_stream_cancels_what_has_not_ended() {
    let mut server = Server::start().await;
    let (send, requests) = requests();
    let mut answers = server.client.model_stream_infer(requests).await.unwrap().into_inner();
    send.send(one("many", "1")).unwrap();
    let mut first = server.held().await;
    send.send(one("many", "2")).unwrap();
    let second = server.held().await;
    first.reply.part(Ok(response()));
    assert_eq!(brief(&next(&mut answers).await), ("1", "", false));
    assert!(!first.request.context.is_stopped());
    drop((send, answers));
    cancelled(&first).await;
    cancelled(&second).await;
    server.state.lifecycle.exit();
    server.state.lifecycle.wait_idle().await;
}

#[actix_web::test]
async fn a_request_is_in_flight_until_its_end() {
    let mut server = Server::start().await;
    let asked = stream::iter((0..300).map(|it| one("many", &it.to_string())));
    let mut answers = server.client.model_stream_infer(asked).await.unwrap().into_inner();
    let mut held = Vec::new();
    for _ in 0..256 {
        held.push(server.held().await);
    }
    held[0].reply.part(Ok(response()));
    assert_eq!(brief(&next(&mut answers).await), ("0", "", false));
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(server.held.try_recv().is_err());
    for Pending { reply, .. } in held.drain(..44) {
        reply.end(Default::default());
    }
    for _ in 0..44 {
        held.push(server.held().await);
    }
    for Pending { reply, .. } in held {
        reply.end(Default::default());
    }
    assert!(answers.message().await.unwrap().is_none());
}

#[actix_web::test]
async fn a_stopping_gateway_lets_requests_come_to_their_end() {
    let mut server = Server::start().await;
    let (send, requests) = requests();
    let mut answers = server.client.model_stream_infer(requests).await.unwrap().into_inner();
    send.send(wanting_the_end("1")).unwrap();
    let mut pending = server.held().await;
    server.state.lifecycle.exit();
    send.send(wanting_the_end("2")).unwrap();
    assert_eq!(brief(&next(&mut answers).await), ("2", REFUSAL, true));
    let stopped = actix_rt::spawn(server.gateway.send(crate::grpc::StopGrpc));
    pending.reply.part(Ok(response()));
    assert_eq!(brief(&next(&mut answers).await), ("1", "", false));
    assert_eq!(server.state.lifecycle.in_flight(), 1);
    pending.reply.end(Default::default());
    assert_eq!(brief(&next(&mut answers).await), ("1", "", true));
    let status = answers.message().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::Unavailable, REFUSAL));
    server.state.lifecycle.wait_idle().await;
    stopped.await.unwrap().unwrap();
}

#[actix_web::test]
async fn responses_are_taken_as_the_client_reads() {
    let tensor = || {
        let shape = [1 << 14].into_iter().collect();
        Tensor::new(DataType::Int32, shape, vec![0; 64 << 10].into()).unwrap()
    };
    are_taken_as_the_client_reads(|| {
        Ok(Response { outputs: vec![Some(tensor())], ..Response::default() })
    })
    .await;
}

#[actix_web::test]
async fn errors_are_taken_as_the_client_reads() {
    are_taken_as_the_client_reads(|| Err(Error::internal("no".repeat(32 << 10)))).await;
}

/// Whatever is made has 64 KiB.
async fn are_taken_as_the_client_reads(make: impl Fn() -> Result<Response>) {
    let mut server = Server::start().await;
    let (send, requests) = requests();
    let mut answers = server.client.model_stream_infer(requests).await.unwrap().into_inner();
    send.send(one("many", "1")).unwrap();
    let mut pending = server.held().await;
    let taken = Arc::new(AtomicUsize::new(0));
    for _ in 0..1000 {
        let taken = taken.clone();
        let credit = Credit::new(move || {
            taken.fetch_add(1, SeqCst);
        });
        pending.reply.part(Part { result: make(), credit: Some(credit) });
    }
    for _ in 0..3 {
        let answer = next(&mut answers).await;
        let (id, _, is_final) = brief(&answer);
        assert_eq!((id, is_final), ("1", false));
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    // What the client's windows let through, and no more.
    assert!((3..500).contains(&taken.load(SeqCst)), "{taken:?} of 1000 were taken");
    drop((send, answers));
    cancelled(&pending).await;
    assert_eq!(taken.load(SeqCst), 1000);
}
