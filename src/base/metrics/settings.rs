//! Which latency metrics are shown, and how: `--metrics-config`.

use crate::statistics::{BucketBounds, CacheStatistics, Histogram, OptionalStatistics, Responses};
use troupe_options as options;

/// Upper bounds in milliseconds of the time to the first response: Triton's.
const FIRST_RESPONSE_BOUNDS: [f64; 4] = [100.0, 500.0, 2000.0, 5000.0];

/// Which latency metrics of models are shown.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyMetrics {
    /// Sums of microseconds.
    pub counters: bool,
    /// The time to the first response by size.
    pub histograms: bool,
    /// Quantiles of the last minute.
    pub summaries: bool,
    /// Which quantiles.
    pub quantiles: Vec<f64>,
}

impl Default for LatencyMetrics {
    fn default() -> LatencyMetrics {
        let quantiles = vec![0.5, 0.9, 0.95, 0.99, 0.999];
        LatencyMetrics { counters: true, histograms: false, summaries: false, quantiles }
    }
}

impl LatencyMetrics {
    /// Reads the command line's settings. Also returns, in words, what was skipped.
    pub fn read(settings: &[options::MetricsSetting]) -> (LatencyMetrics, Vec<String>) {
        let (mut latencies, mut skipped) = (LatencyMetrics::default(), Vec::new());
        for setting in settings {
            match setting {
                options::MetricsSetting::CounterLatencies(on) => latencies.counters = *on,
                options::MetricsSetting::HistogramLatencies(on) => latencies.histograms = *on,
                options::MetricsSetting::SummaryLatencies(on) => latencies.summaries = *on,
                options::MetricsSetting::SummaryQuantiles(list) => {
                    let items = list.split(',').map(quantile);
                    let (good, bad): (Vec<_>, Vec<_>) = items.partition(Result::is_ok);
                    skipped.extend(bad.into_iter().filter_map(Result::err));
                    if !good.is_empty() {
                        latencies.quantiles = good.into_iter().flatten().collect();
                    }
                }
                options::MetricsSetting::Other(text) => {
                    skipped.push(format!("--metrics-config={text} has no effect here"));
                }
            }
        }
        (latencies, skipped)
    }

    /// What a model counts for them. `bounds` are those of its config, instead of Triton's.
    pub(super) fn extra(
        &self,
        bounds: Option<&[f64]>,
        traits: CountedTraits,
    ) -> OptionalStatistics {
        let histogram =
            || Histogram::new(BucketBounds::new(bounds.unwrap_or(&FIRST_RESPONSE_BOUNDS), 1.0));
        OptionalStatistics {
            first_response: self.histograms.then(histogram),
            summaries: self.summaries.then(Box::default),
            responses: traits.is_decoupled.then(Responses::default),
            cache: traits.is_cached.then(|| Box::new(CacheStatistics::new(self.summaries))),
            sequences: traits.has_sequences.then(Box::default),
        }
    }
}

/// What else is counted of a model, by what it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountedTraits {
    /// Its responses are.
    pub is_decoupled: bool,
    /// Answers out of the response cache are.
    pub is_cached: bool,
    /// Its sequence slots are.
    pub has_sequences: bool,
}

/// The rank of `<quantile>:<error>`; the error is checked and ignored: ours is smaller than
/// sensible ones.
fn quantile(item: &str) -> Result<f64, String> {
    let Some((rank, error)) = item.split_once(':') else {
        return Err(format!(
            "Invalid option: [{item}]. No ':' delimiter found. Expected format is <quantile>:<error>"
        ));
    };
    let part = |text: &str| {
        let number = text.trim().parse::<f64>().ok();
        number.filter(|it| (0.0..=1.0).contains(it)).ok_or_else(|| {
            format!("Invalid option: [{item}]. Error: expected a number from 0 to 1, got '{text}'")
        })
    };
    part(error)?;
    part(rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_options::MetricsSetting::{self, *};

    fn check(settings: &[MetricsSetting], expected: LatencyMetrics, skipped: &[&str]) {
        let (latencies, told) = LatencyMetrics::read(settings);
        assert_eq!(latencies, expected);
        assert_eq!(told, skipped);
    }

    #[test]
    fn settings_are_taken_and_bad_quantiles_are_skipped() {
        let quantiles =
            |list: &[f64]| LatencyMetrics { quantiles: list.into(), ..LatencyMetrics::default() };
        let list = |text: &str| [SummaryQuantiles(text.to_owned())];
        check(&[], quantiles(&[0.5, 0.9, 0.95, 0.99, 0.999]), &[]);
        check(&list("0.2:0.1,0.8:0.02"), quantiles(&[0.2, 0.8]), &[]);
        check(
            &list("0.2:0.1,x,1.5:0.1,0.5:y"),
            quantiles(&[0.2]),
            &[
                "Invalid option: [x]. No ':' delimiter found. Expected format is \
                 <quantile>:<error>",
                "Invalid option: [1.5:0.1]. Error: expected a number from 0 to 1, got '1.5'",
                "Invalid option: [0.5:y]. Error: expected a number from 0 to 1, got 'y'",
            ],
        );
        let (latencies, skipped) = LatencyMetrics::read(&list("no"));
        assert_eq!((latencies.quantiles.len(), skipped.len()), (5, 1));
        let all = [
            CounterLatencies(false),
            HistogramLatencies(true),
            SummaryLatencies(true),
            Other("a=b".to_owned()),
        ];
        let on = LatencyMetrics {
            counters: false,
            histograms: true,
            summaries: true,
            ..LatencyMetrics::default()
        };
        check(&all, on, &["--metrics-config=a=b has no effect here"]);
    }
}
