//! Requests that somebody watches: who asked for it, and what they get to see.

use std::{sync::Arc, time::Instant};

use troupe_base::{
    request::{Parameter, Parameters, Request, Response},
    trace::{ModelSpan, Span, TraceContext, TraceRecord, span_paths},
};

/// The request parameter that asks for microseconds in the response's parameters.
const TIMING: &str = "troupe_timing";
/// A response tells the times of so many visits to models.
const MAX_TOLD: usize = 256;

/// What is noted of a request, if it is traced.
pub(super) type Traced = Option<Arc<TraceRecord>>;

/// Something happens to it at the cell.
pub(super) fn mark(traced: &Traced, name: &'static str) {
    if let Some(record) = traced {
        record.mark(name, Instant::now());
    }
}

/// Who watches a request.
pub(super) struct Watch {
    /// The tracer.
    traced: Option<Arc<TraceRecord>>,
    /// Its client.
    timing: Option<Arc<TraceRecord>>,
}

impl Watch {
    /// Gives the request its record, or one of its own if its client wants to know.
    pub(super) fn begin(request: &mut Request, traced: Option<Arc<TraceRecord>>) -> Watch {
        let asks = |it: &(_, Parameter)| *it == (TIMING.into(), Parameter::Bool(true));
        let is_timed = request.context.parameters.iter().any(asks);
        let own =
            || Arc::new(TraceRecord::new(TraceContext::default(), Instant::now(), Vec::new()));
        let noted = || request.context.span.as_ref().map(|it| it.record().clone());
        let record = traced.clone().or_else(noted).or_else(|| is_timed.then(own));
        if let Some(record) = &record {
            request.context = Arc::new(request.context.under(Span::root(record.clone())));
        }
        Watch { traced, timing: record.filter(|_| is_timed) }
    }

    /// The model has given a response, or the end of them.
    pub(super) fn answered(&self) {
        if let Some(record) = &self.traced {
            record.mark("INFER_RESPONSE_COMPLETE", Instant::now());
        }
    }

    /// The response with the times so far, if its client asked for them.
    pub(super) fn tell(&self, mut response: Response) -> Response {
        if let Some(record) = &self.timing {
            response.parameters.extend(times(record, Instant::now()));
        }
        response
    }
}

/// Whole microseconds of the request, and of every visit that has ended: in a queue, at work, and
/// from the request's begin to its own. A step is named by its position and its model,
/// `troupe_timing.0.add_sub.queue_us`; a model in an ensemble in an ensemble by all of them; what a
/// model called by `call`.
fn times(record: &TraceRecord, now: Instant) -> Parameters {
    let micros = |from: Instant, to: Instant| {
        Parameter::Uint(to.saturating_duration_since(from).as_micros() as u64)
    };
    let visits = record.model_spans();
    let mut told = vec![(format!("{TIMING}.total_us").into(), micros(record.begun, now))];
    for (visit, way) in span_paths(record.root, &visits).take(MAX_TOLD) {
        let place: Vec<_> = [TIMING.to_owned()].into_iter().chain(way.iter().map(name)).collect();
        let place = place.join(".");
        let Some(ended) = visit.ended else { continue };
        let begun = visit.start.at;
        let mut tell = |what: &str, from, to| {
            told.push((format!("{place}.{what}").into(), micros(from, to)));
        };
        if !way.is_empty() {
            tell("start_us", record.begun, begun);
            tell("total_us", begun, ended);
        }
        if let Some(execution) = &visit.execution {
            let [input, infer, output] = execution.moments();
            tell("queue_us", begun, execution.begun);
            tell("compute_input_us", execution.begun, input);
            tell("compute_infer_us", input, infer);
            tell("compute_output_us", infer, output);
        }
    }
    told
}

fn name(visit: &&ModelSpan) -> String {
    match visit.step {
        Some(step) => format!("{step}.{}", visit.start.model),
        None => format!("call.{}", visit.start.model),
    }
}
