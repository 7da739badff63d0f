//! A server under attack: whether it is afterwards what it was before.

use super::{Repository, Server, process, until};

/// Resident memory may grow by so much, in MiB: the budget of requests, and what an allocator keeps.
const MAX_GROWTH_MIB: u64 = 300;
/// Descriptors that may be open beside those of the start: connections that end, files in use.
const MAX_MORE_DESCRIPTORS: usize = 64;

/// A server under attack, with what it was before.
pub(crate) struct Subject {
    pub(crate) server: Server,
    /// Sends a sound request and looks at its answer.
    works: fn(&Server),
    resident_mib: u64,
    descriptors: usize,
}

impl Subject {
    /// Serves with these flags.
    pub(crate) fn new(repository: Repository, flags: &[&str], works: fn(&Server)) -> Subject {
        let server = Server::with(repository, flags);
        works(&server);
        let resident_mib = process::resident_mib(server.pid);
        let descriptors = process::descriptors(server.pid).len();
        Subject { server, works, resident_mib, descriptors }
    }

    /// It lives, answers as it should, and holds nothing of what it was sent.
    #[track_caller]
    pub(crate) fn is_sound(&self) {
        let server = &self.server;
        (self.works)(server);
        assert_eq!(server.http.get("/v2/health/live").status, 200);
        assert_eq!(server.has_logged("panicked at"), None);
        for kind in ["received", "tensors", "responses", "other"] {
            until(&format!("bytes of kind {kind} to be given back"), || {
                server.metric("troupe_inflight_bytes", &[kind]) == Some(0.0)
            });
        }
        until("descriptors to be closed", || {
            process::descriptors(server.pid).len() <= self.descriptors + MAX_MORE_DESCRIPTORS
        });
        let (before, now) = (self.resident_mib, process::resident_mib(server.pid));
        assert!(now <= before + MAX_GROWTH_MIB, "{before} MiB have become {now} MiB");
    }
}
