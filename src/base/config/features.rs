//! What the server has that a configuration may ask for.

/// The least CUDA compute capability of a GPU that instances may run on: Triton's.
pub const MINIMUM_CAPABILITY: f64 = 6.0;

/// What the server has that a configuration may ask for.
#[derive(Clone, Debug)]
pub struct ServerFeatures {
    /// The GPUs instances may run on; `None`: the server has no driver for any. Called only for
    /// models that could use one: the answer may be slow.
    pub gpus: fn() -> Option<&'static [i32]>,
}

impl Default for ServerFeatures {
    fn default() -> ServerFeatures {
        ServerFeatures { gpus: || None }
    }
}
