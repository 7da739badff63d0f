//! `resize_normalize`: a picture as a model wants it, and where it went.
//!
//! Input: UINT8 `[height, width, 3]`, RGB. Outputs are told apart by their number of dimensions:
//!
//! - FP32 `[1,h,w,3]` or `[h,w,3]` (`[1,3,h,w]` or `[3,h,w]` for layout NCHW), the picture;
//! - FP32 `[4]`, optional: `scale_x, scale_y, offset_x, offset_y`, so that
//!   `x_output = x_input * scale_x + offset_x`. Coordinates count from the picture's edge: the
//!   first pixel reaches from 0 to 1, its centre is 0.5. A box goes back exactly.
//!
//! Parameters, with their defaults:
//!
//! - `mode`: `multiple` | `letterbox` | `stretch`
//!   - `multiple`: both sides become multiples of `multiple_of` (32), as near as can be to the
//!     input's, once that is scaled down until its longer side is `max_side` (2400), or up until
//!     its shorter side is `min_side` (`multiple_of`). `max_side` counts more than `min_side`.
//!   - `letterbox`: into `width` x `height`, the aspect kept, `align`: `center` | `top_left`, the
//!     rest filled with `pad_value` (0; one number or three, in the units of the input)
//!   - `stretch`: to `width` x `height`
//! - `filter`: `bilinear` | `nearest` | `box` | `lanczos`
//! - `antialias`: `true` | `false`, for bilinear and lanczos: whether a pixel of a smaller picture
//!   sees all pixels it stands for, as in PIL, or only its nearest ones, as in OpenCV's cv2.resize
//! - `channels`: `RGB` | `BGR`, the order in the output
//! - `mean` (0), `std` (1) or `scale` (1): the output is `(value - mean) / std` or
//!   `(value - mean) * scale`; one number or three, in the order of the output's channels
//! - `layout`: `NHWC` | `NCHW`

mod fit;
mod normalize;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use fast_image_resize::{
    FilterType, ResizeAlg, ResizeOptions, Resizer,
    images::{TypedImage, TypedImageRef},
    pixels::U8x3,
};

use self::{
    fit::{Fit, PictureSize, PlacedPicture},
    normalize::{Normalize, PixelLayout},
};
use super::{
    elements, image_decode,
    op::{Op, expect},
    parameters::Parameters,
};
use troupe_base::{
    backend::{Placement, Tensors},
    config::ModelConfig,
    error::{Error, Result},
    tensor::{DataType, Shape, Tensor, shape_text},
};

/// What an instance keeps for the next picture, at most; more is given back.
const MAX_KEPT_BYTES: usize = 16 << 20;

/// Those of every mode.
const PARAMETERS: &[&str] =
    &["mode", "filter", "antialias", "channels", "mean", "std", "scale", "layout"];

/// A checked config.
struct Prepared {
    input: Arc<str>,
    fit: Fit,
    filter: ResizeAlg,
    normalize: Normalize,
    outputs: Vec<Role>,
}

/// What an output is.
#[derive(Clone, Copy)]
enum Role {
    /// With as many dimensions of size 1 in front.
    Picture {
        ones: usize,
    },
    Transform,
}

/// Buffers of an instance.
#[derive(Default)]
struct Scratch {
    resizer: Resizer,
    /// The resized picture, before it is normalized.
    pixels: Vec<u8>,
}

pub(super) fn prepare(config: &ModelConfig) -> Result<Op> {
    let (fit, parameters) = Fit::read(config, PARAMETERS)?;
    let filter = read_filter(&parameters)?;
    let normalize = Normalize::read(&parameters)?;
    expect(config, config.max_batch_size == 0, "max_batch_size 0, pictures differ in size")?;
    let is_picture = |dims: &[i64]| matches!(dims, [_, _, 3 | -1]);
    let is_so = config.inputs.len() == 1
        && config.inputs.iter().all(|it| it.dtype == DataType::Uint8 && is_picture(&it.dims))
        && config.inputs.iter().all(|it| !it.optional);
    expect(config, is_so, "one input, UINT8 [-1,-1,3]")?;
    let outputs = roles(config, &fit, normalize.layout)?;
    let input = config.inputs[0].name.clone();
    let prepared = Prepared { input, fit, filter, normalize, outputs };
    Ok(Op::with_scratch(Placement::Own, move |scratch, inputs, _| {
        prepared.run(scratch, &inputs).inspect(|_| scratch.shrink())
    }))
}

fn read_filter(parameters: &Parameters) -> Result<ResizeAlg> {
    let filters = [
        ("bilinear", Some(FilterType::Bilinear)),
        ("nearest", None),
        ("box", Some(FilterType::Box)),
        ("lanczos", Some(FilterType::Lanczos3)),
    ];
    let filter = parameters.choice("filter", &filters)?;
    let antialias = parameters.choice("antialias", &[("true", true), ("false", false)])?;
    let has_choice = matches!(filter, Some(FilterType::Bilinear | FilterType::Lanczos3));
    if parameters.text("antialias").is_some() && !has_choice {
        return Err(parameters.wrong("antialias", "nothing beside this filter"));
    }
    Ok(match filter {
        None => ResizeAlg::Nearest,
        Some(filter) if antialias => ResizeAlg::Convolution(filter),
        Some(filter) => ResizeAlg::Interpolation(filter),
    })
}

fn roles(config: &ModelConfig, fit: &Fit, layout: PixelLayout) -> Result<Vec<Role>> {
    let [h, w] = fit.size().map_or([-1, -1], |it| [it.height as i64, it.width as i64]);
    let picture = match layout {
        PixelLayout::Nhwc => [h, w, 3],
        PixelLayout::Nchw => [3, h, w],
    };
    let takes = |dims: &[i64], actual: &[i64]| {
        dims.len() == actual.len()
            && dims.iter().zip(actual).all(|(dim, actual)| *dim == -1 || dim == actual)
    };
    let mut roles = Vec::new();
    for output in &config.outputs {
        roles.push(match &output.dims[..] {
            dims if takes(dims, &picture) => Role::Picture { ones: 0 },
            [1 | -1, dims @ ..] if takes(dims, &picture) => Role::Picture { ones: 1 },
            [4 | -1] => Role::Transform,
            _ => {
                let (got, expected) = (shape_text(&output.dims), shape_text(&picture));
                return Err(Error::invalid(format!(
                    "native model '{}': output '{}' has dims {got}, expected {expected} with or \
                     without a 1 in front, or [4]",
                    config.name, output.name
                )));
            }
        });
    }
    let pictures = roles.iter().filter(|it| matches!(it, Role::Picture { .. })).count();
    let is_so = pictures == 1
        && roles.len() <= 2
        && config.outputs.iter().all(|it| it.dtype == DataType::Fp32);
    expect(config, is_so, "an FP32 output for the picture and at most one of dims [4]")?;
    Ok(roles)
}

impl Prepared {
    fn run(&self, scratch: &mut Scratch, inputs: &Tensors) -> Result<Tensors> {
        let input = &self.input;
        let [Some(tensor)] = &inputs[..] else {
            return Err(Error::invalid(format!("input '{input}' is missing")));
        };
        let size = size_of(tensor.shape()).ok_or_else(|| {
            Error::invalid(format!(
                "input '{input}' has shape {}, expected [height,width,3] with sides from 1 to {}",
                shape_text(tensor.shape()),
                image_decode::MAX_SIDE
            ))
        })?;
        let placed = self.fit.place(size);
        let pixels = match placed.picture == size {
            true => &tensor.data()[..],
            false => self.resize(scratch, tensor.data(), size, placed.picture)?,
        };
        let PlacedPicture { canvas, .. } = placed;
        let data = elements::floats(canvas.pixels() * 3, |out| {
            self.normalize.write(pixels, &placed, out);
        });
        let picture = match self.normalize.layout {
            PixelLayout::Nhwc => [canvas.height as i64, canvas.width as i64, 3],
            PixelLayout::Nchw => [3, canvas.height as i64, canvas.width as i64],
        };
        let output = |role: &Role| match role {
            Role::Picture { ones } => {
                let mut shape: Shape = smallvec::smallvec![1; *ones];
                shape.extend_from_slice(&picture);
                // Not copied: sharing the bytes is all a clone does.
                Tensor::new(DataType::Fp32, shape, data.clone()).map(Some)
            }
            Role::Transform => {
                let numbers = placed.transform(size);
                let data = elements::floats(4, |out| {
                    out.iter_mut().zip(numbers).for_each(|(to, it)| *to = it.to_le_bytes());
                });
                Tensor::new(DataType::Fp32, Shape::from_slice(&[4]), data).map(Some)
            }
        };
        self.outputs.iter().map(output).collect()
    }

    /// Resizes into the scratch: the one copy of the picture before its values become floats.
    fn resize<'a>(
        &self,
        scratch: &'a mut Scratch,
        data: &[u8],
        from: PictureSize,
        to: PictureSize,
    ) -> Result<&'a [u8]> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::internal(format!("cannot resize {from} to {to}: {error}"))
        };
        let length = to.pixels() * 3;
        if scratch.pixels.len() < length {
            scratch.pixels.resize(length, 0);
        }
        let pixels = &mut scratch.pixels[..length];
        let source = TypedImageRef::<U8x3>::from_buffer(from.width, from.height, data)
            .map_err(|error| failed(&error))?;
        let mut target = TypedImage::<U8x3>::from_buffer(to.width, to.height, pixels)
            .map_err(|error| failed(&error))?;
        let options = ResizeOptions::new().resize_alg(self.filter);
        scratch
            .resizer
            .resize_typed(&source, &mut target, &options)
            .map_err(|error| failed(&error))?;
        Ok(&scratch.pixels[..length])
    }
}

impl Scratch {
    /// One large picture must not cost its memory for ever.
    fn shrink(&mut self) {
        if MAX_KEPT_BYTES < self.pixels.capacity() + self.resizer.size_of_internal_buffers() {
            self.pixels = Vec::new();
            self.resizer.reset_internal_buffers();
        }
    }
}

fn size_of(shape: &[i64]) -> Option<PictureSize> {
    let side =
        |it: i64| u32::try_from(it).ok().filter(|it| (1..=image_decode::MAX_SIDE).contains(it));
    match shape {
        [height, width, 3] => Some(PictureSize { width: side(*width)?, height: side(*height)? }),
        _ => None,
    }
}
