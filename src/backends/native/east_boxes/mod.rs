//! `east_boxes`: a text detector's maps (EAST, RBOX) to the boxes of words, best first.
//!
//! By position, names are free. Inputs, all FP32: `score` [1,h,w,1], `geometry` [1,h,w,5]
//! (distances in model pixels to the top, right, bottom and left side of the word, and its angle in
//! radians, counter-clockwise) and, if the config has it, `transform` [4] (scale x, scale y, offset
//! x, offset y: model pixel = picture pixel * scale + offset). Outputs, both FP32: `boxes` [n,4,2]
//! (corners x, y in pixels of the picture: top left, top right, bottom right, bottom left as the
//! text runs) and, if the config has it, `scores` [n]. Equal scores are in the order of the map.

mod cells;
mod detector;
mod rectangle;
mod suppress;
#[cfg(test)]
mod tests;

use self::{
    cells::Candidate,
    detector::{EastBoxes, SuppressionLimits},
    rectangle::TurnedRectangle,
};
use super::{
    op::{Op, expect},
    parameters::Parameters,
    tensors::{Floats, floats, reads, take, writes},
};
use troupe_base::{
    backend::{Placement, Tensors},
    config::ModelConfig,
    error::{Error, Result},
    tensor::{DataType, Tensor},
};

/// A page full of words has thousands of pairs; these take about a second.
const MAX_PAIRS: usize = 5_000_000;

const PARAMETERS: &[&str] =
    &["score_threshold", "nms_threshold", "max_boxes", "max_candidates", "stride", "padding"];

pub(super) fn prepare(config: &ModelConfig) -> Result<Op> {
    let (inputs, outputs) = (&config.inputs, &config.outputs);
    let fp32 = DataType::Fp32;
    expect(config, config.max_batch_size == 0, "max_batch_size 0: the number of boxes varies")?;
    let is_so = (2..=3).contains(&inputs.len())
        && reads(&inputs[0], fp32, &[1, -1, -1, 1])
        && reads(&inputs[1], fp32, &[1, -1, -1, 5])
        && inputs[..2].iter().all(|it| !it.optional)
        && inputs[2..].iter().all(|it| reads(it, fp32, &[4]));
    let wanted = "inputs FP32 score [1,-1,-1,1], geometry [1,-1,-1,5] and at most transform [4]";
    expect(config, is_so, wanted)?;
    let is_so = (1..=2).contains(&outputs.len())
        && writes(&outputs[0], fp32, &[-1, 4, 2])
        && outputs[1..].iter().all(|it| writes(it, fp32, &[-1]));
    expect(config, is_so, "outputs FP32 boxes [-1,4,2] and at most scores [-1]")?;
    let parameters = Parameters::of(config, PARAMETERS)?;
    let op = EastBoxes {
        score_threshold: parameters.number("score_threshold", 0.5, 0.0..=1.0)?,
        limits: SuppressionLimits {
            threshold: parameters.number("nms_threshold", 0.4, 0.0..=1.0)?,
            boxes: parameters.number("max_boxes", 1000, 1..=10_000)?,
            pairs: MAX_PAIRS,
        },
        max_candidates: parameters.number("max_candidates", 100_000, 1..=1_000_000)?,
        stride: parameters.number("stride", 4.0, 1.0..=1024.0)?,
        padding: parameters.number("padding", 0.0, 0.0..=1.0)?,
        names: inputs.iter().map(|it| it.name.to_string()).collect(),
    };
    let outputs = outputs.len();
    Ok(Op::new(Placement::Own, move |inputs, _| {
        let (boxes, transform) = op.find(inputs)?;
        let mut tensors = vec![Some(op.corners(&boxes, transform)?)];
        let scores = boxes.iter().map(|(candidate, _)| candidate.score);
        tensors.push(Some(floats(&[boxes.len() as i64], scores)?));
        tensors.truncate(outputs);
        Ok(tensors)
    })
    // As many boxes as the map says, each beside all others.
    .with_any_effort())
}

/// Model pixel = picture pixel * scale + offset.
struct Transform {
    scale: [f64; 2],
    offset: [f64; 2],
}

impl EastBoxes {
    /// Boxes in model pixels, and the way back to the picture's.
    fn find(&self, mut inputs: Tensors) -> Result<(Vec<(Candidate, TurnedRectangle)>, Transform)> {
        let score = take(&mut inputs, 0, &self.names[0], &[1, -1, -1, 1])?;
        let (height, width) = (score.shape()[1], score.shape()[2]);
        let geometry = take(&mut inputs, 1, &self.names[1], &[1, height, width, 5])?;
        let transform = match inputs.get(2).is_some_and(Option::is_some) {
            true => self.transform(Floats::of(&take(&mut inputs, 2, &self.names[2], &[4])?))?,
            false => Transform { scale: [1.0; 2], offset: [0.0; 2] },
        };
        let map = cells::Map { width: width as usize, score: &score, geometry: &geometry };
        let mut all = Vec::new();
        for candidate in map.candidates(self)? {
            let rectangle = map.rectangle(self, candidate)?;
            if !rectangle.is_empty() {
                all.push((candidate, rectangle));
            }
        }
        Ok((suppress::keep(all, self.limits)?, transform))
    }

    fn transform(&self, values: Floats<'_>) -> Result<Transform> {
        let [scale_x, scale_y, offset_x, offset_y] = values.array(0).map(f64::from);
        let is_so = [scale_x, scale_y].iter().all(|it| it.is_finite() && 0.0 < *it)
            && [offset_x, offset_y].iter().all(|it| it.is_finite());
        if !is_so {
            return Err(Error::invalid(format!(
                "input `{}` is [{scale_x},{scale_y},{offset_x},{offset_y}], expected two scales \
                 above 0 and two offsets",
                self.names[2]
            )));
        }
        Ok(Transform { scale: [scale_x, scale_y], offset: [offset_x, offset_y] })
    }

    /// The `boxes` output.
    fn corners(
        &self,
        boxes: &[(Candidate, TurnedRectangle)],
        transform: Transform,
    ) -> Result<Tensor> {
        let to_picture = |model: [f64; 2]| {
            [0, 1]
                .map(|axis| ((model[axis] - transform.offset[axis]) / transform.scale[axis]) as f32)
        };
        let corners = |it: &TurnedRectangle| it.padded(self.padding).corners().map(to_picture);
        let corners: Vec<f32> = boxes.iter().flat_map(|(_, it)| corners(it)).flatten().collect();
        if corners.iter().any(|it| !it.is_finite()) {
            let text = "the transform takes boxes out of the range of FP32";
            return Err(Error::invalid(text));
        }
        floats(&[boxes.len() as i64, 4, 2], corners)
    }
}
