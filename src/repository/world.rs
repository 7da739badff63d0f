//! What every operation of the repository works with.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{Settings, load::Open, publish::Publisher};

/// Shared by all operations, all on the repository's thread.
pub(super) struct World {
    /// Where models are and how they are loaded.
    pub(super) settings: Arc<Settings>,
    /// Makes models answer.
    pub(super) open: Box<dyn Open>,
    /// Shows what became of them.
    pub(super) publisher: Publisher,
    /// One per version that loads at the same time.
    pub(super) permits: Arc<Semaphore>,
}
