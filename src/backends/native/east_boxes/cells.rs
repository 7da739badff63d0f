//! The cells of the detector's maps: which of them are boxes, and where.

use std::cmp::Ordering;

use super::{super::tensors::Floats, detector::EastBoxes, rectangle::TurnedRectangle};
use troupe_base::{
    error::{Error, Result},
    tensor::Tensor,
};

/// A distance beyond it is a broken model, not a word.
const MAX_DISTANCE: f32 = 1e6;

/// Both maps of one picture, checked to be of one size.
pub(super) struct Map<'a> {
    pub(super) width: usize,
    pub(super) score: &'a Tensor,
    pub(super) geometry: &'a Tensor,
}

/// A cell that may be a box.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) score: f32,
    /// Position in the map, row by row.
    cell: usize,
}

impl Map<'_> {
    /// The cells above the threshold, best first, then by position; no more than are looked at.
    pub(super) fn candidates(&self, op: &EastBoxes) -> Result<Vec<Candidate>> {
        let mut found = Vec::new();
        for (cell, score) in Floats::of(self.score).iter().enumerate() {
            if !score.is_finite() {
                return Err(self.wrong(&op.names[0], cell, score, "a finite number"));
            }
            if op.score_threshold < score {
                found.push(Candidate { score, cell });
            }
        }
        if op.max_candidates < found.len() {
            found.select_nth_unstable_by(op.max_candidates, best_first);
            found.truncate(op.max_candidates);
        }
        found.sort_unstable_by(best_first);
        Ok(found)
    }

    /// The box a cell describes.
    pub(super) fn rectangle(
        &self,
        op: &EastBoxes,
        candidate: Candidate,
    ) -> Result<TurnedRectangle> {
        let cell = candidate.cell;
        let values: [f32; 5] = Floats::of(self.geometry).array(cell * 5);
        let is_wrong = |it: &&f32| !it.is_finite() || MAX_DISTANCE < it.abs();
        if let Some(wrong) = values.iter().find(is_wrong) {
            let wanted = format!("a number from -{MAX_DISTANCE} to {MAX_DISTANCE}");
            return Err(self.wrong(&op.names[1], cell, *wrong, &wanted));
        }
        let at = [cell % self.width, cell / self.width].map(|it| it as f64 * op.stride);
        let [top, right, bottom, left, angle] = values.map(f64::from);
        Ok(TurnedRectangle::around(at, [top, right, bottom, left], angle))
    }

    fn wrong(&self, name: &str, cell: usize, value: f32, wanted: &str) -> Error {
        let (row, column) = (cell / self.width, cell % self.width);
        Error::invalid(format!(
            "input `{name}` is {value} at row {row}, column {column}, expected {wanted}"
        ))
    }
}

fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.score.total_cmp(&a.score).then(a.cell.cmp(&b.cell))
}
