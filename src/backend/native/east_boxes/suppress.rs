//! Non-maximum suppression: of boxes on one word the best stays.

use super::{Candidate, Rectangle};

/// The first `most` boxes that overlap none kept before by more than `threshold`; best first.
pub(super) fn keep(
    all: impl IntoIterator<Item = (Candidate, Rectangle)>,
    threshold: f64,
    most: usize,
) -> Vec<(Candidate, Rectangle)> {
    let mut kept: Vec<(Candidate, Rectangle)> = Vec::new();
    for (candidate, rectangle) in all {
        if !kept.iter().any(|(_, better)| better.overlaps(&rectangle, threshold)) {
            kept.push((candidate, rectangle));
        }
        if kept.len() == most {
            break;
        }
    }
    kept
}
