//! Credit of responses: their maker sends no more than it has credit for.

use std::sync::Arc;

/// Tells the maker of a part, when it is dropped, that nobody holds that part any more.
pub struct Credit(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Credit {
    /// `give_back` is called once, on any thread, and must not block.
    pub fn new(give_back: impl FnOnce() + Send + Sync + 'static) -> Arc<Credit> {
        Arc::new(Credit(Some(Box::new(give_back))))
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        if let Some(give_back) = self.0.take() {
            give_back();
        }
    }
}

impl std::fmt::Debug for Credit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credit")
    }
}
