//! Cancels a request whose caller goes away before it is answered.

use std::sync::Arc;

use super::Context;

/// Cancels its context when it is dropped, unless it was disarmed because the answer has come.
pub struct CancelOnDrop(Option<Arc<Context>>);

impl CancelOnDrop {
    /// Armed.
    pub fn new(context: Arc<Context>) -> CancelOnDrop {
        CancelOnDrop(Some(context))
    }

    /// Is there still something to cancel?
    pub fn is_armed(&self) -> bool {
        self.0.is_some()
    }

    /// The request was answered: dropping this does nothing any more.
    pub fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(context) = &self.0 {
            context.cancel();
        }
    }
}
