//! `ModelInfer`: decodes one inference and encodes its answer.

use tonic::{Request, Response};

use super::{
    convert::{self, NamedMessage},
    observe::{self, CallHead},
};
use crate::{
    ServerState,
    inference::{Admitted, InferParams, Observed},
};
use troupe_base::error::{Error, Result};
use troupe_proto::inference::{ModelInferRequest, ModelInferResponse};

/// Asks the model and waits. Dropping the future before the answer cancels the request.
pub(super) async fn infer(
    state: &ServerState,
    call: Request<ModelInferRequest>,
) -> Result<Response<ModelInferResponse>> {
    let (metadata, extensions, message) = call.into_parts();
    let head = CallHead::of_one(metadata, &extensions);
    let mut observed = observe::begin(state, &message);
    let result = answer(state, &head, message, &mut observed).await;
    observe::finish(&mut observed, &result);
    let trace = observed.trace.take();
    let mut response = Response::new(result.inspect_err(|error| trace.fail(error))?);
    observe::sending(trace, response.extensions_mut());
    Ok(response)
}

async fn answer(
    state: &ServerState,
    head: &CallHead,
    message: ModelInferRequest,
    observed: &mut Observed,
) -> Result<ModelInferResponse> {
    let admitted = observe::admit(observed, state, &message)?;
    if admitted.model.config.decoupled {
        return Err(Error::unsupported(
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ));
    }
    observe::sample(observed, state, &admitted.model, head);
    let charge = head.charge()?;
    once(&admitted, NamedMessage { message, charge, deadline: head.times.deadline }, observed).await
}

/// Asks a model that answers once, and stops at the deadline.
pub(super) async fn once(
    admitted: &Admitted,
    message: NamedMessage,
    observed: &mut Observed,
) -> Result<ModelInferResponse> {
    let params = convert::request(message, &admitted.model.config)?;
    let InferParams { request, deliveries } = params;
    let context = request.context.clone();
    let response = admitted.run(request, &deliveries, observed).await?;
    Ok(convert::response(&admitted.model, context.id.clone(), response))
}
