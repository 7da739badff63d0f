//! The flags of memory: what requests in flight may hold.

use clap::Args;

/// With less, hardly a request fits into its share.
const MIN_INFLIGHT_BYTES: usize = 1 << 20;

/// What requests in flight may hold.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Memory")]
pub struct MemoryArguments {
    /// Bytes that all requests in flight may hold together: what arrived, tensors, answers not yet
    /// sent; 1048576 at least. Beyond it requests are refused [default: 40 % of the memory this
    /// process may use]
    #[arg(long, value_parser = inflight_bytes)]
    pub max_inflight_bytes: Option<usize>,
}

fn inflight_bytes(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        too_few if too_few < MIN_INFLIGHT_BYTES => {
            Err(format!("must be at least {MIN_INFLIGHT_BYTES} bytes, got {too_few}"))
        }
        enough => Ok(enough),
    }
}

/// A number of bytes, or why it is none.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be greater than 0".to_owned()),
        Ok(size) => Ok(size),
        Err(_) => Err(format!("must be a number of bytes, got `{text}`")),
    }
}
