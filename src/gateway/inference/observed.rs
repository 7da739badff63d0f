//! Guard of one inference for those who watch it: received, admitted, answered, sent. The access
//! log has its line when this is dropped.

use std::{sync::Arc, time::Instant};

use super::{
    access_log::AccessLine,
    forwarding::forwarded,
    request_trace::{Protocol, RequestTrace},
    timing,
};
use crate::ServerState;
use troupe_base::{
    error::Result,
    model::Model,
    request::{Parameters, Request, Response},
    trace::{HeaderReader, Span, TraceContext, TraceRecord},
};
use troupe_options::HeaderPattern;

/// What is noted of an inference. Nothing is, and nothing costs, unless the access log is on, the
/// request is traced, or its client wants to know times.
pub(crate) struct Observed {
    pub(super) protocol: &'static Protocol,
    /// The access log's.
    pub(crate) line: AccessLine,
    /// The tracer's.
    pub(crate) trace: RequestTrace,
    /// Headers that are parameters too.
    forwarded: Parameters,
    /// For a client that asked for times.
    times: Option<Arc<TraceRecord>>,
}

impl Observed {
    /// A request has come.
    pub(crate) fn begin(state: &ServerState, protocol: &'static Protocol) -> Observed {
        let line = AccessLine::begin(&state.settings, protocol);
        Observed::new(protocol, line)
    }

    /// For a server that is still starting: nothing is noted.
    pub(crate) fn nothing(protocol: &'static Protocol) -> Observed {
        let line = AccessLine::default();
        Observed::new(protocol, line)
    }

    fn new(protocol: &'static Protocol, line: AccessLine) -> Observed {
        let trace = RequestTrace::off(protocol);
        Observed { protocol, line, trace, forwarded: Parameters::default(), times: None }
    }

    /// Takes the headers that are parameters too; their names are in lower case.
    pub(crate) fn forward<'a>(
        &mut self,
        pattern: &HeaderPattern,
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<()> {
        if !pattern.is_empty() {
            self.forwarded = forwarded(pattern, headers)?;
        }
        Ok(())
    }

    /// The request's head came at `arrived`, or just now: traces it if it is one of those to trace.
    pub(crate) fn sample(
        &mut self,
        state: &ServerState,
        model: &Model,
        header: HeaderReader<'_>,
        arrived: Option<Instant>,
    ) {
        let record = state.tracer.sample(model.name(), header, arrived);
        self.trace = RequestTrace::begin(self.protocol, record);
    }

    /// The model begins to work: notes from here on which models the request passes, if anybody
    /// wants to know.
    pub(super) fn admitted(&mut self, model: &Model, request: &mut Request) {
        if !self.forwarded.is_empty() {
            let context = Arc::make_mut(&mut request.context);
            context.parameters.append(&mut self.forwarded);
        }
        let wants_times = timing::are_wanted(&request.context.parameters);
        let logged = self.line.works(model, &request.context.id);
        let begun = logged.or_else(|| wants_times.then(Instant::now));
        let own = |begun| Arc::new(TraceRecord::new(TraceContext::default(), begun, Vec::new()));
        let Some(record) = self.trace.record().cloned().or_else(|| begun.map(own)) else { return };
        request.context = Arc::new(request.context.under(Span::root(record.clone())));
        self.line.notes(&record);
        self.times = wants_times.then_some(record);
    }

    /// The model has given a response, or the end of them.
    pub(super) fn answered(&self) {
        self.trace.answered();
    }

    /// The response with the times so far, if its client asked for them.
    pub(super) fn timed(&self, mut response: Response) -> Response {
        if let Some(record) = &self.times {
            response.parameters.extend(timing::times(record, Instant::now()));
        }
        response
    }
}

/// The values of a header that came several times, as one; `None` without the header, or if a value
/// is no text.
pub(crate) fn joined<'a>(values: impl Iterator<Item = Option<&'a str>>) -> Option<String> {
    let values = values.collect::<Option<Vec<_>>>()?;
    (!values.is_empty()).then(|| values.join(","))
}
