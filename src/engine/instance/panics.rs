//! Catches panics: of a model, which fail one batch, and of an engine, which is then replaced.

use std::panic::{self, AssertUnwindSafe};

/// Runs something that may panic; the error is the panic's message.
pub(super) fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    panic::catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
    })
}
