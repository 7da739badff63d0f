//! Non-maximum suppression: of boxes on one word the best stays.

use super::{cells::Candidate, detector::SuppressionLimits, rectangle::TurnedRectangle};
use troupe_base::error::{Error, Result};

/// The first boxes, best first, that overlap none kept before.
pub(super) fn keep(
    all: impl IntoIterator<Item = (Candidate, TurnedRectangle)>,
    limits: SuppressionLimits,
) -> Result<Vec<(Candidate, TurnedRectangle)>> {
    let mut kept: Vec<(Candidate, TurnedRectangle)> = Vec::new();
    let mut pairs = 0;
    for (candidate, rectangle) in all {
        let is_near =
            |better: &&(_, TurnedRectangle)| better.1.may_overlap(&rectangle, limits.threshold);
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
