//! Custom metrics of models: the families and series a worker has handles of, by number.

use std::collections::HashMap;

use serde::Deserialize;

use crate::python::protocol::{frames::frame_head, kinds};
use troupe_base::{
    error::Result,
    metrics::{CustomFamily, CustomSeries, MetricChange, MetricKind, MetricLabels, Metrics},
};

/// What happens to a metric; `metrics.py` has the same.
const ADD: u64 = 0;
const SET: u64 = 1;
const OBSERVE: u64 = 2;
/// The worker has no use for a metric or a family any more.
const DROP: u64 = 3;
/// A worker copied an input out of shared memory, as others read it.
const COPIED: u64 = 4;
/// Bytes of all names, descriptions and labels that one worker may hold, with as many for each item
/// as follow here.
const MAX_HELD_BYTES: usize = 64 << 20;
const ITEM_BYTES: usize = 256;
/// Bytes of one of these: which metric, what, how much.
const EVENT: usize = 24;

/// Families and metrics of one worker. Dropping it lets go of all of them.
pub(crate) struct WorkerMetrics {
    of: Metrics,
    items: HashMap<u64, HeldItem>,
    /// Bytes of all of them.
    bytes: usize,
    next: u64,
}

struct HeldItem {
    metric: HeldMetric,
    bytes: usize,
}

enum HeldMetric {
    Family(CustomFamily),
    Metric(CustomSeries),
}

/// What a worker waits for the answer to.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
enum MetricQuestion {
    /// Answered with the family's number.
    Family { name: String, description: String, kind: u8 },
    /// Answered with the metric's number.
    Metric { family: u64, labels: MetricLabels, buckets: Option<Vec<f64>> },
    /// Answered with the bits of a metric's value.
    Value { metric: u64 },
}

impl WorkerMetrics {
    /// Nothing yet.
    pub(crate) fn new(of: Metrics) -> WorkerMetrics {
        WorkerMetrics { of, items: HashMap::new(), bytes: 0, next: 1 }
    }

    /// Ends all of them.
    pub(crate) fn let_go(&mut self) {
        self.items.clear();
        self.bytes = 0;
    }

    /// Handles the body of a metrics frame: the number of a call and a question, or 0 and events. The
    /// answer is a frame for the worker; an error is the worker's, and its end.
    pub(crate) fn handle(
        &mut self,
        body: &[u8],
        copied: impl Fn(usize),
    ) -> Result<Option<Vec<u8>>, String> {
        let (call, rest) = body.split_first_chunk().ok_or("metrics without a call")?;
        if *call == [0; 8] {
            self.count(rest, copied)?;
            return Ok(None);
        }
        let question: MetricQuestion =
            serde_json::from_slice(rest).map_err(|error| format!("metrics, {error}"))?;
        Ok(Some(answer(call, self.ask(question, rest.len() + ITEM_BYTES))))
    }

    fn count(&mut self, events: &[u8], copied: impl Fn(usize)) -> Result<(), String> {
        let (events, rest) = events.as_chunks::<EVENT>();
        if !rest.is_empty() {
            return Err(format!("an event of a metric in {} bytes", rest.len()));
        }
        for event in events {
            let field = |at: usize| {
                event[at..].first_chunk().map_or(0, |it: &[u8; 8]| u64::from_le_bytes(*it))
            };
            let (number, what, amount) = (field(0), field(8), f64::from_bits(field(16)));
            let change = match what {
                ADD => MetricChange::Add(amount),
                SET => MetricChange::Set(amount),
                OBSERVE => MetricChange::Observe(amount),
                DROP => {
                    let dropped = self.items.remove(&number);
                    self.bytes -= dropped.map_or(0, |it| it.bytes);
                    continue;
                }
                COPIED => {
                    copied(amount as usize);
                    continue;
                }
                what => return Err(format!("an event of kind {what}")),
            };
            // One that is gone was dropped by another thread of the worker in between.
            if let Some(HeldMetric::Metric(metric)) = self.held(number) {
                metric.change(change).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn held(&self, number: u64) -> Option<&HeldMetric> {
        self.items.get(&number).map(|it| &it.metric)
    }

    /// What it makes is held, and counts as so many bytes.
    fn ask(&mut self, question: MetricQuestion, bytes: usize) -> Result<u64, String> {
        let is_value = matches!(question, MetricQuestion::Value { .. });
        if !is_value && MAX_HELD_BYTES < self.bytes + bytes {
            return Err(format!(
                "the metrics of this process have {} bytes of names and labels, and there may be \
                 {MAX_HELD_BYTES}",
                self.bytes
            ));
        }
        let metric = match question {
            MetricQuestion::Family { name, description, kind } => {
                let kind = match kind {
                    0 => MetricKind::Counter,
                    1 => MetricKind::Gauge,
                    _ => MetricKind::Histogram,
                };
                let family = self.of.family(&name, &description, kind);
                HeldMetric::Family(family.map_err(|error| error.to_string())?)
            }
            MetricQuestion::Metric { family, labels, buckets } => {
                let Some(HeldMetric::Family(family)) = self.held(family) else {
                    return Err("its family is gone".into());
                };
                let metric = family.series(labels, buckets.as_deref());
                HeldMetric::Metric(metric.map_err(|error| error.to_string())?)
            }
            MetricQuestion::Value { metric } => {
                let Some(HeldMetric::Metric(metric)) = self.held(metric) else {
                    return Err("the metric is gone".into());
                };
                return metric.value().map(f64::to_bits).map_err(|error| error.to_string());
            }
        };
        let number = self.next;
        self.next += 1;
        self.items.insert(number, HeldItem { metric, bytes });
        self.bytes += bytes;
        Ok(number)
    }
}

/// The number of the call, 0 and a number, or 1, the length of a text and the text.
fn answer(call: &[u8; 8], answer: Result<u64, String>) -> Vec<u8> {
    let (is_error, number, text) = match &answer {
        Ok(number) => (0, *number, ""),
        Err(text) => (1, text.len() as u64, &**text),
    };
    let mut frame = frame_head(kinds::METRICS_REPLY, 24 + text.len());
    frame.extend_from_slice(call);
    frame.extend_from_slice(&u64::to_le_bytes(is_error));
    frame.extend_from_slice(&number.to_le_bytes());
    frame.extend_from_slice(text.as_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(events: &[(u64, u64, f64)]) -> Vec<u8> {
        let fields = |it: &(u64, u64, f64)| [it.0, it.1, it.2.to_bits()];
        [0].into_iter().chain(events.iter().flat_map(fields)).flat_map(u64::to_le_bytes).collect()
    }

    fn ask(held: &mut WorkerMetrics, question: &str) -> Result<u64, String> {
        let body = [&7u64.to_le_bytes(), question.as_bytes()].concat();
        let frame = held.handle(&body, |_| ()).unwrap().unwrap();
        let field = |at: usize| u64::from_le_bytes(frame[at..at + 8].try_into().unwrap());
        assert_eq!((frame.len(), frame[4], field(8)), (field(0) as u32 as usize, b'm', 7));
        match field(16) {
            0 => Ok(field(24)),
            _ => Err(String::from_utf8(frame[32..].to_vec()).unwrap()),
        }
    }

    #[test]
    fn a_worker_counts_by_number() {
        let mut held = WorkerMetrics::new(Metrics::new());
        let family = r#"{"do": "family", "name": "g", "description": "d", "kind": 1}  "#;
        assert_eq!(ask(&mut held, family), Ok(1));
        let metric = r#"{"do": "metric", "family": 1, "labels": {"a": "b"}, "buckets": null}"#;
        assert_eq!(ask(&mut held, metric), Ok(2));
        let changes = [(2, SET, 4.0), (2, ADD, -1.5), (9, ADD, 1.0), (0, COPIED, 5.0)];
        let copied = std::cell::Cell::new(0);
        assert_eq!(held.handle(&events(&changes), |it| copied.set(it)), Ok(None));
        assert_eq!(copied.get(), 5);
        let value = r#"{"do": "value", "metric": 2}"#;
        assert_eq!(ask(&mut held, value), Ok(2.5f64.to_bits()));
        assert_eq!(held.handle(&events(&[(1, DROP, 0.0), (2, DROP, 0.0)]), |_| ()), Ok(None));
        assert!(held.of.gather().is_empty());
        assert_eq!(ask(&mut held, value), Err("the metric is gone".into()));
        assert_eq!(ask(&mut held, metric), Err("its family is gone".into()));
    }

    #[test]
    fn a_worker_holds_names_up_to_a_limit() {
        let mut held = WorkerMetrics::new(Metrics::new());
        let description = "d".repeat(MAX_HELD_BYTES / 4);
        let family = |name: &str| {
            format!(
                r#"{{"do": "family", "name": "{name}", "description": "{description}", "kind": 1}}"#
            )
        };
        for (name, number) in ["a", "b", "c"].into_iter().zip(1..) {
            assert_eq!(ask(&mut held, &family(name)), Ok(number));
        }
        let error = ask(&mut held, &family("d")).unwrap_err();
        assert!(error.ends_with("of names and labels, and there may be 67108864"), "{error}");
        assert_eq!(held.handle(&events(&[(2, DROP, 0.0), (2, DROP, 0.0)]), |_| ()), Ok(None));
        assert_eq!(ask(&mut held, &family("d")), Ok(4));
        held.let_go();
        assert_eq!((held.bytes, held.items.len()), (0, 0));
    }

    #[test]
    fn nonsense_is_an_error() {
        let mut held = WorkerMetrics::new(Metrics::new());
        let mut wrong = |body: &[u8]| held.handle(body, |_| ()).unwrap_err();
        assert_eq!(wrong(&[0; 7]), "metrics without a call");
        assert_eq!(wrong(&[0; 9]), "an event of a metric in 1 bytes");
        assert_eq!(wrong(&events(&[(1, 77, 0.0)])), "an event of kind 77");
        assert!(wrong(&[1; 40]).starts_with("metrics, "));
    }
}
