//! What can be said of a model by its files, without loading it.

use troupe_base::config::Problem;

/// What can be said of a model without loading it.
#[derive(Debug, Default)]
pub struct ModelFindings {
    /// What a load would refuse.
    pub problems: Vec<Problem>,
    /// What a load may fail with, one line each, with its place.
    pub warnings: Vec<String>,
    /// Its code may say what its inputs and outputs are.
    pub completes_itself: bool,
    /// Its files cannot be read: what else is wrong with them would follow from that.
    pub is_broken: bool,
}
