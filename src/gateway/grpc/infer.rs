//! One inference: from the message to its answer.

use super::{convert, refusal::shutting_down};
use crate::{
    error::{Error, Result},
    gateway::{Gate, ask::ask, parse_version, settings::InFlight},
    proto::inference::{ModelInferRequest, ModelInferResponse},
};

/// Asks the model and waits. Dropping the future before the answer cancels the request.
pub(super) async fn infer(gate: &Gate, message: ModelInferRequest) -> Result<ModelInferResponse> {
    let _in_flight = enter(gate)?;
    let version = parse_version(&message.model_version)?;
    let model = gate.model(&message.model_name, version)?;
    if model.config.decoupled {
        return Err(Error::unsupported(
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ));
    }
    let (request, classes) = convert::request(message, &model.config)?;
    let context = request.context.clone();
    let response = ask(&model, request).await?;
    let response = classes.apply(&model, response).await?;
    Ok(convert::response(&model, context.id.clone(), response))
}

fn enter(gate: &Gate) -> Result<InFlight> {
    gate.lifecycle
        .enter()
        .map_err(|refusal| if gate.lifecycle.is_exiting() { shutting_down() } else { refusal })
}
