//! Files that PIL and OpenCV have decoded too, files that are wrong, and configs that are wrong.

mod bad;

use super::prepare;
use crate::native::testing::{config, file, parameter, run, uint8};
use troupe_base::{
    error::{ErrorKind, Result},
    tensor::{DataType, Shape, Tensor},
};

const UINT8: &str = "input { name: 'file' data_type: TYPE_UINT8 dims: [-1] }";
const BYTES: &str = "input { name: 'file' data_type: TYPE_STRING dims: [1] }";
const IMAGE: &str = "output { name: 'image' data_type: TYPE_UINT8 dims: [-1,-1,-1] }";

/// What a model of these parameters makes of a file.
fn decode(data: Vec<u8>, parameters: &[(&str, &str)]) -> Result<Tensor> {
    let parameters: String = parameters.iter().map(|(key, value)| parameter(key, value)).collect();
    let op = prepare(&config(&format!("{UINT8} {IMAGE} {parameters}")))?;
    let mut outputs = run(&op, &[&uint8(&[data.len() as i64], data)])?;
    Ok(outputs.remove(0).unwrap())
}

#[track_caller]
fn error(data: Vec<u8>) -> String {
    // Not `unwrap_err`: it would print the pixels.
    let Err(error) = decode(data, &[]) else { panic!("the file was decoded") };
    assert_eq!(error.kind(), ErrorKind::InvalidArg);
    error.to_string()
}

/// The file's pixels are those of `NAME.rgb`, each value at most `apart` away.
#[track_caller]
fn check(name: &str, shape: [i64; 2], apart: u8) {
    let image = decode(file(name), &[]).unwrap();
    assert_eq!(image.shape(), [shape[0], shape[1], 3], "{name}");
    let expected = file(&format!("{}.rgb", name.split('.').next().unwrap()));
    assert_eq!(image.data().len(), expected.len());
    let apart_by = image.data().iter().zip(&expected).map(|(a, b)| a.abs_diff(*b));
    let sum: f32 = apart_by.clone().map(f32::from).sum();
    let (worst, mean) = (apart_by.max().unwrap(), sum / expected.len() as f32);
    assert!(worst <= apart && mean < 0.5, "{name}: {worst} apart, {mean} in the mean");
}

#[test]
fn jpeg_files_are_decoded_as_by_libjpeg() {
    for name in ["jpeg_420", "jpeg_422", "jpeg_444", "jpeg_progressive", "jpeg_restarts"] {
        check(&format!("{name}.jpg"), [19, 29], 4);
    }
    check("jpeg_gray.jpg", [19, 29], 1);
    check("jpeg_cmyk.jpg", [19, 29], 4);
}

#[test]
fn pictures_are_turned_upright() {
    for orientation in 1..=8 {
        let shape = if orientation < 5 { [19, 29] } else { [29, 19] };
        check(&format!("jpeg_exif{orientation}.jpg"), shape, 4);
    }
    check("png_exif6.png", [29, 19], 0);
    check("webp_exif8.webp", [29, 19], 0);
}

#[test]
fn png_files_are_decoded_exactly() {
    for name in [
        "png_rgb",
        "png_gray",
        "png_bits",
        "png_palette",
        "png_palette_alpha",
        "png_rgba",
        "png_gray_alpha",
        "png_interlaced",
        "png_rgb16",
        "png_gray16",
        "apng",
    ] {
        check(&format!("{name}.png"), [19, 29], 0);
    }
}

#[test]
fn webp_files_are_decoded_as_by_libwebp() {
    for name in ["webp_lossless", "webp_alpha", "webp_animated"] {
        check(&format!("{name}.webp"), [19, 29], 0);
    }
    for name in ["webp_lossy", "webp_lossy_alpha", "webp_animated_lossy"] {
        check(&format!("{name}.webp"), [19, 29], 1);
    }
}

#[test]
fn the_file_may_be_an_element_of_bytes() {
    let op = prepare(&config(&format!("{BYTES} {IMAGE}"))).unwrap();
    let element = |data: &[u8]| [&(data.len() as u32).to_le_bytes(), data].concat();
    let tensor = |count: i64, data: Vec<u8>| {
        Tensor::new(DataType::Bytes, Shape::from_slice(&[count]), data.into()).unwrap()
    };
    let outputs = run(&op, &[&tensor(1, element(&file("png_rgb.png")))]).unwrap();
    assert_eq!(outputs[0].as_ref().unwrap().data(), &file("png_rgb.rgb")[..]);
    let error = run(&op, &[&tensor(1, element(b""))]).unwrap_err().to_string();
    assert_eq!(error, "input 'file': expected a JPEG, PNG or WebP file, got 0 bytes");
    let error = run(&op, &[&tensor(2, [element(b"a"), element(b"")].concat())]).unwrap_err();
    assert_eq!(error.to_string(), "input 'file': expected one element, got 2");
}

#[test]
fn other_formats_hold_the_same_picture() {
    for name in [
        "png_rgb.png",
        "png_gray.png",
        "png_rgba.png",
        "png_gray_alpha.png",
        "jpeg_exif6.jpg",
        "webp_alpha.webp",
    ] {
        let rgb = decode(file(name), &[]).unwrap();
        let bgr = decode(file(name), &[("format", "BGR")]).unwrap();
        let gray = decode(file(name), &[("format", "GRAY")]).unwrap();
        assert_eq!(bgr.shape(), rgb.shape());
        assert_eq!(gray.shape(), [rgb.shape()[0], rgb.shape()[1], 1]);
        let pixels = |it: &Tensor| it.data().as_chunks::<3>().0.to_vec();
        let (rgb, bgr) = (pixels(&rgb), pixels(&bgr));
        assert_eq!(gray.data().len(), rgb.len());
        for ((rgb, bgr), gray) in rgb.into_iter().zip(bgr).zip(gray.data()) {
            assert_eq!(rgb, [bgr[2], bgr[1], bgr[0]]);
            let [r, g, b] = rgb.map(f32::from);
            let luminance = 0.299 * r + 0.587 * g + 0.114 * b;
            assert!((luminance - f32::from(*gray)).abs() <= 0.6, "{name}: {rgb:?} is {gray}");
        }
    }
}

#[test]
fn a_model_sets_its_own_limits() {
    let limited = |key: &str, value: &str| decode(file("png_rgb.png"), &[(key, value)]);
    assert_eq!(limited("max_pixels", "551").unwrap().shape(), [19, 29, 3]);
    assert_eq!(
        limited("max_pixels", "550").unwrap_err().to_string(),
        "input 'file': cannot decode PNG of 353 bytes: it has 29 x 19 pixels, expected at most 550 \
         (max_pixels)"
    );
    assert!(limited("max_bytes", "353").is_ok());
    assert_eq!(
        limited("max_bytes", "352").unwrap_err().to_string(),
        "input 'file': expected a file of at most 352 bytes (max_bytes), got 353"
    );
}

#[test]
fn configs_that_do_not_work_are_refused() {
    let refused = |text: &str, expected: &str| {
        let error = prepare(&config(text)).err().expect(text).to_string();
        assert_eq!(error, format!("native model 'm': {expected}"));
    };
    let with = |key: &str, value: &str| format!("{UINT8} {IMAGE} {}", parameter(key, value));
    refused(
        &with("format", "RGBA"),
        "parameter 'format' is 'RGBA', expected one of: RGB, BGR, GRAY",
    );
    for value in ["0", "-1", "many", "268435457"] {
        let expected =
            format!("parameter 'max_pixels' is '{value}', expected a number from 1 to 268435456");
        refused(&with("max_pixels", value), &expected);
    }
    let error = prepare(&config(&with("size", "3"))).err().unwrap().to_string();
    assert_eq!(
        error,
        "native model 'm' has the parameter 'size', expected one of: op, placement, format, max_pixels, \
         max_bytes"
    );
    let batched = format!("max_batch_size: 4 {UINT8} {IMAGE}");
    refused(&batched, "expected max_batch_size 0, pictures differ in size");
    let floats = "input { name: 'file' data_type: TYPE_FP32 dims: [-1] }";
    refused(&format!("{floats} {IMAGE}"), "expected one input, UINT8 [-1] or BYTES [1]");
    let optional = "input { name: 'file' data_type: TYPE_UINT8 dims: [-1] optional: true }";
    refused(&format!("{optional} {IMAGE}"), "expected one input, UINT8 [-1] or BYTES [1]");
    let four = "output { name: 'image' data_type: TYPE_UINT8 dims: [-1,-1,4] }";
    refused(&format!("{UINT8} {four}"), "expected one output, UINT8 [-1,-1,3]");
    let gray = parameter("format", "GRAY");
    let three = "output { name: 'image' data_type: TYPE_UINT8 dims: [-1,-1,3] }";
    refused(&format!("{UINT8} {three} {gray}"), "expected one output, UINT8 [-1,-1,1]");
}

#[test]
fn a_few_bytes_may_be_a_large_picture_so_nothing_is_said_of_its_time() {
    use troupe_base::backend::OpenLocal;
    let op = prepare(&config(&format!("{UINT8} {IMAGE}"))).unwrap();
    assert!(!op.is_predictable());
}
