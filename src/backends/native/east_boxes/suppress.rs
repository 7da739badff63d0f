//! Non-maximum suppression: of boxes on one word the best stays.

use super::{cells::Candidate, detector::Limits, rectangle::Rectangle};
use troupe_base::error::{Error, Result};

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
