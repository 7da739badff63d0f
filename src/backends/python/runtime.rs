//! What the Python models of one server share: fork servers, the thread that reaps workers, and who
//! may spin.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Instant,
};

use parking_lot::Mutex;

use super::{
    process::{fork_server::ForkServers, reaper::Reaper},
    worker::SpinPolicy,
};
use troupe_base::error::{Error, Result};
use troupe_options::Spin;

/// The Python side of one server.
#[derive(Default)]
pub struct Runtime {
    state: Mutex<RuntimeState>,
    spin: OnceLock<Arc<SpinPolicy>>,
}

#[derive(Default)]
enum RuntimeState {
    /// No model needed it yet.
    #[default]
    Idle,
    Running(Arc<ForkServers>),
    /// No worker may be started any more, and none ever was.
    Closed,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Starts the reaper's thread on first use.
    pub(super) fn fork_servers(&self) -> Result<Arc<ForkServers>> {
        let mut state = self.state.lock();
        match &*state {
            RuntimeState::Running(servers) => Ok(servers.clone()),
            RuntimeState::Closed => Err(Error::unavailable("the server is stopping")),
            RuntimeState::Idle => {
                let servers = ForkServers::new(Reaper::start()?);
                *state = RuntimeState::Running(servers.clone());
                Ok(servers)
            }
        }
    }

    /// Who of the server may spin: as the command line says, which is the same for all models.
    pub(super) fn spin(&self, spin: Spin) -> Arc<SpinPolicy> {
        self.spin.get_or_init(|| SpinPolicy::new(spin)).clone()
    }

    /// Waits until no worker process is left; kills what is left at the deadline. No worker can be
    /// started after this was called. Blocks.
    pub fn wait_for_workers(&self, deadline: Instant) {
        let servers = match &mut *self.state.lock() {
            RuntimeState::Running(servers) => servers.clone(),
            idle => return *idle = RuntimeState::Closed,
        };
        servers.reaper.close(deadline);
    }
}
