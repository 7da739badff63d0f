//! Microseconds of a request for its client: `troupe_timing` in the response's parameters.

use std::time::Instant;

use troupe_base::{
    request::{Parameter, Parameters},
    trace::{ModelSpan, TraceRecord, span_paths},
};

/// The request parameter that asks for them.
const TIMING: &str = "troupe_timing";
/// A response has the times of so many model spans.
const MAX_SPANS: usize = 256;

/// Does the client want times in the response?
pub(super) fn are_wanted(parameters: &Parameters) -> bool {
    parameters.iter().any(|parameter| *parameter == (TIMING.into(), Parameter::Bool(true)))
}

/// Whole microseconds of the request, and of the work of every model that has ended: in a queue, at
/// work, and from the request's begin to its own. A step is named by its position and its model,
/// `troupe_timing.0.add_sub.queue_us`; a model in an ensemble in an ensemble by all of them; what a
/// model called by `call`.
pub(super) fn times(record: &TraceRecord, now: Instant) -> Parameters {
    let micros = |from: Instant, to: Instant| {
        Parameter::Uint(to.saturating_duration_since(from).as_micros() as u64)
    };
    let spans = record.model_spans();
    let mut times = vec![(format!("{TIMING}.total_us").into(), micros(record.begun, now))];
    for (span, path) in span_paths(record.root, &spans).take(MAX_SPANS) {
        let place: Vec<_> = [TIMING.to_owned()].into_iter().chain(path.iter().map(name)).collect();
        let place = place.join(".");
        let Some(ended) = span.ended else { continue };
        let begun = span.start.at;
        let mut add = |what: &str, from, to| {
            times.push((format!("{place}.{what}").into(), micros(from, to)));
        };
        if !path.is_empty() {
            add("start_us", record.begun, begun);
            add("total_us", begun, ended);
        }
        if let Some(execution) = &span.execution {
            // An execution of several requests may have begun before this one was seen to.
            let within = |it: Instant| it.clamp(begun, ended.max(begun));
            let [input, infer, output] = execution.moments().map(within);
            let started = within(execution.begun);
            add("queue_us", begun, started);
            add("compute_input_us", started, input);
            add("compute_infer_us", input, infer);
            add("compute_output_us", infer, output);
        }
    }
    times
}

fn name(span: &&ModelSpan) -> String {
    match span.step {
        Some(step) => format!("{step}.{}", span.start.model),
        None => format!("call.{}", span.start.model),
    }
}
