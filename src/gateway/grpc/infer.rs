//! One inference: from the message to its answer.

use std::sync::Arc;

use tonic::{Request, Response, metadata::MetadataMap};

use super::{
    access, convert,
    refusal::shutting_down,
    traced::{self, Arrived, Traced},
};
use crate::{ServerState, access::Access, ask::ask, lifecycle::InFlight};
use troupe_base::{
    error::{Error, Result},
    model::Model,
    model::parse_version,
};
use troupe_proto::inference::{ModelInferRequest, ModelInferResponse};

/// Asks the model and waits. Dropping the future before the answer cancels the request.
pub(super) async fn infer(
    state: &ServerState,
    asked: Request<ModelInferRequest>,
) -> Result<Response<ModelInferResponse>> {
    let (metadata, extensions, message) = asked.into_parts();
    let (mut access, mut traced) = (access::begin(state, &message), None);
    let asked = (&metadata, extensions.get::<Arrived>().copied(), message);
    let result = answer(state, asked, (&mut access, &mut traced)).await;
    access::ended(&mut access, &result);
    let mut response = Response::new(result.inspect_err(|it| traced::refused(&traced, it))?);
    traced::answered(traced, response.extensions_mut());
    Ok(response)
}

async fn answer(
    state: &ServerState,
    (metadata, arrived, message): (&MetadataMap, Option<Arrived>, ModelInferRequest),
    (access, traced): (&mut Access, &mut Traced),
) -> Result<ModelInferResponse> {
    let (_in_flight, model) = find(state, &message)?;
    if model.config.decoupled {
        return Err(Error::unsupported(
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ));
    }
    *traced = traced::begin(state, &model, (metadata, arrived));
    once(&model, message, (access, traced)).await
}

/// Counts the request in and finds its model.
pub(super) fn find(
    state: &ServerState,
    message: &ModelInferRequest,
) -> Result<(InFlight, Arc<Model>)> {
    let in_flight = state
        .lifecycle
        .enter()
        .map_err(|refusal| if state.lifecycle.is_exiting() { shutting_down() } else { refusal })?;
    let version = parse_version(&message.model_version)?;
    Ok((in_flight, state.model(&message.model_name, version)?))
}

/// Asks a model that answers once.
pub(super) async fn once(
    model: &Arc<Model>,
    message: ModelInferRequest,
    (access, traced): (&mut Access, &Traced),
) -> Result<ModelInferResponse> {
    let (mut request, classes) = convert::request(message, &model.config)?;
    access.works(model, traced, &mut request);
    let context = request.context.clone();
    let response = ask(model, request, traced.clone()).await?;
    let response = classes.apply(model, response).await?;
    Ok(convert::response(model, context.id.clone(), response))
}
