//! Triton's flags that tune gRPC: pings, the age of connections, compressed answers.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::switch;

/// How gRPC connections are kept, and how answers are written.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "gRPC")]
pub struct GrpcArguments {
    /// Milliseconds without a frame of a client after which it is pinged
    #[arg(long, default_value_t = 7_200_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub grpc_keepalive_time: u32,
    /// Milliseconds that it may take to answer the ping
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub grpc_keepalive_timeout: u32,
    /// Milliseconds after which a connection is closed once its calls have ended; 0: never
    #[arg(long, default_value_t = 0)]
    pub grpc_max_connection_age: u32,
    /// Milliseconds that calls may go on on a connection that is too old; 0: for ever
    #[arg(long, default_value_t = 0)]
    pub grpc_max_connection_age_grace: u32,
    /// How well to compress answers of clients that take gzip: none, low, medium or high
    #[arg(long, default_value = "none", value_parser = compression)]
    pub grpc_infer_response_compression_level: GrpcCompression,
    #[arg(long, hide = true, value_parser = infer_threads)]
    #[allow(missing_docs, reason = "a hidden flag")]
    pub grpc_infer_thread_count: Option<u32>,
    #[arg(long, hide = true)]
    #[allow(missing_docs, reason = "a hidden flag")]
    pub grpc_infer_allocation_pool_size: Option<i64>,
    #[arg(long, hide = true, value_parser = response_pool)]
    #[allow(missing_docs, reason = "a hidden flag")]
    pub grpc_max_response_pool_size: Option<i64>,
    #[arg(long, hide = true, value_parser = switch)]
    #[allow(missing_docs, reason = "a hidden flag")]
    pub grpc_keepalive_permit_without_calls: Option<bool>,
    #[arg(long, hide = true, value_name = "COUNT")]
    #[allow(missing_docs, reason = "a hidden flag")]
    pub grpc_http2_max_pings_without_data: Option<i64>,
    #[arg(long, hide = true, value_name = "MILLISECONDS")]
    #[allow(missing_docs, reason = "a hidden flag")]
    pub grpc_http2_min_recv_ping_interval_without_data: Option<i64>,
    #[arg(long, hide = true, value_name = "COUNT")]
    #[allow(missing_docs, reason = "a hidden flag")]
    pub grpc_http2_max_ping_strikes: Option<i64>,
}

/// How well answers are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GrpcCompression {
    /// Not at all.
    None,
    /// Fast.
    Low,
    /// As gzip does it.
    Medium,
    /// As small as gzip can.
    High,
}

impl GrpcArguments {
    /// The age of connections that are closed, and what their calls have then; `None`: any age, or
    /// any time.
    pub fn max_age(&self) -> (Option<Duration>, Option<Duration>) {
        let of = |ms: u32| (0 < ms).then(|| Duration::from_millis(ms.into()));
        (of(self.grpc_max_connection_age), of(self.grpc_max_connection_age_grace))
    }

    /// The flags that were given and change nothing.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let all = [
            ("--grpc-infer-thread-count", self.grpc_infer_thread_count.is_some()),
            ("--grpc-infer-allocation-pool-size", self.grpc_infer_allocation_pool_size.is_some()),
            ("--grpc-max-response-pool-size", self.grpc_max_response_pool_size.is_some()),
            // Who is pinged answers, with calls or without.
            (
                "--grpc-keepalive-permit-without-calls",
                self.grpc_keepalive_permit_without_calls == Some(false),
            ),
            (
                "--grpc-http2-max-pings-without-data",
                self.grpc_http2_max_pings_without_data.is_some(),
            ),
            (
                "--grpc-http2-min-recv-ping-interval-without-data",
                self.grpc_http2_min_recv_ping_interval_without_data.is_some(),
            ),
            ("--grpc-http2-max-ping-strikes", self.grpc_http2_max_ping_strikes.is_some()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }
}

fn compression(text: &str) -> Result<GrpcCompression, String> {
    let wrong = |_| "invalid argument for --grpc_infer_response_compression_level".to_owned();
    GrpcCompression::from_str(text, true).map_err(wrong)
}

fn infer_threads(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|it| (2..=128).contains(it));
    count.ok_or_else(|| {
        "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.".to_owned()
    })
}

fn response_pool(text: &str) -> Result<i64, String> {
    let size = text.parse().map_err(|_| format!("Invalid option value. Got {text}"))?;
    match size {
        1.. => Ok(size),
        _ => Err("Error: --grpc-max-response-pool-size must be greater than 0.".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        grpc: GrpcArguments,
    }

    fn parse(flag: &str) -> Result<GrpcArguments, String> {
        let parsed = Line::try_parse_from(["x"].into_iter().chain(flag.split_whitespace()));
        parsed.map(|it| it.grpc).map_err(|error| error.to_string())
    }

    #[test]
    fn bad_values_have_tritons_texts() {
        for (flag, text) in [
            (
                "--grpc-infer-response-compression-level=best",
                "invalid argument for --grpc_infer_response_compression_level",
            ),
            ("--grpc-infer-thread-count=1", "Must be in the range 2 to 128."),
            ("--grpc-infer-thread-count=129", "Must be in the range 2 to 128."),
            ("--grpc-max-response-pool-size=0", "must be greater than 0."),
            ("--grpc-keepalive-time=0", "0 is not in"),
            ("--grpc-max-connection-age=x", "invalid digit"),
        ] {
            let error = parse(flag).unwrap_err();
            assert!(error.contains(text), "{flag}: {error}");
        }
    }

    #[test]
    fn zero_is_no_age_and_levels_may_be_written_in_any_case() {
        let plain = parse("").unwrap();
        assert_eq!(plain.max_age(), (None, None));
        assert!(plain.without_effect().is_empty());
        let ten =
            parse("--grpc-max-connection-age=10 --grpc-infer-response-compression-level=HIGH");
        let ten = ten.unwrap();
        assert_eq!(ten.max_age(), (Some(Duration::from_millis(10)), None));
        assert_eq!(ten.grpc_infer_response_compression_level, GrpcCompression::High);
        let given = parse("--grpc-http2-max-ping-strikes=3 --grpc-infer-thread-count=4").unwrap();
        assert_eq!(
            given.without_effect(),
            ["--grpc-infer-thread-count", "--grpc-http2-max-ping-strikes"]
        );
    }
}
