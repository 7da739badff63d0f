//! Answers as they are printed.

use troupe_proto::inference::{
    InferParameter, ModelInferResponse, infer_parameter::ParameterChoice,
    model_infer_response::InferOutputTensor,
};

use super::{PrintLimits, json, tables};

fn answer(outputs: &[(&str, &str, &[i64], Vec<u8>)]) -> ModelInferResponse {
    let output = |(name, datatype, shape, _): &(&str, &str, &[i64], Vec<u8>)| InferOutputTensor {
        name: (*name).to_owned(),
        datatype: (*datatype).to_owned(),
        shape: shape.to_vec(),
        ..InferOutputTensor::default()
    };
    ModelInferResponse {
        model_name: "m".to_owned(),
        model_version: "1".to_owned(),
        outputs: outputs.iter().map(output).collect(),
        raw_output_contents: outputs.iter().map(|it| it.3.clone().into()).collect(),
        ..ModelInferResponse::default()
    }
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn texts(values: &[&str]) -> Vec<u8> {
    let one = |it: &&str| [&(it.len() as u32).to_le_bytes(), it.as_bytes()].concat();
    values.iter().flat_map(one).collect()
}

#[track_caller]
fn check(answer: &ModelInferResponse, expected: &str) {
    let printed = tables(answer, PrintLimits::SHORT).unwrap();
    assert_eq!(printed, expected, "\n{printed}");
}

#[test]
fn outputs_with_as_many_rows_stand_side_by_side() {
    let answer = answer(&[
        ("text", "BYTES", &[2], texts(&["stop", "naïve\n"])),
        ("count", "INT64", &[], 2i64.to_le_bytes().to_vec()),
        ("scores", "FP32", &[2], floats([0.98, 1e-7])),
        ("boxes", "FP32", &[2, 2, 2], floats((0..8).map(|it| it as f32 / 2.0))),
    ]);
    check(
        &answer,
        "\
+---+-----------+----------+--------------------------+
|   | text      | scores   | boxes                    |
|   | BYTES [2] | FP32 [2] | FP32 [2,2,2]             |
+---+-----------+----------+--------------------------+
| 0 | stop      | 0.98     | [[0.0, 0.5], [1.0, 1.5]] |
| 1 | naïve\\n   | 1e-7     | [[2.0, 2.5], [3.0, 3.5]] |
+---+-----------+----------+--------------------------+
+----------+
| count    |
| INT64 [] |
+----------+
| 2        |
+----------+
",
    );
}

#[test]
fn long_tensors_are_shortened() {
    let row = answer(&[("y", "UINT8", &[1, 1, 2, 12], (0..24).collect())]);
    check(
        &row,
        "\
+---------------------------------------------------------------+
| y                                                             |
| UINT8 [1,1,2,12]                                              |
+---------------------------------------------------------------+
| [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, …]] |
+---------------------------------------------------------------+
",
    );
    let rows = answer(&[("y", "UINT8", &[200], (0..200).collect())]);
    let printed = tables(&rows, PrintLimits::SHORT).unwrap();
    assert_eq!(printed.lines().count(), 4 + 20 + 1 + 1, "{printed}");
    assert!(printed.contains("| …  | … 180 more  |"), "{printed}");
    let printed = tables(&rows, PrintLimits::NONE).unwrap();
    assert_eq!(printed.lines().count(), 4 + 200 + 1, "{printed}");
}

#[test]
fn an_answer_without_rows_is_a_header() {
    let nothing = answer(&[("y", "FP32", &[0, 4], Vec::new())]);
    let expected =
        "+------------+\n| y          |\n| FP32 [0,4] |\n+------------+\n+------------+\n";
    check(&nothing, expected);
    check(&answer(&[]), "");
}

#[test]
fn a_batch_of_one_is_shown_as_its_row() {
    let answer = answer(&[
        ("text", "BYTES", &[1, 2], texts(&["a", "b"])),
        ("box", "UINT8", &[1, 2, 2], vec![1, 2, 3, 4]),
    ]);
    check(
        &answer,
        "\
+---+-------------+---------------+
|   | text        | box           |
|   | BYTES [1,2] | UINT8 [1,2,2] |
+---+-------------+---------------+
| 0 | a           | [1, 2]        |
| 1 | b           | [3, 4]        |
+---+-------------+---------------+
",
    );
}

#[test]
fn json_is_nested_as_the_shapes_say() {
    let mut answer = answer(&[
        ("y", "FP32", &[1, 2, 1], floats([0.1, f32::NAN])),
        ("t", "BYTES", &[], texts(&["a\"b"])),
        ("n", "INT8", &[2, 0], Vec::new()),
    ]);
    let note = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(7)) };
    answer.parameters.insert("note".to_owned(), note);
    let expected = concat!(
        r#"{"model_name":"m","model_version":"1","parameters":{"note":7},"outputs":["#,
        r#"{"name":"y","datatype":"FP32","shape":[1,2,1],"data":[[[0.1],["NaN"]]]},"#,
        r#"{"name":"t","datatype":"BYTES","shape":[],"data":"a\"b"},"#,
        r#"{"name":"n","datatype":"INT8","shape":[2,0],"data":[]}]}"#,
        "\n"
    );
    assert_eq!(json(&answer).unwrap(), expected);
    let printed = tables(&answer, PrintLimits::SHORT).unwrap();
    assert!(printed.contains("| note      | 7     |"), "{printed}");
}

#[test]
fn an_answer_that_contradicts_itself_is_told() {
    let mut short = answer(&[("y", "FP32", &[2], vec![0; 4])]);
    let error = tables(&short, PrintLimits::SHORT).unwrap_err();
    assert_eq!(
        error,
        "the server's answer for `y` cannot be read: shape [2] of FP32 needs 8 bytes, got 4"
    );
    short.raw_output_contents.clear();
    assert_eq!(json(&short).unwrap_err(), "the server's answer for `y` has no data");
    short.outputs[0].datatype = "X".to_owned();
    assert_eq!(json(&short).unwrap_err(), "the server's answer for `y` is of type `X`");
}
