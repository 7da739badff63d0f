//! The orientation in EXIF data: a TIFF header and its first list of tags.

const ORIENTATION: u16 = 0x112;
const SHORT: u16 = 3;

/// 1 to 8 as EXIF counts; 1, upright, when the data does not say otherwise.
pub(super) fn orientation(data: &[u8]) -> u8 {
    let data = data.strip_prefix(b"Exif\0\0").unwrap_or(data);
    read(data).filter(|it| (1..=8).contains(it)).unwrap_or(1) as u8
}

fn read(data: &[u8]) -> Option<u16> {
    let is_little = match data.first_chunk::<4>()? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = *data.get(at..)?.first_chunk()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let (one, other) = (usize::from(short(4)?), usize::from(short(6)?));
    let list = if is_little { other << 16 | one } else { one << 16 | other };
    let tags = (0..usize::from(short(list)?)).map(|index| list + 2 + index * 12);
    for tag in tags {
        if (short(tag)?, short(tag + 2)?) == (ORIENTATION, SHORT) {
            return short(tag + 8);
        }
    }
    None
}
