//! What is measured, and how it is shown.

use clap::{ArgAction, Args};

use super::switch;

/// What is measured, and how it is shown.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Metrics")]
pub struct MetricsArguments {
    /// Report metrics of GPUs, if there are any
    #[arg(long, value_parser = switch, default_value = "true", action = ArgAction::Set)]
    pub allow_gpu_metrics: bool,
    /// Report metrics of CPU and memory
    #[arg(long, value_parser = switch, default_value = "true", action = ArgAction::Set)]
    pub allow_cpu_metrics: bool,
    /// Milliseconds between samples of GPUs and CPU
    #[arg(long, default_value = "2000", value_parser = interval)]
    pub metrics_interval_ms: u64,
    /// `<setting>=<value>`, may be given more than once: `counter_latencies` (true),
    /// `histogram_latencies` and `summary_latencies` (false), and
    /// `summary_quantiles=<quantile>:<error>,…`
    #[arg(long, value_parser = setting)]
    pub metrics_config: Vec<MetricsSetting>,
}

/// One `--metrics-config`.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricsSetting {
    /// Sums of microseconds are shown.
    CounterLatencies(bool),
    /// Histograms of the time to the first response are shown.
    HistogramLatencies(bool),
    /// Quantiles are shown.
    SummaryLatencies(bool),
    /// Which quantiles, as they were written.
    SummaryQuantiles(String),
    /// A setting that is unknown here.
    Other(String),
}

fn setting(text: &str) -> Result<MetricsSetting, String> {
    let format = || format!("--metrics-config option format is <setting>=<value>. Got {text}");
    let (name, value) = text.split_once('=').ok_or_else(format)?;
    if name.contains(',') {
        return Err(format());
    }
    Ok(match name {
        "counter_latencies" => MetricsSetting::CounterLatencies(is_on(value)?),
        "histogram_latencies" => MetricsSetting::HistogramLatencies(is_on(value)?),
        "summary_latencies" => MetricsSetting::SummaryLatencies(is_on(value)?),
        "summary_quantiles" => MetricsSetting::SummaryQuantiles(value.to_owned()),
        _ => MetricsSetting::Other(text.to_owned()),
    })
}

fn is_on(value: &str) -> Result<bool, String> {
    switch(value).map_err(|_| format!("expected true or false, got `{value}`"))
}

/// Milliseconds, which Triton takes with a fraction; at least one.
fn interval(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(millis) if (1.0..=f64::from(u32::MAX)).contains(&millis) => Ok(millis as u64),
        Ok(_) => Err(format!("Provided option value is out of bound. Got {text}")),
        Err(_) => Err(format!("Invalid option value. Got {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_or_refused() {
        use MetricsSetting::*;
        let told = |text: &str| format!("expected true or false, got `{text}`");
        let format =
            |text| Err(format!("--metrics-config option format is <setting>=<value>. Got {text}"));
        for (text, expected) in [
            ("counter_latencies=false", Ok(CounterLatencies(false))),
            ("histogram_latencies=true", Ok(HistogramLatencies(true))),
            ("summary_latencies=TRUE", Ok(SummaryLatencies(true))),
            ("summary_quantiles=0.5:0.1", Ok(SummaryQuantiles("0.5:0.1".to_owned()))),
            ("other=1", Ok(Other("other=1".to_owned()))),
            ("summary_latencies=x", Err(told("x"))),
            ("summary_latencies", format("summary_latencies")),
            ("a,b=c", format("a,b=c")),
        ] {
            assert_eq!(setting(text), expected);
        }
    }
}
