//! Bytes of pixels to floats: order of channels, mean, scale and layout in one pass.

use std::ops::RangeInclusive;

use super::{super::parameters::Parameters, fit::PlacedPicture};
use troupe_base::error::Result;

/// Larger numbers are mistakes.
const MAX_MAGNITUDE: f32 = 1e9;

/// The output's order of dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PixelLayout {
    Nhwc,
    Nchw,
}

/// How values change: `(value - mean) * scale`, by channel of the output.
pub(super) struct Normalize {
    pub(super) layout: PixelLayout,
    /// Is the first channel of the output the last one of the input?
    swaps: bool,
    mean: [f32; 3],
    scale: [f32; 3],
    /// In units of the input, in the order of the output.
    pad: [f32; 3],
}

/// Elements of whole pixels and whole vectors, so that the compiler sees both: a third of the
/// time of a loop over pixels. Where channels swap, more than a few at once are worse than that.
const GROUP: usize = 48;
const SWAPPED_GROUP: usize = 12;

impl Normalize {
    /// `pad_value` is read where it is known, in a letterbox.
    pub(super) fn read(parameters: &Parameters) -> Result<Normalize> {
        let layouts = [("NHWC", PixelLayout::Nhwc), ("NCHW", PixelLayout::Nchw)];
        let numbers = |key, default, range: RangeInclusive<f32>| {
            let numbers = parameters.per_channel(key, default, 3)?;
            match numbers[..] {
                [a, b, c] if numbers.iter().all(|it| range.contains(it)) => Ok([a, b, c]),
                _ => {
                    let wanted = format!("numbers from {} to {}", range.start(), range.end());
                    Err(parameters.wrong(key, &wanted))
                }
            }
        };
        let std = numbers("std", 1.0, 1.0 / MAX_MAGNITUDE..=MAX_MAGNITUDE)?;
        let scale = numbers("scale", 1.0, -MAX_MAGNITUDE..=MAX_MAGNITUDE)?;
        if parameters.text("std").and(parameters.text("scale")).is_some() {
            return Err(parameters.wrong("scale", "nothing beside parameter 'std'"));
        }
        Ok(Normalize {
            layout: parameters.choice("layout", &layouts)?,
            swaps: parameters.choice("channels", &[("RGB", false), ("BGR", true)])?,
            mean: numbers("mean", 0.0, -MAX_MAGNITUDE..=MAX_MAGNITUDE)?,
            scale: std::array::from_fn(|channel| scale[channel] / std[channel]),
            pad: numbers("pad_value", 0.0, 0.0..=255.0)?,
        })
    }

    /// Fills the output with the picture and what is around it.
    pub(super) fn write(&self, pixels: &[u8], placed: &PlacedPicture, out: &mut [[u8; 4]]) {
        let (canvas, picture) = (placed.canvas, placed.picture);
        if canvas != picture {
            self.fill(out);
        }
        let (width, left) = (canvas.width as usize, placed.at.0 as usize);
        let rows = pixels.chunks_exact(picture.width as usize * 3);
        for (row, y) in rows.zip(placed.at.1 as usize..) {
            let start = y * width + left;
            match self.layout {
                PixelLayout::Nhwc => {
                    let out = &mut out[start * 3..][..row.len()];
                    if self.swaps {
                        self.interleaved::<SWAPPED_GROUP, true>(row, out);
                    } else {
                        self.interleaved::<GROUP, false>(row, out);
                    }
                }
                PixelLayout::Nchw => {
                    for (channel, plane) in out.chunks_exact_mut(canvas.pixels()).enumerate() {
                        self.plane(channel, row, &mut plane[start..][..row.len() / 3]);
                    }
                }
            }
        }
    }

    fn fill(&self, out: &mut [[u8; 4]]) {
        let value = |channel: usize| {
            ((self.pad[channel] - self.mean[channel]) * self.scale[channel]).to_le_bytes()
        };
        let values = [value(0), value(1), value(2)];
        match self.layout {
            PixelLayout::Nhwc => out.as_chunks_mut().0.fill(values),
            PixelLayout::Nchw => {
                let planes = out.chunks_exact_mut((out.len() / 3).max(1));
                planes.zip(values).for_each(|(plane, it)| plane.fill(it));
            }
        }
    }

    fn interleaved<const GROUP: usize, const SWAPS: bool>(&self, from: &[u8], to: &mut [[u8; 4]]) {
        let mean: [f32; GROUP] = std::array::from_fn(|index| self.mean[index % 3]);
        let scale: [f32; GROUP] = std::array::from_fn(|index| self.scale[index % 3]);
        let source = |index: usize| if SWAPS { index + 2 - index % 3 * 2 } else { index };
        let (groups, rest) = from.as_chunks::<GROUP>();
        let (to_groups, to_rest) = to.as_chunks_mut::<GROUP>();
        for (from, to) in groups.iter().zip(to_groups) {
            for index in 0..GROUP {
                let value = f32::from(from[source(index)]);
                to[index] = ((value - mean[index]) * scale[index]).to_le_bytes();
            }
        }
        for (index, to) in to_rest.iter_mut().enumerate() {
            let value = f32::from(rest[source(index)]);
            *to = ((value - mean[index]) * scale[index]).to_le_bytes();
        }
    }

    fn plane(&self, channel: usize, from: &[u8], to: &mut [[u8; 4]]) {
        let source = if self.swaps { 2 - channel } else { channel };
        let (mean, scale) = (self.mean[channel], self.scale[channel]);
        for (pixel, to) in from.as_chunks::<3>().0.iter().zip(to) {
            *to = ((f32::from(pixel[source]) - mean) * scale).to_le_bytes();
        }
    }
}
