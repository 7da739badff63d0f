//! Files that are cut, broken, of another kind, or larger inside than outside.

use std::io::Write;

use flate2::{Compression, Crc, write::ZlibEncoder};

use super::{decode, error, file};

const FILES: &[&str] = &[
    "jpeg_420.jpg",
    "jpeg_progressive.jpg",
    "jpeg_restarts.jpg",
    "jpeg_cmyk.jpg",
    "jpeg_exif6.jpg",
    "png_rgb.png",
    "png_palette_alpha.png",
    "png_interlaced.png",
    "png_exif6.png",
    "apng.png",
    "webp_lossy.webp",
    "webp_lossless.webp",
    "webp_lossy_alpha.webp",
    "webp_exif8.webp",
    "webp_animated.webp",
    "webp_animated_lossy.webp",
];

#[test]
fn files_of_another_kind_are_refused_by_their_content() {
    let refused = |data: &[u8], got: &str| {
        let expected = format!("input 'file': expected a JPEG, PNG or WebP file, got {got}");
        assert_eq!(error(data.to_vec()), expected);
    };
    refused(b"", "0 bytes");
    refused(b"\xFF", "1 bytes that begin with ff");
    refused(b"RIFF\0\0\0\0WAVE", "12 bytes that begin with 52 49 46 46 00 00 00 00 57 41 56 45");
    refused(b"hello", "5 bytes that begin with 68 65 6c 6c 6f");
    let gif = "1320 bytes of GIF that begin with 47 49 46 38 37 61 1d 00 13 00 87 00";
    refused(&file("gif.gif"), gif);
    refused(b"BM2345", "6 bytes of BMP that begin with 42 4d 32 33 34 35");
    refused(
        b"\0\0\0 ftypavif",
        "12 bytes of HEIC or AVIF that begin with 00 00 00 20 66 74 79 70 61 76 69 66",
    );
}

#[test]
fn a_file_that_ends_early_is_refused_wherever_it_ends() {
    for name in FILES {
        let whole = file(name);
        assert!(decode(whole.clone(), &[]).is_ok());
        for length in 0..whole.len() {
            let text = error(whole[..length].to_vec());
            let says = text.contains("cannot decode ") || text.contains("expected a JPEG, PNG");
            assert!(says, "{name} cut to {length}: {text}");
            if 20 < length && !name.starts_with("jpeg") {
                assert!(text.contains("it ends early"), "{name} cut to {length}: {text}");
            }
        }
        // What follows the end belongs to somebody else.
        assert!(decode([&whole[..], b"trailing"].concat(), &[]).is_ok(), "{name}");
    }
}

#[test]
fn a_spoilt_file_is_an_error_or_a_picture_and_nothing_else() {
    for name in FILES {
        let whole = file(name);
        for at in (0..whole.len()).step_by(5) {
            for value in [0x00, 0xFF, whole[at] ^ 0x10] {
                let mut spoilt = whole.clone();
                spoilt[at] = value;
                if let Err(error) = decode(spoilt, &[("max_pixels", "10000")]) {
                    assert!(error.to_string().starts_with("input 'file': "), "{error}");
                }
            }
        }
    }
}

#[test]
fn a_jpeg_that_claims_many_pixels_is_refused() {
    let mut huge = file("jpeg_420.jpg");
    let at = huge.windows(2).position(|it| it == b"\xFF\xC0").unwrap();
    huge[at + 5..at + 9].copy_from_slice(&[0xC3, 0x50, 0xC3, 0x50]);
    let expected = "it has 50000 x 50000 pixels, expected at most 33554432 (max_pixels)";
    let prefix = "input 'file': cannot decode JPEG of 968 bytes: ";
    assert_eq!(error(huge.clone()), format!("{prefix}{expected}"));
    // Within the limit, and not there: the decoder would make it up.
    huge[at + 5..at + 9].copy_from_slice(&[0x10, 0x00, 0x10, 0x00]);
    let expected = "it has 4096 x 4096 pixels, its bytes are too few for that";
    assert_eq!(error(huge), format!("{prefix}{expected}"));
}

#[test]
fn a_webp_that_claims_many_pixels_is_refused() {
    let expected = "pixels, expected at most 33554432 (max_pixels)";
    // Lossless: 14 bits of width, 14 bits of height.
    let mut lossless = file("webp_lossless.webp");
    let at = lossless.windows(4).position(|it| it == b"VP8L").unwrap() + 9;
    lossless[at..at + 4].copy_from_slice(&[0xFE, 0xBF, 0xFF, 0x0F]);
    let text = error(lossless);
    assert!(text.contains(&format!("it has 16383 x 16383 {expected}")), "{text}");
    // A canvas of 24 bits a side.
    let mut canvas = file("webp_exif8.webp");
    let at = canvas.windows(4).position(|it| it == b"VP8X").unwrap() + 12;
    canvas[at..at + 6].fill(0xFF);
    let text = error(canvas);
    assert!(text.contains("cannot decode WebP of 336 bytes: "), "{text}");
    // A small canvas around a large frame, alone and in an animation.
    for name in ["webp_lossy_alpha.webp", "webp_animated_lossy.webp"] {
        let mut frame = file(name);
        let at = frame.windows(3).position(|it| it == b"\x9D\x01\x2A").unwrap() + 3;
        frame[at..at + 4].copy_from_slice(&[0xFF, 0x3F, 0xFF, 0x3F]);
        let text = error(frame);
        assert!(text.contains(&format!("it has 16383 x 16383 {expected}")), "{text}");
    }
}

#[test]
fn a_png_that_claims_many_pixels_is_refused() {
    let pixels = zlib(1000);
    let size = |width: u32, height: u32| error(png(&[header(width, height), (b"IDAT", &pixels)]));
    assert!(size(50_000, 50_000).contains("it has 50000 x 50000 pixels, expected at most"));
    assert!(size(u32::MAX >> 1, u32::MAX >> 1).contains("pixels, expected sides from 1 to 65535"));
    assert!(size(1, 65_536).contains("it has 1 x 65536 pixels, expected sides from 1 to 65535"));
    // Within the limit, and not there.
    assert!(size(8192, 8192).contains("cannot decode PNG"));
}

#[test]
fn what_a_png_holds_beside_its_pixels_is_not_inflated() {
    const MANY: usize = 24 << 20;
    let (bomb, pixels) = (zlib(MANY), zlib(4));
    let profile = [&b"name\0\0"[..], &bomb].concat();
    let text = [&b"name\0\0\0\0\0"[..], &bomb].concat();
    let long = vec![b'a'; MANY];
    let extra = zlib(MANY);
    for chunks in [
        vec![(b"iCCP", &profile[..]), (b"IDAT", &pixels)],
        vec![(b"zTXt", &profile), (b"IDAT", &pixels)],
        vec![(b"iTXt", &text), (b"IDAT", &pixels)],
        vec![(b"tEXt", &long), (b"IDAT", &pixels)],
        vec![(b"teSt", &long), (b"IDAT", &pixels)],
        // Pixels below the last row.
        vec![(b"IDAT", &extra)],
        vec![(b"IDAT", &pixels), (b"zTXt", &profile)],
    ] {
        let name = String::from_utf8_lossy(chunks[0].0).into_owned();
        let file = png(&[&[header(1, 1)], &chunks[..], &[(b"IEND", b"")]].concat());
        let picture = decode(file, &[]);
        assert_eq!(picture.map(|it| it.data().to_vec()), Ok(vec![0, 0, 0]), "{name}");
    }
    let file = png(&[header(1, 1), (b"eXIf", &long), (b"IDAT", &pixels), (b"IEND", b"")]);
    assert!(error(file).contains("cannot decode PNG"));
}

#[test]
fn a_palette_that_ends_within_a_color_is_refused() {
    let pixels = zlib(2);
    let mut header = header(1, 1).1.to_vec();
    header[9] = 3;
    for (colors, expected) in
        [(&[9; 3][..], Ok(vec![9; 3])), (&[9; 4], Err(())), (&[9; 2], Err(()))]
    {
        let chunks =
            [(b"IHDR", &header[..]), (b"PLTE", colors), (b"IDAT", &pixels), (b"IEND", b"")];
        let decoded = decode(png(&chunks), &[]);
        assert_eq!(decoded.map(|it| it.data().to_vec()).map_err(|_| ()), expected);
    }
}

type Chunk<'a> = (&'a [u8; 4], &'a [u8]);

/// RGB, 8 bits. The sizes differ; the data lives as long as the test.
fn header(width: u32, height: u32) -> Chunk<'static> {
    let (width, height) = (width.to_be_bytes(), height.to_be_bytes());
    let data = [&width[..], &height, &[8, 2, 0, 0, 0]].concat();
    (b"IHDR", data.leak())
}

fn png(chunks: &[Chunk]) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1A\n".to_vec();
    for (kind, data) in chunks {
        let mut crc = Crc::new();
        crc.update(*kind);
        crc.update(data);
        file.extend_from_slice(&(data.len() as u32).to_be_bytes());
        file.extend_from_slice(*kind);
        file.extend_from_slice(data);
        file.extend_from_slice(&crc.sum().to_be_bytes());
    }
    file
}

/// So many zeros.
fn zlib(count: usize) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&vec![0; count]).unwrap();
    encoder.finish().unwrap()
}
