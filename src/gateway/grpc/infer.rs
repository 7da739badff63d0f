//! One inference: from the message to its answer.

use std::sync::Arc;

use super::{access, convert, refusal::shutting_down};
use crate::{
    error::{Error, Result},
    gateway::{Gate, access::Access, ask::ask, settings::InFlight},
    model::Model,
    model::parse_version,
    proto::inference::{ModelInferRequest, ModelInferResponse},
};

/// Asks the model and waits. Dropping the future before the answer cancels the request.
pub(super) async fn infer(gate: &Gate, message: ModelInferRequest) -> Result<ModelInferResponse> {
    let mut access = access::begin(gate, &message);
    let result = answer(gate, message, &mut access).await;
    access::ended(&mut access, &result);
    result
}

async fn answer(
    gate: &Gate,
    message: ModelInferRequest,
    access: &mut Access,
) -> Result<ModelInferResponse> {
    let (_in_flight, model) = find(gate, &message)?;
    if model.config.decoupled {
        return Err(Error::unsupported(
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ));
    }
    once(&model, message, access).await
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
    access: &mut Access,
) -> Result<ModelInferResponse> {
    let (mut request, classes) = convert::request(message, &model.config)?;
    access.works(model, &mut request);
    let context = request.context.clone();
    let response = ask(model, request).await?;
    let response = classes.apply(model, response).await?;
    Ok(convert::response(model, context.id.clone(), response))
}
