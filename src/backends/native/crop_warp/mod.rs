//! `crop_warp`: cuts boxes out of a picture, each warped to an upright crop of one size.
//!
//! By position, names are free. Inputs: `image` UINT8 [H,W,3], RGB, and `boxes` FP32 [n,4,2],
//! corners x, y in pixels: top left, top right, bottom right, bottom left. Output: `crops` FP32
//! [n,channels,height,width], sizes as the config's dims say: 1 channel is grey, 3 are RGB; values
//! are (pixel - mean) * scale. As with OpenCV's `getPerspectiveTransform` and `warpPerspective`,
//! whole numbers are centres of pixels, and a box's corners are the centres of a crop's corner
//! pixels. Outside the picture its edge goes on.

mod patch;
mod picture;
mod size;
#[cfg(test)]
mod tests;

use bytes::Bytes;

use self::{patch::Patch, picture::SampledPicture, size::CropSize};
use super::{
    op::{Op, expect},
    parameters::Parameters,
    tensors::{Floats, reads, take, writes, written},
};
use troupe_base::{
    backend::{Placement, Tensors},
    config::ModelConfig,
    error::{Error, Result},
    tensor::{DataType, Shape, Tensor},
};

/// Bytes of all crops of a request.
const MAX_CROP_BYTES: u64 = 1 << 31;

struct CropWarp {
    crop: CropSize,
    /// One for each channel.
    mean: Vec<f32>,
    scale: Vec<f32>,
    max_boxes: usize,
    /// Names of the inputs.
    names: [String; 2],
}

const PARAMETERS: &[&str] = &["mean", "scale", "max_boxes"];

pub(super) fn prepare(config: &ModelConfig) -> Result<Op> {
    let (inputs, outputs) = (&config.inputs, &config.outputs);
    expect(config, config.max_batch_size == 0, "max_batch_size 0: the number of boxes varies")?;
    let is_so = inputs.len() == 2
        && reads(&inputs[0], DataType::Uint8, &[-1, -1, 3])
        && reads(&inputs[1], DataType::Fp32, &[-1, 4, 2])
        && inputs.iter().all(|it| !it.optional);
    expect(config, is_so, "inputs UINT8 image [-1,-1,3] and FP32 boxes [-1,4,2]")?;
    let is_so = outputs.len() == 1 && writes(&outputs[0], DataType::Fp32, &[-1, -1, -1, -1]);
    let crop = outputs.first().filter(|_| is_so).and_then(|it| CropSize::of(written(it)));
    let wanted = "an output FP32 crops [-1,channels,height,width] of 1 or 3 channels and sides from \
                  2 to 4096";
    expect(config, crop.is_some(), wanted)?;
    let crop = crop.unwrap_or(CropSize { channels: 1, height: 2, width: 2 });
    let parameters = Parameters::of(config, PARAMETERS)?;
    let op = CropWarp {
        crop,
        mean: parameters.per_channel("mean", 127.5, crop.channels)?,
        scale: parameters.per_channel("scale", 1.0 / 127.5, crop.channels)?,
        max_boxes: parameters.number("max_boxes", 1000, 1..=100_000)?,
        names: [inputs[0].name.to_string(), inputs[1].name.to_string()],
    };
    let fits = op.max_boxes as u64 * crop.bytes() as u64 <= MAX_CROP_BYTES;
    expect(config, fits, "crops of 2 GiB at most, parameter 'max_boxes' times the size of one")?;
    Ok(Op::new(Placement::Own, move |inputs, _| op.run(inputs)))
}

impl CropWarp {
    fn run(&self, mut inputs: Tensors) -> Result<Tensors> {
        let image = take(&mut inputs, 0, &self.names[0], &[-1, -1, 3])?;
        let boxes = take(&mut inputs, 1, &self.names[1], &[-1, 4, 2])?;
        let count = boxes.rows();
        if self.max_boxes < count {
            return Err(Error::invalid(format!(
                "input `{}` has {count} boxes, expected at most {} (parameter 'max_boxes')",
                self.names[1], self.max_boxes
            )));
        }
        if image.data().is_empty() && count != 0 {
            return Err(Error::invalid(format!(
                "input `{}` has no pixels to cut {count} boxes from",
                self.names[0]
            )));
        }
        let picture = SampledPicture::of(&image);
        let mut data = vec![0; count * self.crop.bytes()];
        for (index, crop) in data.chunks_exact_mut(self.crop.bytes()).enumerate() {
            let patch = self.patch(index, Floats::of(&boxes).array(index * 8))?;
            self.cut(&picture, &patch, crop);
        }
        let CropSize { channels, height, width } = self.crop;
        let shape = [count, channels, height, width].map(|it| it as i64);
        let crops = Tensor::new(DataType::Fp32, Shape::from_slice(&shape), Bytes::from(data))?;
        Ok(vec![Some(crops)])
    }

    fn patch(&self, index: usize, values: [f32; 8]) -> Result<Patch> {
        if let Some(wrong) = values.iter().find(|it| !it.is_finite()) {
            return Err(Error::invalid(format!(
                "input `{}` has {wrong} in box {index}, expected finite numbers",
                self.names[1]
            )));
        }
        let (corners, _) = values.as_chunks::<2>();
        let corner = |index: usize| corners[index].map(f64::from);
        Ok(Patch::of([corner(0), corner(1), corner(2), corner(3)]))
    }

    /// Fills one crop, channel after channel.
    fn cut(&self, picture: &SampledPicture<'_>, patch: &Patch, crop: &mut [u8]) {
        let (pixels, _) = crop.as_chunks_mut();
        let plane = self.crop.height * self.crop.width;
        let finish = |channel: usize, value: f32| {
            ((value - self.mean[channel]) * self.scale[channel]).to_le_bytes()
        };
        match self.crop.channels {
            1 => patch.sample(
                self.crop,
                |at| [picture.grey(at)],
                |pixel, [grey]| {
                    pixels[pixel] = finish(0, grey);
                },
            ),
            _ => patch.sample(
                self.crop,
                |at| picture.colours(at),
                |pixel, colours| {
                    for (channel, value) in colours.into_iter().enumerate() {
                        pixels[channel * plane + pixel] = finish(channel, value);
                    }
                },
            ),
        }
    }
}
