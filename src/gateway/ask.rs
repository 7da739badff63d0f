//! Asks a model and waits; a caller that goes away meanwhile cancels the request.

use std::sync::Arc;

use crate::{
    error::{Error, Result},
    model::Model,
    request::{Context, Reply, Request, Response},
};

/// The model's answer. Dropping the future before the answer cancels the request.
pub async fn ask(model: &Model, request: Request) -> Result<Response> {
    let (reply, answer) = Reply::channel();
    let mut caller = Caller { context: Some(request.context.clone()) };
    model.infer(request, reply);
    let result = answer.await;
    caller.context = None;
    result.unwrap_or_else(|_| Err(Error::internal("the request was lost")))
}

/// Whoever waits; dropped while waiting, it cancels.
struct Caller {
    context: Option<Arc<Context>>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(context) = &self.context {
            context.cancel();
        }
    }
}
