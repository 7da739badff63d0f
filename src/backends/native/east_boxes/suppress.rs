//! Non-maximum suppression: of boxes on one word the best stays.

use super::{Candidate, Rectangle};
use troupe_base::error::{Error, Result};

/// How boxes are chosen.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// A box that overlaps a better one by more goes.
    pub(super) threshold: f64,
    /// Boxes kept, best first.
    pub(super) boxes: usize,
    /// Pairs of boxes whose overlap is computed: what bounds the time of maps made to waste it.
    pub(super) pairs: usize,
}

/// The first boxes, best first, that overlap none kept before.
pub(super) fn keep(
    all: impl IntoIterator<Item = (Candidate, Rectangle)>,
    limits: Limits,
) -> Result<Vec<(Candidate, Rectangle)>> {
    let mut kept: Vec<(Candidate, Rectangle)> = Vec::new();
    let mut pairs = 0;
    for (candidate, rectangle) in all {
        let is_near = |better: &&(_, Rectangle)| better.1.may_overlap(&rectangle, limits.threshold);
        let mut near = kept.iter().filter(is_near).inspect(|_| pairs += 1);
        if !near.any(|(_, better)| better.overlaps(&rectangle, limits.threshold)) {
            kept.push((candidate, rectangle));
        }
        if limits.pairs < pairs {
            return Err(Error::invalid(format!(
                "the maps have too many boxes over each other, expected at most {} pairs",
                limits.pairs
            )));
        }
        if kept.len() == limits.boxes {
            break;
        }
    }
    Ok(kept)
}
