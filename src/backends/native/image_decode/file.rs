//! Finds out what kind of file it is, by its content, and has it decoded.

use super::{jpeg, limits::PictureLimits, picture::DecodedPicture, png, webp};

/// One kind of file.
struct FileKind {
    name: &'static str,
    is: fn(&[u8]) -> bool,
    /// The limits are met before anything of the picture's size is allocated.
    decode: fn(&[u8], &PictureLimits) -> Result<DecodedPicture, String>,
}

const KINDS: &[FileKind] = &[
    FileKind { name: "JPEG", is: |it| it.starts_with(b"\xFF\xD8\xFF"), decode: jpeg::decode },
    FileKind { name: "PNG", is: |it| it.starts_with(b"\x89PNG\r\n\x1A\n"), decode: png::decode },
    FileKind {
        name: "WebP",
        is: |it| it.starts_with(b"RIFF") && it.get(8..12) == Some(b"WEBP"),
        decode: webp::decode,
    },
];

/// What people send by mistake, and how it begins behind an offset.
const FOREIGN: &[(&str, usize, &[u8])] = &[
    ("GIF", 0, b"GIF8"),
    ("BMP", 0, b"BM"),
    ("TIFF", 0, b"II*\0"),
    ("TIFF", 0, b"MM\0*"),
    ("HEIC or AVIF", 4, b"ftyp"),
    ("JPEG XL", 0, b"\xFF\x0A"),
    ("JPEG 2000", 0, b"\0\0\0\x0CjP"),
    ("PDF", 0, b"%PDF"),
];

/// The pixels of a file, as it stores them. Errors say what is wrong with the file.
pub(super) fn decode(file: &[u8], limits: &PictureLimits) -> Result<DecodedPicture, String> {
    if limits.bytes < file.len() {
        let (got, most) = (file.len(), limits.bytes);
        return Err(format!("expected a file of at most {most} bytes (max_bytes), got {got}"));
    }
    let Some(kind) = KINDS.iter().find(|it| (it.is)(file)) else { return Err(unknown(file)) };
    (kind.decode)(file, limits)
        .map_err(|text| format!("cannot decode {} of {} bytes: {text}", kind.name, file.len()))
}

fn unknown(file: &[u8]) -> String {
    let names: Vec<&str> = KINDS.iter().map(|it| it.name).collect();
    let (last, others) = names.split_last().unwrap_or((&"", &[]));
    let expected = format!("expected a {} or {last} file", others.join(", "));
    if file.is_empty() {
        return format!("{expected}, got 0 bytes");
    }
    let looks = |(_, at, magic): &&(&str, usize, &[u8])| {
        file.get(*at..).is_some_and(|it| it.starts_with(magic))
    };
    let guess =
        FOREIGN.iter().find(looks).map_or(String::new(), |(name, ..)| format!(" of {name}"));
    let first: Vec<String> = file.iter().take(12).map(|it| format!("{it:02x}")).collect();
    format!("{expected}, got {} bytes{guess} that begin with {}", file.len(), first.join(" "))
}
