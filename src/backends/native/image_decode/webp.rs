//! WebP, the first frame of an animated one, by image-webp.

use std::io::{Cursor, ErrorKind};

use image_webp::{DecodingError, WebPDecoder};

use super::{exif, limits::PictureLimits, picture::DecodedPicture};

pub(super) fn decode(file: &[u8], limits: &PictureLimits) -> Result<DecodedPicture, String> {
    let length = file.get(4..8).and_then(|it| it.first_chunk()).copied().map(u32::from_le_bytes);
    let whole = length.unwrap_or(0) as usize + 8;
    let file = file.get(..whole).ok_or(format!("it ends early, {whole} bytes are announced"))?;
    let mut decoder = WebPDecoder::new(Cursor::new(file)).map_err(text)?;
    let (width, height) = decoder.dimensions();
    limits.check(width, height)?;
    check_frames(file.get(12..).unwrap_or_default(), limits, true)?;
    // The largest chunk that can be there.
    decoder.set_memory_limit(file.len());
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut picture = DecodedPicture::black(width, height, channels);
    let exif = decoder.exif_metadata().map_err(text)?;
    picture.orientation = exif.map_or(1, |it| exif::orientation(&it));
    decoder.read_image(picture.target()).map_err(text)?;
    Ok(picture)
}

/// Checks the sizes of lossy frames, which the decoder allocates before it compares them with the
/// picture's size.
fn check_frames(chunks: &[u8], limits: &PictureLimits, has_groups: bool) -> Result<(), String> {
    let mut rest = chunks;
    while let Some((header, tail)) = rest.split_first_chunk::<8>() {
        let [a, b, c, d, length @ ..] = *header;
        let length = u32::from_le_bytes(length) as usize;
        let body = &tail[..length.min(tail.len())];
        if let [_, _, _, 0x9D, 0x01, 0x2A, w0, w1, h0, h1, ..] = body {
            let side = |low: &u8, high: &u8| u32::from(u16::from_le_bytes([*low, *high]) & 0x3FFF);
            limits.check(side(w0, w1), side(h0, h1))?;
        }
        // A frame of an animation: chunks behind 16 bytes, and no frames in frames.
        if has_groups && [a, b, c, d] == *b"ANMF" {
            check_frames(body.get(16..).unwrap_or_default(), limits, false)?;
        }
        rest = tail.get(length.saturating_add(length % 2)..).unwrap_or_default();
    }
    Ok(())
}

fn text(error: DecodingError) -> String {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            "it ends early".to_owned()
        }
        other => other.to_string(),
    }
}
