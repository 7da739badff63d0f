//! Streams: order, errors, back-pressure, ends.

use futures_util::{FutureExt, Stream, stream};
use tonic::Streaming;

use super::*;
use troupe_proto::inference::ModelStreamInferResponse;

pub(super) type Requests = mpsc::UnboundedSender<ModelInferRequest>;

pub(super) fn requests() -> (Requests, impl Stream<Item = ModelInferRequest>) {
    let (send, receive) = mpsc::unbounded_channel();
    (send, tokio_stream::wrappers::UnboundedReceiverStream::new(receive))
}

/// The id, the error and the mark of the last response.
pub(super) fn brief(answer: &ModelStreamInferResponse) -> (&str, &str, bool) {
    let response = answer.infer_response.as_ref().unwrap();
    let last = &response.parameters["triton_final_response"].parameter_choice;
    (&response.id, &answer.error_message, *last == Some(ParameterChoice::BoolParam(true)))
}

pub(super) async fn next(
    answers: &mut Streaming<ModelStreamInferResponse>,
) -> ModelStreamInferResponse {
    answers.message().await.unwrap().unwrap()
}

#[actix_web::test]
async fn answers_come_in_the_order_of_the_requests() {
    let mut server = Server::start().await;
    let (send, requests) = requests();
    let mut answers = server.client.model_stream_infer(requests).await.unwrap().into_inner();
    for id in ["1", "2", "3"] {
        send.send(one("hold", id)).unwrap();
    }
    let mut held = vec![server.held().await, server.held().await, server.held().await];
    // The last first.
    for Pending { request, reply } in held.drain(..).rev() {
        assert!(next(&mut answers).now_or_never().is_none());
        reply.answer(Ok(echo(request)));
    }
    drop(send);
    for id in ["1", "2", "3"] {
        assert_eq!(brief(&next(&mut answers).await), (id, "", true));
    }
    assert!(answers.message().await.unwrap().is_none());
}

#[actix_web::test]
async fn an_error_ends_its_request_and_not_the_stream() {
    let mut server = Server::start().await;
    let asked = [one("echo", "1"), one("fail", "2"), one("nope", "3"), one("hold", "4")];
    let asked = stream::iter(asked);
    let mut answers = server.client.model_stream_infer(asked).await.unwrap().into_inner();
    let Pending { request, reply } = server.held().await;
    reply.answer(Ok(echo(request)));
    let type_error =
        "[request id: 1] inference input 'a' data-type is 'INT32', but model 'echo' expects 'FP32'";
    for expected in [
        ("1", type_error, true),
        ("2", "it broke", true),
        ("3", "Request for unknown model: 'nope' is not found", true),
        ("4", "", true),
    ] {
        assert_eq!(brief(&next(&mut answers).await), expected);
    }
    assert!(answers.message().await.unwrap().is_none());
}

#[actix_web::test]
async fn with_triton_grpc_error_the_first_error_ends_the_stream() {
    let mut server = Server::start().await;
    let (send, requests) = requests();
    let mut opening = tonic::Request::new(requests);
    opening.metadata_mut().insert("triton_grpc_error", "true".parse().unwrap());
    let mut answers = server.client.model_stream_infer(opening).await.unwrap().into_inner();
    for id in ["1", "2", "3"] {
        send.send(one("hold", id)).unwrap();
    }
    let (first, second, third) = (server.held().await, server.held().await, server.held().await);
    first.reply.answer(Ok(echo(first.request)));
    second.reply.answer(Err(Error::internal("it broke")));
    assert_eq!(brief(&next(&mut answers).await), ("1", "", true));
    let status = answers.message().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::Internal, "it broke"));
    assert!(third.request.context.is_stopped());
}

#[actix_web::test]
async fn leaving_the_stream_cancels_what_is_in_flight() {
    let mut server = Server::start().await;
    let (send, requests) = requests();
    let answers = server.client.model_stream_infer(requests).await.unwrap();
    send.send(one("hold", "1")).unwrap();
    let pending = server.held().await;
    // The client resets the stream only when it lets go of both halves.
    drop((send, answers));
    cancelled(&pending).await;
}

#[actix_web::test]
async fn a_stream_with_enough_in_flight_is_not_read() {
    let mut server = Server::start().await;
    let asked = stream::iter((0..300).map(|it| one("hold", &it.to_string())));
    let mut answers = server.client.model_stream_infer(asked).await.unwrap().into_inner();
    let mut held = Vec::new();
    for _ in 0..256 {
        held.push(server.held().await);
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(server.held.try_recv().is_err());
    for _ in 0..300 {
        let Pending { request, reply } = held.remove(0);
        reply.answer(Ok(echo(request)));
        next(&mut answers).await;
        if held.len() < 256
            && let Some(pending) = server.held().now_or_never()
        {
            held.push(pending);
        }
        if held.is_empty() {
            break;
        }
    }
    assert!(answers.message().now_or_never().is_none_or(|it| it.unwrap().is_none()));
}

#[actix_web::test]
async fn a_stopping_gateway_finishes_what_it_took_and_ends_the_stream() {
    let mut server = Server::start().await;
    let (send, requests) = requests();
    let mut answers = server.client.model_stream_infer(requests).await.unwrap().into_inner();
    send.send(one("hold", "1")).unwrap();
    let Pending { request, reply } = server.held().await;
    server.state.lifecycle.exit();
    send.send(one("hold", "2")).unwrap();
    let stopped = actix_rt::spawn(server.gateway.send(crate::grpc::StopGrpc));
    reply.answer(Ok(echo(request)));
    assert_eq!(brief(&next(&mut answers).await), ("1", "", true));
    let refusal = "GRPC server is shutting down and has stopped accepting new requests.";
    // The second request was read before the stop or not; it is refused either way.
    let status = loop {
        match answers.message().await {
            Ok(answer) => assert_eq!(brief(&answer.unwrap()), ("2", refusal, true)),
            Err(status) => break status,
        }
    };
    assert_eq!((status.code(), status.message()), (tonic::Code::Unavailable, refusal));
    stopped.await.unwrap().unwrap();
}
