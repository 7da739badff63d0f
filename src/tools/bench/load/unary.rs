//! One request in flight of a model that answers once.

use std::time::Instant;

use tonic::{Response, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};

use super::{
    super::codec::{RawCodec, WireMessage},
    recorder::{AnsweredRequest, LoadThread, Recorder, with_headers},
    sequence::RequestSource,
};
use troupe_proto::inference::ModelInferResponse;

/// Asks again and again until the phase says otherwise.
pub(super) async fn work(
    channel: Channel,
    mut requests: RequestSource<'_>,
    thread: &LoadThread,
    recorder: &Recorder<'_>,
) {
    let mut client = Grpc::new(channel).max_decoding_message_size(usize::MAX);
    loop {
        let begun = Instant::now();
        let goes_on = match ask(&mut client, thread, requests.next()).await {
            Ok(_) => recorder.answered(AnsweredRequest {
                latency: begun.elapsed(),
                first_response: None,
                responses: 1,
            }),
            Err(status) => {
                requests.failed();
                recorder.refused(&status).await
            }
        };
        if !goes_on {
            if let Some(last) = requests.end() {
                // It is for the slot, and counts nowhere.
                let _ = ask(&mut client, thread, last).await;
            }
            return;
        }
    }
}

async fn ask(
    client: &mut Grpc<Channel>,
    thread: &LoadThread,
    message: WireMessage,
) -> Result<Response<ModelInferResponse>, Status> {
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let request = with_headers(message, &thread.job.headers);
    let path = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelInfer");
    client.unary(request, path, RawCodec::new()).await
}
