//! A model whose files came with a load request: keeps them while it lives.

use std::sync::Arc;

use crate::disk::definition::Definition;
use troupe_base::{
    model::Infer,
    request::{Reply, Request},
};

/// Keeps files, because the workers of the model may be restarted.
pub(super) struct KeepsFiles {
    inner: Arc<dyn Infer>,
    _files: Arc<Definition>,
}

impl KeepsFiles {
    pub(super) fn new(inner: Arc<dyn Infer>, files: Arc<Definition>) -> KeepsFiles {
        KeepsFiles { inner, _files: files }
    }
}

impl Infer for KeepsFiles {
    fn infer(&self, request: Request, reply: Reply) {
        self.inner.infer(request, reply);
    }

    fn inner(&self) -> Option<&dyn Infer> {
        Some(&*self.inner)
    }
}
