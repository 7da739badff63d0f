//! The limit of open descriptors, raised as far as the process may.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than any server needs: some libraries walk over all numbers there could be.
const MAX_DESCRIPTORS: u64 = 1 << 20;

/// Raises the soft limit to the hard one, and says so. Distributions start processes with 1,024.
pub(super) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(before) = current else { return };
    let wanted = maximum.unwrap_or(MAX_DESCRIPTORS).min(MAX_DESCRIPTORS);
    if wanted <= before {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        Ok(()) => {
            tracing::info!("The limit of open descriptors was raised from {before} to {wanted}");
        }
        Err(error) => tracing::warn!(
            %error,
            "the limit of open descriptors stays at {before}, could not be raised to {wanted}"
        ),
    }
}
