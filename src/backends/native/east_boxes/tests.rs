//! Boxes against OpenCV's, and maps no detector should give.

use std::cell::Cell;

use serde_json::Value;

use super::{super::testing::*, *};

const TENSORS: &str = "
    input { name: \"score\" data_type: TYPE_FP32 dims: [ 1, -1, -1, 1 ] }
    input { name: \"geometry\" data_type: TYPE_FP32 dims: [ 1, -1, -1, 5 ] }
    input { name: \"transform\" data_type: TYPE_FP32 dims: [ 4 ] optional: true }
    output { name: \"boxes\" data_type: TYPE_FP32 dims: [ -1, 4, 2 ] }
    output { name: \"scores\" data_type: TYPE_FP32 dims: [ -1 ] }";

fn op(parameters: &[(&str, &str)]) -> Op {
    let parameters: String = parameters.iter().map(|(key, value)| parameter(key, value)).collect();
    prepare(&config(&format!("{TENSORS}{parameters}"))).unwrap()
}

/// The op's own state, without a config.
fn defaults() -> EastBoxes {
    EastBoxes {
        score_threshold: 0.5,
        limits: SuppressionLimits { threshold: 0.4, boxes: 1000, pairs: MAX_PAIRS },
        max_candidates: 100_000,
        stride: 4.0,
        padding: 0.0,
        names: vec![String::new(); 3],
    }
}

/// Maps of nothing but these cells: row, column, score and geometry.
fn maps(height: usize, width: usize, cells: &[(usize, usize, f32, [f32; 5])]) -> [Tensor; 2] {
    let mut score = vec![0.0; height * width];
    let mut geometry = vec![0.0; height * width * 5];
    for (row, column, value, distances) in cells {
        let cell = row * width + column;
        score[cell] = *value;
        geometry[cell * 5..][..5].copy_from_slice(distances);
    }
    let shape = |last: i64| [1, height as i64, width as i64, last];
    [fp32(&shape(1), score), fp32(&shape(5), geometry)]
}

/// Runs the op; the corners of each box, and the scores.
fn find(op: &Op, inputs: &[&Tensor]) -> Result<(Vec<[f32; 8]>, Vec<f32>)> {
    let outputs = run(op, inputs)?;
    let (corners, scores) = (numbers(&outputs[0]), numbers(&outputs[1]));
    assert_eq!(outputs[0].as_ref().unwrap().shape(), [scores.len() as i64, 4, 2]);
    Ok((corners.as_chunks().0.to_vec(), scores))
}

#[track_caller]
fn refuses(inputs: &[&Tensor], text: &str) {
    let error = find(&op(&[]), inputs).unwrap_err().to_string();
    assert_eq!(error, text);
}

#[test]
fn boxes_are_those_that_opencv_keeps() {
    let steps = [1.0 / 1000.0, 0.25, 0.25, 0.25, 0.25, 1.0 / 1000.0];
    for map in reference()["maps"].as_array().unwrap() {
        let read = |cell: &Value| {
            let cell = flat(cell);
            let value = |index: usize| cell[2 + index] * steps[index];
            let geometry = std::array::from_fn(|index| value(index + 1));
            (cell[0] as usize, cell[1] as usize, value(0), geometry)
        };
        let cells: Vec<_> = map["cells"].as_array().unwrap().iter().map(read).collect();
        let side = |name: &str| flat(&map[name])[0] as usize;
        let [score, geometry] = maps(side("height"), side("width"), &cells);
        let (boxes, scores) = find(&op(&[]), &[&score, &geometry]).unwrap();
        let close = |a: &[f32], b: &[f32]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 0.01)
        };
        assert!(close(&scores, &flat(&map["scores"])), "{scores:?} {}", map["scores"]);
        assert!(close(boxes.as_flattened(), &flat(&map["boxes"])), "{boxes:?} {}", map["boxes"]);
    }
}

#[test]
fn a_box_is_turned_as_its_text_and_mapped_to_the_picture() {
    let quarter = std::f32::consts::FRAC_PI_2;
    let [score, geometry] = maps(4, 4, &[(1, 2, 0.9, [1.0, 5.0, 2.0, 3.0, quarter])]);
    // A quarter turn counter-clockwise: the text runs up, its top is to the left.
    let expected = [7.0, 7.0, 7.0, -1.0, 10.0, -1.0, 10.0, 7.0];
    let check = |op: &Op, inputs: &[&Tensor], expected: [f32; 8]| {
        let (boxes, _) = find(op, inputs).unwrap();
        for (got, wanted) in boxes[0].iter().zip(expected) {
            assert!((got - wanted).abs() < 1e-4, "{boxes:?} {expected:?}");
        }
    };
    check(&op(&[]), &[&score, &geometry], expected);
    let transform = fp32(&[4], [0.5, 2.0, 1.0, -1.0]);
    let mapped = [12.0, 4.0, 12.0, 0.0, 18.0, 0.0, 18.0, 4.0];
    check(&op(&[]), &[&score, &geometry, &transform], mapped);
    let padded = [6.4, 7.6, 6.4, -1.6, 10.6, -1.6, 10.6, 7.6];
    check(&op(&[("padding", "0.2")]), &[&score, &geometry], padded);
    let moved = [3.0, 5.0, 3.0, -3.0, 6.0, -3.0, 6.0, 5.0];
    check(&op(&[("stride", "2")]), &[&score, &geometry], moved);
}

#[test]
fn better_boxes_come_first_and_equal_ones_in_the_order_of_the_map() {
    let at = |row: usize, column: usize, score: f32| (row, column, score, [1.0; 5]);
    let cells = [at(0, 0, 0.7), at(0, 5, 0.7), at(5, 0, 0.9), at(5, 5, 0.5), at(9, 9, 0.7)];
    let [score, geometry] = maps(10, 10, &cells);
    let scores = |op: &Op| find(op, &[&score, &geometry]).unwrap();
    let (boxes, found) = scores(&op(&[]));
    assert_eq!(found, [0.9, 0.7, 0.7, 0.7], "a cell at the threshold is no box");
    assert!(boxes[1][0] < boxes[2][0] && boxes[2][1] < boxes[3][1]);
    assert_eq!(scores(&op(&[("max_boxes", "2")])).0, boxes[..2]);
    assert_eq!(scores(&op(&[("max_candidates", "3")])).0, boxes[..3]);
    assert_eq!(scores(&op(&[("score_threshold", "0.8")])).1, [0.9]);
    assert_eq!(scores(&op(&[("score_threshold", "0.4")])).1.len(), 5);
}

#[test]
fn of_overlapping_boxes_the_best_stays() {
    let wide = |column: usize, score: f32| (4, column, score, [5.0, 10.0, 5.0, 10.0, 0.0]);
    let [score, geometry] = maps(9, 9, &[wide(1, 0.6), wide(2, 0.9), wide(4, 0.8)]);
    // The neighbours of the best share 16 of 24 and 12 of 28 columns with it.
    let check = |threshold: &str, expected: &[f32]| {
        let op = op(&[("nms_threshold", threshold)]);
        assert_eq!(find(&op, &[&score, &geometry]).unwrap().1, expected, "{threshold}");
    };
    check("0.4", &[0.9]);
    check("0.5", &[0.9, 0.8]);
    check("0.7", &[0.9, 0.8, 0.6]);
    check("0", &[0.9]);
    let small = (4, 5, 0.7, [1.0, 1.0, 1.0, 1.0, 0.3]);
    let [score, geometry] = maps(9, 9, &[wide(4, 0.8), small]);
    let (_, inside) = find(&op(&[]), &[&score, &geometry]).unwrap();
    assert_eq!(inside, [0.8], "a box inside another is the same word");
}

#[test]
fn maps_without_boxes_give_none() {
    let none = |inputs: &[&Tensor]| assert_eq!(find(&op(&[]), inputs).unwrap().0.len(), 0);
    for [height, width] in [[0, 0], [0, 7], [7, 0], [1, 1], [3, 5]] {
        let [score, geometry] = maps(height, width, &[]);
        none(&[&score, &geometry]);
    }
    let flat = [[-1.0, 3.0, 1.0, 3.0, 0.0], [2.0, -5.0, 2.0, 3.0, 0.0], [0.0; 5]];
    for distances in flat {
        let [score, geometry] = maps(1, 1, &[(0, 0, 0.9, distances)]);
        none(&[&score, &geometry]);
    }
    let [score, geometry] = maps(1, 1, &[(0, 0, 0.9, [-2.0, 3.0, 4.0, 3.0, 0.0])]);
    assert_eq!(find(&op(&[]), &[&score, &geometry]).unwrap().0.len(), 1, "below its cell");
}

#[test]
fn broken_maps_are_refused_with_their_place() {
    for (value, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let [score, geometry] = maps(3, 4, &[(1, 2, value, [1.0; 5]), (2, 0, value, [1.0; 5])]);
        let text = format!("input `score` is {text} at row 1, column 2, expected a finite number");
        refuses(&[&score, &geometry], &text);
    }
    for (value, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-2e6, "-2000000")] {
        for place in 0..5 {
            let mut distances = [1.0; 5];
            distances[place] = value;
            let [score, geometry] = maps(3, 4, &[(2, 3, 0.9, distances)]);
            let text = format!(
                "input `geometry` is {text} at row 2, column 3, expected a number from -1000000 to \
                 1000000"
            );
            refuses(&[&score, &geometry], &text);
            let [score, geometry] = maps(3, 4, &[(2, 3, 0.1, distances)]);
            assert!(find(&op(&[]), &[&score, &geometry]).is_ok(), "no box is there");
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let [score, geometry] = maps(3, 4, &[]);
    let [other, _] = maps(4, 3, &[]);
    refuses(&[&other, &geometry], "input `geometry` has shape [1,3,4,5], expected [1,4,3,5]");
    let two = fp32(&[2, 3, 4, 1], [0.0; 24]);
    refuses(&[&two, &geometry], "input `score` has shape [2,3,4,1], expected [1,-1,-1,1]");
    let error = find(&op(&[]), &[&score]).unwrap_err();
    assert_eq!(error.to_string(), "input `geometry` is missing");
    for values in [[0.0, 1.0, 0.0, 0.0], [1.0, -1.0, 0.0, 0.0], [1.0, 1.0, f32::NAN, 0.0]] {
        let error = find(&op(&[]), &[&score, &geometry, &fp32(&[4], values)]).unwrap_err();
        assert!(error.to_string().contains("expected two scales above 0"), "{error}");
    }
    let [score, geometry] = maps(1, 1, &[(0, 0, 0.9, [9.0; 5])]);
    let tiny = fp32(&[4], [1e-38, 1.0, 0.0, 0.0]);
    refuses(&[&score, &geometry, &tiny], "the transform takes boxes out of the range of FP32");
}

#[test]
fn configs_that_do_not_fit_are_refused() {
    let check = |config: &ModelConfig, text: &str| {
        let error = prepare(config).err().unwrap().to_string();
        assert!(error.contains(text), "{text} is not in {error}");
    };
    let with = |key: &str, value: &str| config(&format!("{TENSORS}{}", parameter(key, value)));
    check(&with("scor_threshold", "1"), "has the parameter 'scor_threshold', expected one of: op,");
    check(
        &with("score_threshold", "1.5"),
        "'score_threshold' is '1.5', expected a number from 0 to 1",
    );
    check(&with("nms_threshold", "NaN"), "'nms_threshold' is 'NaN', expected");
    check(&with("max_boxes", "0"), "'max_boxes' is '0', expected a number from 1 to 10000");
    check(&with("max_candidates", "-1"), "'max_candidates' is '-1'");
    check(&with("stride", "0"), "'stride' is '0'");
    check(&with("padding", "inf"), "'padding' is 'inf'");
    check(&config(&format!("{TENSORS} max_batch_size: 2")), "expected max_batch_size 0");
    let swapped = TENSORS.replace("-1, 1 ]", "-1, 6 ]");
    check(&config(&swapped), "inputs FP32 score [1,-1,-1,1], geometry [1,-1,-1,5]");
    check(&config(&TENSORS.replace("4, 2 ]", "8 ]")), "outputs FP32 boxes [-1,4,2]");
}

#[test]
fn a_map_of_nothing_but_boxes_is_bounded() {
    let side = 744;
    let cells = side * side;
    let score =
        fp32(&[1, side, side, 1], (0..cells).map(|it| 0.6 + (it * 7919 % 997) as f32 / 4e3));
    let distance = |it: i64| match it % 5 {
        4 => (it % 314) as f32 / 200.0 - 0.78,
        _ => (it * 7919 % 61) as f32 + 1.0,
    };
    let geometry = fp32(&[1, side, side, 5], (0..cells * 5).map(distance));
    let map = cells::Map { width: side as usize, score: &score, geometry: &geometry };
    let limits = SuppressionLimits { threshold: 0.4, boxes: 50, pairs: 100_000 };
    let op = EastBoxes { max_candidates: 2000, limits, ..defaults() };
    let candidates = map.candidates(&op).unwrap();
    assert_eq!(candidates.len(), op.max_candidates);
    let looked_at = Cell::new(0);
    let boxes = candidates.into_iter().map(|it| {
        looked_at.set(looked_at.get() + 1);
        (it, map.rectangle(&op, it).unwrap())
    });
    let kept = suppress::keep(boxes, op.limits).unwrap();
    assert_eq!(kept.len(), op.limits.boxes);
    assert!(looked_at.get() <= op.max_candidates);
}

#[test]
fn boxes_made_to_cost_time_are_refused() {
    // A fan of long thin boxes: all lie near each other, none overlaps another by much.
    let fan = |it: usize| (40, 40, 0.9, [4.0, 900.0, 4.0, 900.0, 0.5 + it as f32 / 80.0]);
    let all = (0..40).map(|it| {
        let [score, geometry] = maps(41, 41, &[fan(it)]);
        let map = cells::Map { width: 41, score: &score, geometry: &geometry };
        let op = defaults();
        let candidate = map.candidates(&op).unwrap()[0];
        (candidate, map.rectangle(&op, candidate).unwrap())
    });
    let all: Vec<_> = all.collect();
    let keep = |pairs: usize| {
        let limits = SuppressionLimits { threshold: 0.4, boxes: 100, pairs };
        suppress::keep(all.iter().copied(), limits)
    };
    assert_eq!(keep(40 * 39 / 2).unwrap().len(), 40);
    let error = keep(40 * 39 / 2 - 1).unwrap_err().to_string();
    assert_eq!(error, "the maps have too many boxes over each other, expected at most 779 pairs");
}
