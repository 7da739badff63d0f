//! The parameters of the text detector.

/// The parameters, and how errors name the inputs.
pub(super) struct EastBoxes {
    /// Cells above it are boxes.
    pub(super) score_threshold: f32,
    /// Which of the boxes stay.
    pub(super) limits: SuppressionLimits,
    /// Cells that are looked at, best first: what bounds the time of a map where all cells pass.
    pub(super) max_candidates: usize,
    /// Model pixels between two cells.
    pub(super) stride: f64,
    /// How far each side moves outwards, in heights of the box.
    pub(super) padding: f64,
    /// Names of the inputs.
    pub(super) names: Vec<String>,
}

/// How boxes are chosen.
#[derive(Clone, Copy)]
pub(super) struct SuppressionLimits {
    /// A box that overlaps a better one by more goes.
    pub(super) threshold: f64,
    /// Boxes kept, best first.
    pub(super) boxes: usize,
    /// Pairs of boxes whose overlap is computed: what bounds the time of maps made to waste it.
    pub(super) pairs: usize,
}
