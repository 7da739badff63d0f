//! The names of the log's settings, the same in both protocols.

use troupe_base::{
    config::instead,
    error::{Error, Result},
};

const NAMES: [&str; 6] =
    ["log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"];

/// Refuses what is no setting. Triton says OK to it and changes nothing.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if NAMES.contains(&name) {
        return Ok(());
    }
    let text = format!("the log has no setting '{name}'");
    Err(Error::invalid(instead(text, name, "settings", NAMES.into_iter())))
}
