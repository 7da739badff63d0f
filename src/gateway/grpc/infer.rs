//! `ModelInfer`: decodes one inference and encodes its answer.

use std::time::Instant;

use super::{
    convert,
    message::InferMessage,
    observe::{self, CallHead},
};
use crate::{
    ServerState, decoupled,
    inference::{Admitted, InferParams, Observed, RequestTrace},
    shared_memory::RegionAccess,
};
use troupe_base::{error::Result, model::Model};
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
    let admitted = observe::admit(observed, state, &mut message)?;
    decoupled::check(
        &admitted.model,
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
        "ModelStreamInfer (tritonclient: start_stream and async_stream_infer)",
    )?;
    let regions = prepare(observed, state, head, &admitted.model)?;
    once(&admitted, message, head.times.deadline, regions, observed).await
}

/// Notes what came with the call; answers which regions the request may use.
pub(super) fn prepare(
    observed: &mut Observed,
    state: &ServerState,
    head: &CallHead,
    model: &Model,
) -> Result<RegionAccess> {
    observe::forward(observed, state, head)?;
    observe::sample(observed, state, model, head);
    Ok(RegionAccess::new(&state.settings, model))
}

/// Asks a model that answers once, and stops at the deadline.
pub(super) async fn once(
    admitted: &Admitted,
    message: InferMessage,
    deadline: Option<Instant>,
    regions: RegionAccess,
    observed: &mut Observed,
) -> Result<ModelInferResponse> {
    let params = convert::request_off_thread(message, &admitted.model, deadline, regions).await;
    run(admitted, params, observed).await
}

/// The same once the message is decoded.
pub(super) async fn run(
    admitted: &Admitted,
    params: Result<InferParams>,
    observed: &mut Observed,
) -> Result<ModelInferResponse> {
    let params = admitted.noted(params)?;
    let InferParams { request, deliveries } = params;
    let context = request.context.clone();
    let response = admitted.run(request, &deliveries, observed).await?;
    Ok(convert::response(&admitted.model, context.id.clone(), response, &deliveries))
}
