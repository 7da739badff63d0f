//! `image_decode`: the bytes of a JPEG, PNG or WebP file to its pixels, upright.
//!
//! Input: UINT8 `[-1]` (the file) or BYTES `[1]` (one element, the file). Output: UINT8
//! `[height, width, 3]`, or 1 channel for GRAY. The first frame of an animation; 16 bits are cut
//! to the upper 8; transparency is dropped, as OpenCV's IMREAD_COLOR does it.
//!
//! Parameters: `format` RGB (default), BGR or GRAY; `max_pixels`; `max_bytes` of the file.

mod exif;
mod file;
mod jpeg;
mod limits;
mod picture;
mod png;
mod webp;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;

pub(super) use self::limits::MAX_SIDE;
use self::{
    limits::PictureLimits,
    picture::{DecodedPicture, Format},
};
use super::{
    op::{Op, expect},
    parameters::Parameters,
};
use troupe_base::{
    backend::{Placement, Tensors},
    config::ModelConfig,
    error::{Error, Result},
    tensor::{DataType, Shape, Tensor},
};

/// 100 MB of RGB: pictures of most cameras fit, and few bytes of a file cannot become gigabytes.
const MAX_PIXELS: u32 = 1 << 25;
const MAX_BYTES: usize = 64 << 20;

pub(super) fn prepare(config: &ModelConfig) -> Result<Op> {
    let parameters = Parameters::of(config, &["format", "max_pixels", "max_bytes"])?;
    let formats = [("RGB", Format::Rgb), ("BGR", Format::Bgr), ("GRAY", Format::Gray)];
    let format = parameters.choice("format", &formats)?;
    let pixels = parameters.number("max_pixels", MAX_PIXELS, 1..=1 << 28)?;
    let bytes = parameters.number("max_bytes", MAX_BYTES, 1..=1 << 30)?;
    check_tensors(config, format)?;
    let input = config.inputs[0].name.clone();
    let limits = PictureLimits { pixels, bytes };
    let run = move |inputs, _| run(&input, &limits, format, inputs);
    Ok(Op::new(Placement::Own, run).with_any_effort())
}

fn check_tensors(config: &ModelConfig, format: Format) -> Result<()> {
    expect(config, config.max_batch_size == 0, "max_batch_size 0, pictures differ in size")?;
    let is_file = |dtype: DataType, dims: &[i64]| match dtype {
        DataType::Uint8 => dims.len() == 1,
        DataType::Bytes => dims == [1],
        _ => false,
    };
    let is_so = config.inputs.len() == 1
        && config.inputs.iter().all(|it| !it.optional && is_file(it.dtype, &it.dims));
    expect(config, is_so, "one input, UINT8 [-1] or BYTES [1]")?;
    let channels = format.channels() as i64;
    let is_picture =
        |dims: &[i64]| matches!(dims, [_, _, last] if *last == -1 || *last == channels);
    let is_so = config.outputs.len() == 1
        && config.outputs.iter().all(|it| it.dtype == DataType::Uint8 && is_picture(&it.dims));
    expect(config, is_so, &format!("one output, UINT8 [-1,-1,{channels}]"))
}

fn run(
    input: &Arc<str>,
    limits: &PictureLimits,
    format: Format,
    inputs: Tensors,
) -> Result<Tensors> {
    let [Some(tensor)] = &inputs[..] else {
        return Err(Error::invalid(format!("input '{input}' is missing")));
    };
    let picture = file_of(tensor)
        .and_then(|file| file::decode(&file, limits))
        .map_err(|text| Error::invalid(format!("input '{input}': {text}")))?;
    let DecodedPicture { width, height, pixels, .. } = picture.converted(format).upright();
    let shape = Shape::from_slice(&[height as i64, width as i64, format.channels() as i64]);
    // Not copied: the tensor owns the buffer the decoder wrote to.
    Ok(vec![Some(Tensor::new(DataType::Uint8, shape, Bytes::from(pixels))?)])
}

/// The file in a tensor, its bytes shared.
fn file_of(tensor: &Tensor) -> Result<Bytes, String> {
    if tensor.dtype() != DataType::Bytes {
        return Ok(tensor.data().clone());
    }
    let mut elements = tensor.strings();
    match (elements.next(), elements.next()) {
        (Some(file), None) => Ok(tensor.data().slice_ref(file)),
        _ => Err(format!("expected one element, got {}", tensor.strings().count())),
    }
}
