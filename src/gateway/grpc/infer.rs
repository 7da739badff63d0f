//! One inference: from the message to its answer.

use std::sync::Arc;

use tonic::{Request, Response};

use super::{
    convert,
    refusal::shutting_down,
    traced::{self, Arrived, Traced},
};
use crate::{
    error::{Error, Result},
    gateway::{Gate, ask::ask, settings::InFlight},
    model::Model,
    model::parse_version,
    proto::inference::{ModelInferRequest, ModelInferResponse},
};

/// Asks the model and waits. Dropping the future before the answer cancels the request.
pub(super) async fn infer(
    gate: &Gate,
    asked: Request<ModelInferRequest>,
) -> Result<Response<ModelInferResponse>> {
    let (metadata, extensions, message) = asked.into_parts();
    let (_in_flight, model) = find(gate, &message)?;
    if model.config.decoupled {
        return Err(Error::unsupported(
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ));
    }
    let arrived = extensions.get::<Arrived>().copied();
    let traced = traced::begin(gate, &model, (&metadata, arrived));
    let answer = once(&model, message, &traced).await;
    let mut response = Response::new(answer.inspect_err(|it| traced::refused(&traced, it))?);
    traced::answered(traced, response.extensions_mut());
    Ok(response)
}

/// Counts the request in and finds its model.
pub(super) fn find(gate: &Gate, message: &ModelInferRequest) -> Result<(InFlight, Arc<Model>)> {
    let in_flight = gate
        .lifecycle
        .enter()
        .map_err(|refusal| if gate.lifecycle.is_exiting() { shutting_down() } else { refusal })?;
    let version = parse_version(&message.model_version)?;
    Ok((in_flight, gate.model(&message.model_name, version)?))
}

/// Asks a model that answers once.
pub(super) async fn once(
    model: &Arc<Model>,
    message: ModelInferRequest,
    traced: &Traced,
) -> Result<ModelInferResponse> {
    let (request, classes) = convert::request(message, &model.config)?;
    let context = request.context.clone();
    let response = ask(model, request, traced.clone()).await?;
    let response = classes.apply(model, response).await?;
    Ok(convert::response(model, context.id.clone(), response))
}
