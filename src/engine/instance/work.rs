//! The work that an instance is handed at once: groups of requests, each group one execution.

use troupe_base::request::Pending;

/// Groups of requests, each one execution, in order.
pub struct InstanceWork(pub Vec<Vec<Pending>>);

impl InstanceWork {
    /// How many executions it is.
    pub fn executions(&self) -> u32 {
        self.0.len() as u32
    }
}
