//! An admitted inference: counted as in flight, its model found; run once or as a stream.

use std::{sync::Arc, time::Instant};

use super::{
    answers::{self, Answers},
    delivery::{Deliveries, InferParams},
    observed::Observed,
};
use crate::{ServerState, lifecycle::InFlightGuard};
use troupe_base::{
    error::{Error, Result},
    model::{Model, parse_version},
    request::{Request, Response},
};

/// A request that the server has taken on: a server that stops waits until this is dropped.
pub struct Admitted {
    /// The model it is for.
    pub model: Arc<Model>,
    in_flight: InFlightGuard,
}

impl Observed {
    /// Counts the request in and finds its model; the version is as the client wrote it.
    pub(crate) fn admit(&self, state: &ServerState, name: &str, version: &str) -> Result<Admitted> {
        let in_flight = state.lifecycle.enter().map_err(|refusal| match self.protocol.exiting {
            Some(text) if state.lifecycle.is_exiting() => Error::unavailable(text),
            _ => refusal,
        })?;
        let model = state.model(name, parse_version(version)?)?;
        Ok(Admitted { model, in_flight })
    }
}

impl Admitted {
    /// Takes on a request of this process itself; `version: None` is the highest that is ready.
    pub fn in_process(state: &ServerState, name: &str, version: Option<i64>) -> Result<Admitted> {
        let in_flight = state.lifecycle.enter()?;
        Ok(Admitted { model: state.model(name, version)?, in_flight })
    }

    /// What was read of a request, or why it cannot be read, which the page of its model shows.
    pub(crate) fn noted<T>(&self, read: Result<T>) -> Result<T> {
        read.inspect_err(|error| self.model.stats.recent.refused(error, Instant::now()))
    }

    /// The only response to a request of this process itself: in no access log and no trace.
    /// Dropping the future before the answer cancels the request.
    pub async fn run_in_process(&self, request: Request) -> Result<Response> {
        answers::only(&self.model, request).await
    }

    /// The only response, its outputs as the client wants them. Dropping the future before the
    /// answer cancels the request.
    pub(crate) async fn run(
        &self,
        mut request: Request,
        deliveries: &Deliveries,
        observed: &mut Observed,
    ) -> Result<Response> {
        observed.admitted(&self.model, &mut request);
        let response = answers::only(&self.model, request).await;
        observed.answered();
        deliveries.apply(&self.model, observed.timed(response?)).await
    }

    /// Begins a request with any number of responses, and returns at once; `Answers::next` waits.
    pub(crate) fn stream(self, params: InferParams, observed: &mut Observed) -> Answers {
        let InferParams { mut request, deliveries } = params;
        observed.admitted(&self.model, &mut request);
        Answers::begin(self.model, request, deliveries, self.in_flight)
    }
}
