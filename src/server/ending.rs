//! How a server ended: drained, or aborted with requests in flight.

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every accepted request was answered.
    Drained,
    /// Requests in flight were lost, or nobody wanted to know.
    Aborted,
}
