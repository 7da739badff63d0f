//! Log messages of ONNX Runtime as lines of the server's log.

use std::sync::Arc;

use ort::logging::{LogLevel, LoggerFunction};
use tracing::Level;

/// The target of its lines: with one of our own its levels follow `--log-verbose`.
const TARGET: &str = "troupe::onnxruntime";

/// Writes its warnings and errors as such; what it calls information is verbose here.
pub(super) fn logger() -> LoggerFunction {
    Arc::new(|level, _, session, location, message| {
        let place = place(session, location);
        match level {
            LogLevel::Verbose => tracing::trace!(target: TARGET, "{place}] {message}"),
            LogLevel::Info => tracing::debug!(target: TARGET, "{place}] {message}"),
            LogLevel::Warning => tracing::warn!(target: TARGET, "{place}] {message}"),
            LogLevel::Error | LogLevel::Fatal => {
                tracing::error!(target: TARGET, "{place}] {message}");
            }
        }
    })
}

/// The least level it has to hand over: formatting lines that nobody reads costs.
pub(super) fn level() -> LogLevel {
    if tracing::enabled!(target: TARGET, Level::TRACE) {
        LogLevel::Verbose
    } else if tracing::enabled!(target: TARGET, Level::DEBUG) {
        LogLevel::Info
    } else {
        LogLevel::Warning
    }
}

/// `onnxruntime session file.cc:12 Function`, without the folders of the machine that built it.
fn place(session: &str, location: &str) -> String {
    let (path, rest) = location.split_once(' ').unwrap_or((location, ""));
    let file = path.rsplit('/').next().unwrap_or(path);
    let parts = ["onnxruntime", session, file, rest];
    parts.into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn a_line_says_where_it_comes_from() {
        for (session, location, expected) in [
            ("", "/a/core/device.cc:7 Find", "onnxruntime device.cc:7 Find"),
            ("m_0_0", "graph.cc:1 CleanUp", "onnxruntime m_0_0 graph.cc:1 CleanUp"),
            ("", "", "onnxruntime"),
        ] {
            assert_eq!(place(session, location), expected);
        }
    }
}
