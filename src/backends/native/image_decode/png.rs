//! PNG, the first frame of an animated one, by the png crate.

use std::io::{Cursor, ErrorKind};

use png::{ColorType, DecodeOptions, Decoder, DecodingError, Transformations};

use super::{exif, limits::PictureLimits, picture::DecodedPicture};

/// For chunks beside the pixels that are kept, such as EXIF data, and a few rows of pixels.
const MAX_DECODER_BYTES: usize = 16 << 20;

pub(super) fn decode(file: &[u8], limits: &PictureLimits) -> Result<DecodedPicture, String> {
    let mut options = DecodeOptions::default();
    // What these hold has no effect on the pixels, and is a place for bombs.
    options.set_ignore_text_chunk(true);
    options.set_ignore_iccp_chunk(true);
    let mut decoder = Decoder::new_with_options(Cursor::new(file), options);
    decoder.set_limits(png::Limits { bytes: MAX_DECODER_BYTES });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let header = decoder.read_header_info().map_err(text)?;
    let (width, height) = header.size();
    limits.check(width, height)?;
    let mut reader = decoder.read_info().map_err(text)?;
    // The decoder panics where the last color of three bytes is cut.
    if let Some(palette) = reader.info().palette.as_ref().filter(|it| it.len() % 3 != 0) {
        return Err(format!("its palette has {} bytes, not three a color", palette.len()));
    }
    let channels = match reader.output_color_type().0 {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb | ColorType::Indexed => 3,
        ColorType::Rgba => 4,
    };
    let mut picture = DecodedPicture::black(width, height, channels);
    let frame = reader.next_frame(picture.target()).map_err(text)?;
    if (frame.width, frame.height) != (width, height) {
        return Err(format!("its first frame has {} x {} pixels", frame.width, frame.height));
    }
    // Reads, and does not inflate, what follows: there must be an end, and there may be EXIF data.
    reader.finish().map_err(text)?;
    picture.orientation = reader.info().exif_metadata.as_deref().map_or(1, exif::orientation);
    Ok(picture)
}

fn text(error: DecodingError) -> String {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            "it ends early".to_owned()
        }
        other => other.to_string(),
    }
}
