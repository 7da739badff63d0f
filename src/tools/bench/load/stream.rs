//! One request in flight of a decoupled model, over a stream that is kept.

use std::time::Instant;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Status, Streaming, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel,
};

use super::{
    super::codec::{RawCodec, WireMessage},
    recorder::{AnsweredRequest, LoadThread, Recorder, with_headers},
    sequence::RequestSource,
};
use troupe_proto::inference::{ModelStreamInferResponse, infer_parameter::ParameterChoice};

type Responses = Streaming<ModelStreamInferResponse>;

/// Asks again and again until the phase says otherwise.
pub(super) async fn work(
    channel: Channel,
    mut source: RequestSource<'_>,
    thread: &LoadThread,
    recorder: &Recorder<'_>,
) {
    let mut client = Grpc::new(channel).max_decoding_message_size(usize::MAX);
    let mut open: Option<(mpsc::Sender<WireMessage>, Responses)> = None;
    loop {
        let begun = Instant::now();
        let stream = match &mut open {
            Some((requests, responses)) => match requests.send(source.next()).await {
                Ok(()) => Ok(responses),
                Err(_) => Err(Status::unavailable("the server ended the stream")),
            },
            None => match begin(&mut client, thread, source.next()).await {
                Ok(stream) => Ok(&mut open.insert(stream).1),
                Err(status) => Err(status),
            },
        };
        let ended = match stream {
            Ok(responses) => until_last(responses).await,
            Err(status) => Err(status),
        };
        let goes_on = match ended {
            Ok(RequestEnd { error: None, first, responses }) => {
                let first_response = first.map(|it| it - begun);
                let latency = begun.elapsed();
                recorder.answered(AnsweredRequest { latency, first_response, responses })
            }
            Ok(RequestEnd { error: Some(text), .. }) => {
                source.failed();
                recorder.failed(text, false).await
            }
            Err(status) => {
                source.failed();
                open = None;
                recorder.refused(&status).await
            }
        };
        if !goes_on {
            if let (Some(last), Some((requests, responses))) = (source.end(), &mut open)
                && requests.send(last).await.is_ok()
            {
                // It is for the slot, and counts nowhere.
                let _ = until_last(responses).await;
            }
            return;
        }
    }
}

/// Opens the stream, the first request on its way: some servers say nothing before they have one.
async fn begin(
    client: &mut Grpc<Channel>,
    thread: &LoadThread,
    first: WireMessage,
) -> Result<(mpsc::Sender<WireMessage>, Responses), Status> {
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let (requests, taken) = mpsc::channel(1);
    let closed = |_| Status::internal("a new stream has room for a request");
    requests.try_send(first).map_err(closed)?;
    let request = with_headers(ReceiverStream::new(taken), &thread.job.headers);
    let path = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelStreamInfer");
    let responses = client.streaming(request, path, RawCodec::new()).await?;
    Ok((requests, responses.into_inner()))
}

/// How a request ended.
#[derive(Default)]
struct RequestEnd {
    /// The first one's text.
    error: Option<String>,
    first: Option<Instant>,
    responses: u64,
}

async fn until_last(responses: &mut Responses) -> Result<RequestEnd, Status> {
    let mut ended = RequestEnd::default();
    loop {
        let message = responses.message().await?;
        let message = message.ok_or_else(|| Status::unavailable("the server ended the stream"))?;
        let is_error = !message.error_message.is_empty();
        let response = message.infer_response.unwrap_or_default();
        let last = response.parameters.get("triton_final_response");
        let last = last.and_then(|it| it.parameter_choice.as_ref());
        // An error without a word on whether more follows is the last.
        let is_last = last.map_or(is_error, |it| *it == ParameterChoice::BoolParam(true));
        if is_error {
            ended.error.get_or_insert(message.error_message);
        } else if !response.outputs.is_empty() || !is_last {
            ended.first.get_or_insert_with(Instant::now);
            ended.responses += 1;
        }
        if is_last {
            return Ok(ended);
        }
    }
}
