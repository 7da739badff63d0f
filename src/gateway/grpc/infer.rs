//! `ModelInfer`: decodes one inference and encodes its answer.

use std::time::Instant;

use super::{
    convert,
    message::InferMessage,
    observe::{self, CallHead},
};
use crate::{
    ServerState,
    inference::{Admitted, InferParams, Observed, RequestTrace},
    shared_memory::RegionAccess,
};
use troupe_base::error::{Error, Result};
use troupe_proto::inference::ModelInferResponse;

/// Asks the model and waits. Dropping the future before the answer cancels the request. The trace
/// ends when the answer is sent.
pub(super) async fn infer(
    state: &ServerState,
    head: CallHead,
    message: InferMessage,
) -> Result<(ModelInferResponse, RequestTrace)> {
    let mut observed = observe::begin(state, &message);
    let result = answer(state, &head, message, &mut observed).await;
    observe::finish(&mut observed, &result);
    let trace = observed.trace.take();
    match result {
        Ok(response) => Ok((response, trace)),
        Err(error) => {
            trace.fail(&error);
            Err(error)
        }
    }
}

async fn answer(
    state: &ServerState,
    head: &CallHead,
    mut message: InferMessage,
    observed: &mut Observed,
) -> Result<ModelInferResponse> {
    // Even its model's name may be missing.
    if let Some(refusal) = message.refusal.take() {
        return Err(refusal);
    }
    let admitted = observe::admit(observed, state, &message)?;
    if admitted.model.config.decoupled {
        return Err(Error::unsupported(
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ));
    }
    observe::forward(observed, state, head)?;
    observe::sample(observed, state, &admitted.model, head);
    let regions = RegionAccess::new(&state.settings, &admitted.model);
    once(&admitted, message, head.times.deadline, regions, observed).await
}

/// Asks a model that answers once, and stops at the deadline.
pub(super) async fn once(
    admitted: &Admitted,
    message: InferMessage,
    deadline: Option<Instant>,
    regions: RegionAccess,
    observed: &mut Observed,
) -> Result<ModelInferResponse> {
    let params = convert::request_off_thread(message, &admitted.model, deadline, regions).await?;
    let InferParams { request, deliveries } = params;
    let context = request.context.clone();
    let response = admitted.run(request, &deliveries, observed).await?;
    Ok(convert::response(&admitted.model, context.id.clone(), response, &deliveries))
}
