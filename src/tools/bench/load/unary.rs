//! One request in flight of a model that answers once.

use std::time::Instant;

use tonic::{Response, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};

use super::{super::codec::Encoded, Part, Recorder, asked};
use troupe_proto::inference::ModelInferResponse;

/// Asks again and again until the phase says otherwise.
pub(super) async fn work(channel: Channel, part: &Part, recorder: &Recorder<'_>) {
    let mut client = Grpc::new(channel).max_decoding_message_size(usize::MAX);
    loop {
        let begun = Instant::now();
        let goes_on = match ask(&mut client, part).await {
            Ok(_) => recorder.answered(begun.elapsed(), (None, 1)),
            Err(status) => recorder.refused(&status).await,
        };
        if !goes_on {
            return;
        }
    }
}

async fn ask(
    client: &mut Grpc<Channel>,
    part: &Part,
) -> Result<Response<ModelInferResponse>, Status> {
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let request = asked(part.job.request.clone(), &part.job.headers);
    let path = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelInfer");
    client.unary(request, path, Encoded::new()).await
}
