//! Pictures that PIL and OpenCV have resized too, sizes, transforms, and configs that are wrong.

use super::{
    fit::{Align, Fit, PictureSize, PlacedPicture},
    prepare,
};
use crate::native::testing::{config, file, numbers, parameter, run, uint8};
use troupe_base::tensor::Tensor;

const IMAGE: &str = "input { name: 'image' data_type: TYPE_UINT8 dims: [-1,-1,3] }";
const NHWC: &str = "output { name: 'input' data_type: TYPE_FP32 dims: [1,-1,-1,3] }";
const NCHW: &str = "output { name: 'input' data_type: TYPE_FP32 dims: [3,-1,-1] }";
const TRANSFORM: &str = "output { name: 'transform' data_type: TYPE_FP32 dims: [4] }";

/// Width and height of `resize.rgb`.
const DRAWN: [i64; 2] = [61, 43];

fn text(outputs: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String = parameters.iter().map(|(key, value)| parameter(key, value)).collect();
    format!("{IMAGE} {outputs} {parameters}")
}

#[track_caller]
fn resize(
    outputs: &str,
    parameters: &[(&str, &str)],
    width: i64,
    height: i64,
    pixels: Vec<u8>,
) -> Vec<Tensor> {
    let op = prepare(&config(&text(outputs, parameters))).unwrap();
    let outputs = run(&op, &[&uint8(&[height, width, 3], pixels)]).unwrap();
    outputs.into_iter().map(Option::unwrap).collect()
}

fn elements(tensor: &Tensor) -> Vec<f32> {
    numbers(&Some(tensor.clone()))
}

/// The largest and the mean distance between a resized picture and `resize_NAME.rgb`.
#[track_caller]
fn apart(name: &str, width: i64, height: i64, parameters: &[(&str, &str)]) -> (f32, f32) {
    let sides = [width.to_string(), height.to_string()];
    let mode = [("mode", "stretch"), ("width", &sides[0]), ("height", &sides[1])];
    let parameters = [&mode, parameters].concat();
    let outputs = resize(NHWC, &parameters, DRAWN[0], DRAWN[1], file("resize.rgb"));
    assert_eq!(outputs[0].shape(), [1, height, width, 3]);
    let (values, expected) = (elements(&outputs[0]), file(&format!("resize_{name}.rgb")));
    assert_eq!(values.len(), expected.len());
    let distances = values.iter().zip(&expected).map(|(a, b)| (a - f32::from(*b)).abs());
    let worst = distances.clone().fold(0.0, f32::max);
    (worst, distances.sum::<f32>() / values.len() as f32)
}

#[test]
fn filters_are_those_of_pil() {
    for filter in ["bilinear", "box", "lanczos", "nearest"] {
        for (name, width, height) in [("down", 23, 19), ("up", 80, 50)] {
            let (worst, _) =
                apart(&format!("{filter}_{name}"), width, height, &[("filter", filter)]);
            assert!(worst <= 1.0, "{filter} {name}: {worst} apart");
        }
    }
}

#[test]
fn without_antialias_bilinear_is_that_of_opencv() {
    let parameters = [("antialias", "false")];
    for (name, width, height) in [("down", 23, 19), ("up", 80, 50)] {
        let (worst, mean) = apart(&format!("opencv_{name}"), width, height, &parameters);
        assert!(worst <= 2.0 && mean < 0.5, "{name}: {worst} apart, {mean} in the mean");
    }
}

#[test]
fn a_box_of_whole_pixels_is_an_area() {
    let drawn = file("resize.rgb");
    let rows = drawn.chunks_exact(61 * 3).take(42).flat_map(|row| &row[..60 * 3]);
    let parameters = [("mode", "stretch"), ("width", "20"), ("height", "14"), ("filter", "box")];
    let outputs = resize(NHWC, &parameters, 60, 42, rows.copied().collect());
    let expected = file("resize_opencv_area.rgb");
    for (value, expected) in elements(&outputs[0]).into_iter().zip(expected) {
        assert!((value - f32::from(expected)).abs() <= 1.0);
    }
}

#[test]
fn a_letterbox_of_normalized_planes_is_numpys() {
    let parameters = [
        ("mode", "letterbox"),
        ("width", "40"),
        ("height", "32"),
        ("pad_value", "114"),
        ("mean", "103.53, 116.28, 123.675"),
        ("std", "57.375,57.12,58.395"),
        ("layout", "NCHW"),
        ("channels", "BGR"),
    ];
    let outputs = format!("{TRANSFORM} {NCHW}");
    let outputs = resize(&outputs, &parameters, DRAWN[0], DRAWN[1], file("resize.rgb"));
    assert_eq!(elements(&outputs[0]), [40.0 / 61.0, 28.0 / 43.0, 0.0, 2.0]);
    assert_eq!(outputs[1].shape(), [3, 32, 40]);
    let expected = file("resize_letterbox.f32");
    let expected = expected.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it));
    // One step of a byte is 1 / 57: the filter may round otherwise than PIL.
    for (index, (value, expected)) in elements(&outputs[1]).into_iter().zip(expected).enumerate() {
        let y = index / 40 % 32;
        let within = if (2..30).contains(&y) { 0.018 } else { 1e-5 };
        assert!((value - expected).abs() <= within, "{index}: {value}, expected {expected}");
    }
}

#[test]
fn a_picture_of_the_right_size_keeps_its_values() {
    let pixels: Vec<u8> = (0..32 * 64 * 3).map(|it| (it * 7 % 256) as u8).collect();
    let values: Vec<f32> = pixels.iter().map(|it| f32::from(*it)).collect();
    let outputs = resize(&format!("{NHWC} {TRANSFORM}"), &[], 64, 32, pixels.clone());
    assert_eq!(outputs[0].shape(), [1, 32, 64, 3]);
    assert_eq!(elements(&outputs[0]), values);
    assert_eq!(outputs[0].data().as_ptr() as usize % 64, 0);
    assert_eq!(elements(&outputs[1]), [1.0, 1.0, 0.0, 0.0]);

    let scaled = [("scale", "2,3,0.5"), ("mean", "1,2,3"), ("channels", "BGR")];
    let outputs = resize(NHWC, &scaled, 64, 32, pixels.clone());
    let expected: Vec<f32> = values
        .as_chunks::<3>()
        .0
        .iter()
        .flat_map(|[r, g, b]| [(b - 1.0) * 2.0, (g - 2.0) * 3.0, (r - 3.0) * 0.5])
        .collect();
    assert_eq!(elements(&outputs[0]), expected);

    let outputs = resize(NCHW, &[("layout", "NCHW")], 64, 32, pixels);
    let plane = |channel: usize| values.iter().skip(channel).step_by(3);
    let planes: Vec<f32> = (0..3).flat_map(plane).copied().collect();
    assert_eq!(outputs[0].shape(), [3, 32, 64]);
    assert_eq!(elements(&outputs[0]), planes);
}

#[test]
fn sizes_become_multiples_near_the_pictures_own() {
    let check = |(of, min_side, max_side), size: (u32, u32), expected: (u32, u32)| {
        let fit = Fit::Multiple { of, min_side, max_side };
        let placed = fit.place(PictureSize { width: size.0, height: size.1 });
        let PictureSize { width, height } = placed.canvas;
        assert_eq!((width, height), expected, "{size:?} for {fit:?}");
        assert_eq!((placed.picture, placed.at), (placed.canvas, (0, 0)));
    };
    let usual = (32, 32, 2400);
    check(usual, (640, 480), (640, 480));
    check(usual, (655, 465), (640, 480));
    check(usual, (656, 463), (672, 448));
    check(usual, (2400, 100), (2400, 96));
    check(usual, (4800, 3200), (2400, 1600));
    check(usual, (1, 1), (32, 32));
    check(usual, (16, 300), (32, 608));
    check(usual, (65_535, 1), (2400, 32));
    check(usual, (1, 65_535), (32, 2400));
    check((32, 320, 1000), (100, 50), (640, 320));
    check((32, 320, 1000), (1000, 50), (992, 64));
    check((32, 32, 70), (640, 480), (64, 64));
    check((1, 1, 16_384), (61, 43), (61, 43));
}

#[test]
fn boxes_go_back_to_where_they_came_from() {
    let fits = [
        Fit::Multiple { of: 32, min_side: 32, max_side: 2400 },
        Fit::Stretch { canvas: PictureSize { width: 300, height: 200 } },
        Fit::Letterbox { canvas: PictureSize { width: 300, height: 200 }, align: Align::Center },
        Fit::Letterbox { canvas: PictureSize { width: 300, height: 200 }, align: Align::TopLeft },
    ];
    for fit in fits {
        for size in [(640, 480), (61, 43), (3, 1000), (1000, 3), (1, 1), (65_535, 65_535)] {
            let size = PictureSize { width: size.0, height: size.1 };
            let placed = fit.place(size);
            let [scale_x, scale_y, x, y] = placed.transform(size);
            let right = size.width as f32 * scale_x + x;
            let bottom = size.height as f32 * scale_y + y;
            let PlacedPicture { canvas, picture, at } = placed;
            assert_eq!((x, y), (at.0 as f32, at.1 as f32));
            assert!((right - (at.0 + picture.width) as f32).abs() < 1e-3, "{fit:?} {size}");
            assert!((bottom - (at.1 + picture.height) as f32).abs() < 1e-3, "{fit:?} {size}");
            assert!(at.0 + picture.width <= canvas.width && at.1 + picture.height <= canvas.height);
            assert!(picture.width != 0 && picture.height != 0);
        }
    }
}

#[test]
fn a_mark_is_found_where_the_transform_says() {
    // White from (20, 10) to (30, 18) in black, edges of pixels.
    let (width, height) = (60, 40);
    let is_white = |x, y| (20..30).contains(&x) && (10..18).contains(&y);
    let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let pixels = pixels.flat_map(|(x, y)| [if is_white(x, y) { 255 } else { 0 }; 3]).collect();
    let parameters = [("mode", "letterbox"), ("width", "300"), ("height", "400")];
    let outputs = resize(&format!("{NHWC} {TRANSFORM}"), &parameters, width, height, pixels);
    let transform = elements(&outputs[1]);
    assert_eq!(transform, [5.0, 5.0, 0.0, 100.0]);
    let values = elements(&outputs[0]);
    let at = |x: f32, y: f32| values[(y as usize * 300 + x as usize) * 3];
    let [left, top, right, bottom] = [20.0, 10.0, 30.0, 18.0];
    let (x, y) = (|it: f32| it * 5.0, |it: f32| it * 5.0 + 100.0);
    // An antialiased edge is half as bright at the edge itself.
    for (outside, inside) in [
        (at(x(left) - 3.0, y(14.0)), at(x(left) + 3.0, y(14.0))),
        (at(x(right) + 3.0, y(14.0)), at(x(right) - 3.0, y(14.0))),
        (at(x(25.0), y(top) - 3.0), at(x(25.0), y(top) + 3.0)),
        (at(x(25.0), y(bottom) + 3.0), at(x(25.0), y(bottom) - 3.0)),
    ] {
        assert!(outside < 60.0 && 195.0 < inside, "{outside} outside, {inside} inside");
    }
}

#[test]
fn pictures_without_pixels_are_refused() {
    let op = prepare(&config(&text(NHWC, &[]))).unwrap();
    for shape in [[0, 5, 3], [5, 0, 3], [0, 0, 3], [1, 65_536, 3], [2, 2, 1], [2, 2, 4]] {
        let count = shape.iter().product::<i64>() as usize;
        let error = run(&op, &[&uint8(&shape, vec![0; count])]).unwrap_err().to_string();
        let [h, w, c] = shape;
        assert_eq!(
            error,
            format!(
                "input 'image' has shape [{h},{w},{c}], expected [height,width,3] with sides from 1 \
                 to 65535"
            )
        );
    }
}

#[test]
fn an_instance_works_on_after_a_large_picture() {
    let op = prepare(&config(&text(NHWC, &[("max_side", "64")]))).unwrap();
    let mut run = (op.open)();
    for (width, height) in [(40, 40), (2000, 9000), (40, 40), (3, 65_535), (500, 300)] {
        let picture = uint8(&[height, width, 3], vec![77; (width * height * 3) as usize]);
        let outputs = run(vec![Some(picture)], 0).unwrap();
        assert!(numbers(&outputs[0]).iter().all(|it| *it == 77.0));
    }
}

#[test]
fn configs_that_do_not_work_are_refused() {
    let refused = |outputs: &str, parameters: &[(&str, &str)], expected: &str| {
        let result = prepare(&config(&text(outputs, parameters)));
        let error = result.err().unwrap_or_else(|| panic!("{expected}")).to_string();
        assert!(error.starts_with("native model 'm'") && error.contains(expected), "{error}");
    };
    let letterbox =
        |key, value| vec![("mode", "letterbox"), ("width", "40"), ("height", "32"), (key, value)];
    for (parameters, expected) in [
        (vec![("mode", "fill")], "'mode' is 'fill', expected one of: multiple, letterbox, stretch"),
        (vec![("mode", "stretch")], "parameter 'width' is '', expected a number of pixels"),
        (
            vec![("width", "32")],
            "has the parameter 'width', expected one of: op, placement, mode, filter,",
        ),
        (
            vec![("size", "32")],
            "has the parameter 'size', expected one of: op, placement, mode, filter,",
        ),
        (letterbox("max_side", "64"), "has the parameter 'max_side', expected one of: "),
        (letterbox("height", "0"), "'height' is '0', expected a number from 1 to 16384"),
        (letterbox("align", "left"), "'align' is 'left', expected one of: center, top_left"),
        (letterbox("pad_value", "256"), "'pad_value' is '256', expected numbers from 0 to 255"),
        (vec![("multiple_of", "0")], "'multiple_of' is '0', expected a number from 1 to 1024"),
        (vec![("max_side", "31")], "'max_side' is '31', expected a number from 32 to 16384"),
        (vec![("min_side", "2401")], "'min_side' is '2401', expected a number from 32 to 2400"),
        (vec![("filter", "cubic")], "expected one of: bilinear, nearest, box, lanczos"),
        (vec![("filter", "box"), ("antialias", "true")], "expected nothing beside this filter"),
        (vec![("antialias", "yes")], "'antialias' is 'yes', expected one of: true, false"),
        (vec![("channels", "RGBA")], "'channels' is 'RGBA', expected one of: RGB, BGR"),
        (vec![("layout", "HWC")], "'layout' is 'HWC', expected one of: NHWC, NCHW"),
        (vec![("mean", "1,2")], "'mean' is '1,2', expected a number or 3 of them"),
        (vec![("mean", "NaN")], "'mean' is 'NaN', expected a number or 3 of them"),
        (vec![("std", "1,0,1")], "'std' is '1,0,1', expected numbers from"),
        (vec![("std", "2"), ("scale", "2")], "'scale' is '2', expected nothing beside parameter"),
        (vec![("layout", "NCHW")], "output 'input' has dims [1,-1,-1,3], expected [3,-1,-1] with"),
    ] {
        refused(NHWC, &parameters, expected);
    }
    let fixed = "output { name: 'input' data_type: TYPE_FP32 dims: [1,32,40,3] }";
    refused(fixed, &[], "output 'input' has dims [1,32,40,3], expected [-1,-1,3] with or without");
    assert!(prepare(&config(&text(fixed, &letterbox("align", "center")))).is_ok());
    refused(TRANSFORM, &[], "expected an FP32 output for the picture and at most one of dims [4]");
    let twice = format!("{NHWC} {}", NHWC.replace("input'", "again'"));
    refused(&twice, &[], "expected an FP32 output for the picture and at most one of dims [4]");
    let integers = NHWC.replace("FP32", "UINT8");
    refused(&integers, &[], "expected an FP32 output for the picture");
    let batched = "max_batch_size: 4 ".to_owned() + NHWC;
    refused(&batched, &[], "expected max_batch_size 0, pictures differ in size");
}
