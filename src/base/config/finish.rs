//! Finishes a draft: fills in the defaults, then checks everything.

use super::{
    check, draft::Draft, features::ServerFeatures, normalise::normalise, problem::Problem,
    types::ModelConfig,
};

impl Draft {
    /// The checked configuration, or every problem the draft has on a server with these features.
    pub fn finish(mut self, features: &ServerFeatures) -> Result<ModelConfig, Vec<Problem>> {
        let open_in_groups = normalise(&mut self.proto, features);
        check::check(self, &open_in_groups, features)
    }
}
