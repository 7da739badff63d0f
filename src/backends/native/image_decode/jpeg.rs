//! JPEG, baseline and progressive, by zune-jpeg.

use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions},
};

use super::{
    exif,
    limits::{MAX_SIDE, PictureLimits},
    picture::DecodedPicture,
};

pub(super) fn decode(file: &[u8], limits: &PictureLimits) -> Result<DecodedPicture, String> {
    let longest = MAX_SIDE as usize;
    let options = DecoderOptions::default().set_max_width(longest).set_max_height(longest);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|error| error.to_string())?;
    let info = decoder.info().ok_or("it has no header")?;
    let (width, height) = (u32::from(info.width), u32::from(info.height));
    limits.check(width, height)?;
    // Every block of 64 pixels takes a bit at least.
    if file.len() as u64 * 8 * 64 < u64::from(width) * u64::from(height) {
        return Err(format!("it has {width} x {height} pixels, its bytes are too few for that"));
    }
    if !has_end(file) {
        return Err("it ends early, before its end marker".to_owned());
    }
    let is_gray = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let (channels, colors) = if is_gray { (1, ColorSpace::Luma) } else { (3, ColorSpace::RGB) };
    // Strict from here on: broken data is an error, not a gray area. Headers may be sloppy.
    decoder.set_options(options.jpeg_set_out_colorspace(colors).set_strict_mode(true));
    let mut picture = DecodedPicture::black(width, height, channels);
    picture.orientation = decoder.exif().map_or(1, |it| exif::orientation(it));
    decoder.decode_into(picture.target()).map_err(|error| error.to_string())?;
    Ok(picture)
}

/// Is the marker of the image's end there? The decoder would take gray for what is missing.
fn has_end(file: &[u8]) -> bool {
    const END: u8 = 0xD9;
    let mut at = 2;
    while let Some(found) = file.get(at..).and_then(|it| it.iter().position(|byte| *byte == 0xFF)) {
        at += found + 1;
        match file.get(at) {
            Some(&END) => return true,
            // A byte of image data that looks like a marker, and markers without a length.
            Some(0x00 | 0x01 | 0xD0..=0xD8) => at += 1,
            Some(0xFF) => (),
            _ => match file.get(at + 1..at + 3) {
                Some(length) => at += 1 + usize::from(u16::from_be_bytes([length[0], length[1]])),
                None => return false,
            },
        }
    }
    false
}
