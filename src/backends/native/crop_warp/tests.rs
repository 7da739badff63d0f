//! Crops against OpenCV's, and boxes no detector should give.

use super::{super::testing::*, *};

const CROPS: &[u8] = include_bytes!("../../../../tests/models/vision/crops.bin");

fn text(channels: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String = parameters.iter().map(|(key, value)| parameter(key, value)).collect();
    format!(
        "input {{ name: \"image\" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }}
         input {{ name: \"boxes\" data_type: TYPE_FP32 dims: [ -1, 4, 2 ] }}
         output {{ name: \"crops\" data_type: TYPE_FP32 dims: [ -1, {channels}, 32, 100 ] }}
         {parameters}"
    )
}

fn op(channels: &str, parameters: &[(&str, &str)]) -> Op {
    prepare(&config(&text(channels, parameters))).unwrap()
}

/// The picture `make_boxes.py` draws, too.
fn picture() -> Tensor {
    let wave = |it: usize| (it % 510).abs_diff(255) as u8;
    let pixel = |x: usize, y: usize| [wave(3 * x + y), wave(2 * y + x), wave(x + 4 * y)];
    let pixels = (0..240).flat_map(|y| (0..320).flat_map(move |x| pixel(x, y)));
    uint8(&[240, 320, 3], pixels.collect())
}

fn boxes(corners: &[f32]) -> Tensor {
    fp32(&[corners.len() as i64 / 8, 4, 2], corners.iter().copied())
}

fn square(x: f32, y: f32, side: f32) -> [f32; 8] {
    [x, y, x + side, y, x + side, y + side, x, y + side]
}

#[track_caller]
fn close(got: &[f32], expected: &[u8], what: &str) {
    assert_eq!(got.len(), expected.len());
    let differences = got.iter().zip(expected).map(|(a, b)| (a - f32::from(*b)).abs());
    let (most, sum) = differences.fold((0.0_f32, 0.0), |(most, sum), it| (most.max(it), sum + it));
    let mean = sum / got.len() as f32;
    assert!(most <= 1.5 && mean <= 0.45, "{what}: differs by up to {most}, {mean} on average");
}

#[test]
fn crops_are_those_of_opencv() {
    let plain = [("mean", "0"), ("scale", "1")];
    let quads = flat(&reference()["quads"]);
    let outputs = run(&op("1", &plain), &[&picture(), &boxes(&quads)]).unwrap();
    let crops = numbers(&outputs[0]);
    let count = quads.len() / 8;
    for (index, crop) in crops.chunks(3200).enumerate() {
        close(crop, &CROPS[index * 3200..][..3200], &format!("quad {index}"));
    }
    let last = boxes(&quads[quads.len() - 8..]);
    let outputs = run(&op("3", &plain), &[&picture(), &last]).unwrap();
    assert_eq!(outputs[0].as_ref().unwrap().shape(), [1, 3, 32, 100]);
    close(&numbers(&outputs[0]), &CROPS[count * 3200..], "RGB");
}

#[test]
fn any_number_of_crops_keeps_its_order() {
    // A column of pixels for each box, as bright as its place.
    let shade = |x: usize| [(x % 256) as u8, (x / 256 * 100) as u8, 9];
    let image = uint8(&[2, 300, 3], (0..600).flat_map(|it| shade(it % 300)).collect());
    let plain = [("mean", "0"), ("scale", "1")];
    let op = prepare(&config(&text("3", &plain).replace("32, 100", "2, 4"))).unwrap();
    for count in [0, 1, 7, 300] {
        let corners: Vec<f32> = (0..count).flat_map(|it| square(it as f32, 0.0, 0.0)).collect();
        let outputs = run(&op, &[&image, &boxes(&corners)]).unwrap();
        assert_eq!(outputs[0].as_ref().unwrap().shape(), [count as i64, 3, 2, 4]);
        for (index, crop) in numbers(&outputs[0]).chunks(24).enumerate() {
            for (plane, wanted) in crop.chunks(8).zip(shade(index)) {
                assert!(plane.iter().all(|it| (it - f32::from(wanted)).abs() < 1e-3), "{index}");
            }
        }
    }
}

#[test]
fn pixels_become_numbers_from_minus_one_to_one_unless_told_otherwise() {
    let image = uint8(&[1, 2, 3], vec![0, 0, 0, 255, 255, 255]);
    let both = boxes(&[square(0.0, 0.0, 0.0), square(1.0, 0.0, 0.0)].concat());
    let check = |op: &Op, expected: &[f32]| {
        let crops = numbers(&run(op, &[&image, &both]).unwrap()[0]);
        let firsts: Vec<f32> = crops.chunks(3200).map(|it| it[7]).collect();
        assert_eq!(firsts.len(), expected.len());
        assert!(firsts.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{firsts:?}");
    };
    check(&op("1", &[]), &[-1.0, 1.0]);
    check(&op("1", &[("mean", "55"), ("scale", "0.1")]), &[-5.5, 20.0]);
    let each = [("mean", "0, 55, 255"), ("scale", "1,1,-1")];
    check(&op("3", &each), &[0.0, -55.0, 255.0, 255.0, 200.0, 0.0]);
}

#[test]
fn boxes_of_every_kind_are_cut() {
    let all = [
        [f32::MAX; 8],
        [f32::MIN, f32::MIN, f32::MAX, f32::MIN, f32::MAX, f32::MAX, f32::MIN, f32::MAX],
        [0.0, 0.0, 9.0, 9.0, 9.0, 0.0, 0.0, 9.0],
        [0.0, 0.0, 9.0, 0.0, 1.0, 1.0, 0.0, 9.0],
        [0.0, 0.0, 5.0, 5.0, 9.0, 9.0, 3.0, 3.0],
        [-1e9, 4.0, 1e9, 4.0, 1e9, 5.0, -1e9, 5.0],
        [1e-38; 8],
    ];
    for image in [picture(), uint8(&[1, 1, 3], vec![3, 2, 1]), uint8(&[1, 9, 3], vec![7; 27])] {
        let outputs = run(&op("1", &[]), &[&image, &boxes(&all.concat())]).unwrap();
        assert!(numbers(&outputs[0]).iter().all(|it| (-1.001..=1.001).contains(it)));
    }
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let check = |op: &Op, (image, boxes): (&Tensor, &Tensor), text: &str| {
        assert_eq!(run(op, &[image, boxes]).unwrap_err().to_string(), text);
    };
    let op = op("1", &[("max_boxes", "2")]);
    let image = picture();
    let mut corners = [square(0.0, 0.0, 9.0); 2].concat();
    corners[13] = f32::NAN;
    let text = "input `boxes` has NaN in box 1, expected finite numbers";
    check(&op, (&image, &boxes(&corners)), text);
    corners[13] = f32::NEG_INFINITY;
    let text = "input `boxes` has -inf in box 1, expected finite numbers";
    check(&op, (&image, &boxes(&corners)), text);
    let text = "input `boxes` has 3 boxes, expected at most 2 (parameter 'max_boxes')";
    check(&op, (&image, &boxes(&[0.0; 24])), text);
    for shape in [[0, 5, 3], [5, 0, 3], [0, 0, 3]] {
        let nothing = uint8(&shape, vec![]);
        let text = "input `image` has no pixels to cut 1 boxes from";
        check(&op, (&nothing, &boxes(&[0.0; 8])), text);
        let outputs = run(&op, &[&nothing, &boxes(&[])]).unwrap();
        assert_eq!(outputs[0].as_ref().unwrap().shape(), [0, 1, 32, 100]);
    }
    let text = "input `image` has shape [2,2,1], expected [-1,-1,3]";
    check(&op, (&uint8(&[2, 2, 1], vec![0; 4]), &boxes(&[])), text);
}

#[test]
fn configs_that_do_not_fit_are_refused() {
    let check = |text: &str, expected: &str| {
        let error = prepare(&config(text)).err().unwrap().to_string();
        assert!(error.contains(expected), "{expected} is not in {error}");
    };
    for channels in ["2", "4", "-1"] {
        check(&text(channels, &[]), "expected an output FP32 crops [-1,channels,height,width]");
    }
    check(&text("1", &[]).replace("32, 100", "-1, 100"), "sides from 2 to 4096");
    check(&text("1", &[]).replace("32, 100", "1, 100"), "sides from 2 to 4096");
    check(&text("1", &[]).replace("UINT8", "FP32"), "inputs UINT8 image [-1,-1,3]");
    check(&text("1", &[("width", "3")]), "has the parameter 'width'");
    check(&text("1", &[("mean", "1,2,3")]), "'mean' is '1,2,3', expected a number");
    check(&text("3", &[("scale", "1,2")]), "'scale' is '1,2', expected a number or 3 of them");
    check(&text("3", &[("scale", "inf")]), "'scale' is 'inf'");
    check(&text("3", &[("max_boxes", "100000")]), "crops of 2 GiB at most");
    check(&format!("{} max_batch_size: 4", text("1", &[])), "expected max_batch_size 0");
}
