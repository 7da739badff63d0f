//! Texts against a plain decoder's, and logits no recogniser should give.

use super::{super::testing::*, *};

const LOGITS: &[u8] = include_bytes!("../../../../tests/models/vision/logits.bin");

/// A model that reads "a" and "b", of three classes.
fn small(parameters: &[(&str, &str)]) -> Op {
    let mut all = vec![("alphabet", "ab")];
    all.extend(parameters);
    prepare(&config(&text("[ -1, -1, 3 ]", "[ -1 ]", &all))).unwrap()
}

fn text(input: &str, output: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String = parameters.iter().map(|(key, value)| parameter(key, value)).collect();
    format!(
        "input {{ name: \"logits\" data_type: TYPE_FP32 dims: {input} }}
         output {{ name: \"text\" data_type: TYPE_STRING dims: {output} }}
         output {{ name: \"confidence\" data_type: TYPE_FP32 dims: {output} }} {parameters}"
    )
}

/// Logits that say each class of `rows` clearly; `steps` a row.
fn clear(rows: &[&str], steps: usize) -> Tensor {
    let step = |class: char| ['-', 'a', 'b'].map(|it| if it == class { 20.0 } else { 0.0 });
    let elements = rows.iter().flat_map(|row| row.chars().flat_map(step));
    fp32(&[rows.len() as i64, steps as i64, 3], elements)
}

fn texts(outputs: &Tensors) -> Vec<String> {
    let strings = outputs[0].as_ref().unwrap().strings();
    strings.map(|it| String::from_utf8(it.to_vec()).unwrap()).collect()
}

#[test]
fn texts_are_those_of_a_plain_decoder() {
    let op = prepare(&config(&text("[ -1, 26, 37 ]", "[ -1 ]", &[]))).unwrap();
    let count = (LOGITS.len() / (26 * 37)) as i64;
    let logits = LOGITS.iter().map(|it| f32::from(it.cast_signed()) / 8.0);
    let outputs = run(&op, &[&fp32(&[count, 26, 37], logits)]).unwrap();
    let confidences = numbers(&outputs[1]);
    let reference = reference();
    let expected = reference["texts"].as_array().unwrap();
    assert_eq!(expected.len(), count as usize);
    for ((text, confidence), wanted) in texts(&outputs).iter().zip(confidences).zip(expected) {
        assert_eq!(text, &wanted[0]);
        assert!((f64::from(confidence) - wanted[1].as_f64().unwrap()).abs() < 1e-4, "{wanted}");
    }
}

#[test]
fn repeats_are_one_symbol_unless_a_blank_is_between() {
    let rows = ["aabb", "a-a-", "----", "abab", "-aa-", "bbbb"];
    let outputs = run(&small(&[]), &[&clear(&rows, 4)]).unwrap();
    assert_eq!(texts(&outputs), ["ab", "aa", "", "abab", "a", "b"]);
    let confidences = numbers(&outputs[1]);
    assert_eq!(confidences[2], 0.0);
    assert!(confidences.iter().enumerate().all(|(row, it)| row == 2 || 0.99 < *it));
}

#[test]
fn confidence_is_the_mean_of_each_symbols_best() {
    let odds = |a: f32, b: f32| [(1.0 - a - b).ln(), a.ln(), b.ln()];
    let steps = [odds(0.5, 0.1), odds(0.9, 0.05), odds(0.2, 0.6), odds(0.01, 0.01)];
    let outputs = run(&small(&[]), &[&fp32(&[1, 4, 3], steps.concat())]).unwrap();
    assert_eq!(texts(&outputs), ["ab"]);
    assert!((numbers(&outputs[1])[0] - 0.75).abs() < 1e-5);
}

#[test]
fn any_number_of_rows_keeps_its_order() {
    for count in [0, 1, 7, 300_usize] {
        let word = |it: usize| (0..9).map(move |bit| if it >> bit & 1 == 1 { "a-" } else { "b-" });
        let words: Vec<String> = (0..count).map(|it| word(it).collect()).collect();
        let rows: Vec<&str> = words.iter().map(String::as_str).collect();
        let outputs = run(&small(&[]), &[&clear(&rows, 18)]).unwrap();
        let expected: Vec<String> = words.iter().map(|it| it.replace('-', "")).collect();
        assert_eq!(texts(&outputs), expected);
        assert_eq!(outputs[0].as_ref().unwrap().shape(), [count as i64]);
        assert_eq!(outputs[1].as_ref().unwrap().shape(), [count as i64]);
    }
}

#[test]
fn steps_may_come_first_and_the_blank_last() {
    let rows = clear(&["-aab", "bab-"], 4);
    let all = numbers(&Some(rows));
    let turned = (0..4).flat_map(|step| (0..2).flat_map(move |row| [(row, step)]));
    let turned: Vec<f32> =
        turned.flat_map(|(row, step)| all[(row * 4 + step) * 3..][..3].to_vec()).collect();
    let outputs = run(&small(&[("layout", "TNC")]), &[&fp32(&[4, 2, 3], turned)]).unwrap();
    assert_eq!(texts(&outputs), ["ab", "bab"]);
    // With class 2 the blank, classes 0 and 1 are what `clear` calls `-` and `a`.
    let other = [("alphabet", "ñ文"), ("blank", "2")];
    let outputs = run(&small(&other), &[&clear(&["-aab", "bab-"], 4)]).unwrap();
    assert_eq!(texts(&outputs), ["ñ文", "文ñ"]);
}

#[test]
fn a_model_that_batches_gives_a_row_of_one_text_each() {
    let wide = text("[ -1, 3 ]", "[ 1 ]", &[("alphabet", "ab")]) + " max_batch_size: 8";
    let outputs = run_rows(&prepare(&config(&wide)).unwrap(), &[&clear(&["ab", "bb"], 2)], 2);
    let outputs = outputs.unwrap();
    assert_eq!(outputs[0].as_ref().unwrap().shape(), [2, 1]);
    assert_eq!(outputs[1].as_ref().unwrap().shape(), [2, 1]);
    assert_eq!(texts(&outputs), ["ab", "b"]);
    let scalar = wide.replacen("dims: [ 1 ]", "dims: [ 1 ] reshape { shape: [ ] }", 1);
    let outputs = run_rows(&prepare(&config(&scalar)).unwrap(), &[&clear(&["ab"], 2)], 1);
    assert_eq!(outputs.unwrap()[0].as_ref().unwrap().shape(), [1]);
}

#[test]
fn logits_that_are_no_numbers_never_win() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let steps = [[nan, -9.0, nan], [-inf, nan, -5.0], [nan, inf, 3.0], [inf, nan, inf]];
    let outputs = run(&small(&[]), &[&fp32(&[1, 4, 3], steps.concat())]).unwrap();
    assert_eq!(texts(&outputs), ["aba"]);
    assert_eq!(numbers(&outputs[1]), [1.0]);
    for step in [[nan; 3], [-inf; 3], [nan, -inf, nan]] {
        let steps = [[[0.0; 3]; 3].concat(), step.to_vec()].concat();
        let error = run(&small(&[]), &[&fp32(&[2, 2, 3], steps)]).unwrap_err().to_string();
        assert_eq!(error, "input `logits` has no number but NaN and -inf in row 1, step 1");
    }
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let check = |shape: &[i64], text: &str| {
        let error = run(&small(&[]), &[&fp32(shape, vec![0.0; 24 * usize::from(shape[1] != 0)])]);
        assert_eq!(error.unwrap_err().to_string(), text);
    };
    check(&[2, 3, 4], "input `logits` has shape [2,3,4], expected [-1,-1,3]");
    // A count without bytes behind it must not become memory.
    check(&[1 << 40, 0, 3], "input `logits` has no steps to read");
}

#[test]
fn configs_that_do_not_fit_are_refused() {
    let check = |text: &str, expected: &str| {
        let error = prepare(&config(text)).err().unwrap().to_string();
        assert!(error.contains(expected), "{expected} is not in {error}");
    };
    let of = |parameters: &[(&str, &str)]| text("[ -1, 26, 37 ]", "[ -1 ]", parameters);
    check(&of(&[("alphabet", "abc")]), "expected one input FP32 [-1,-1,4]");
    check(&of(&[("alphabet", "")]), "'alphabet' is '', expected the symbols");
    check(&of(&[("blank", "37")]), "'blank' is '37', expected a number from 0 to 36");
    check(&of(&[("layout", "CTN")]), "'layout' is 'CTN', expected one of: NTC, TNC");
    check(&of(&[("mode", "beam")]), "'mode' is 'beam', expected one of: greedy");
    check(&of(&[("beams", "4")]), "has the parameter 'beams'");
    check(&of(&[]).replace("[ -1 ]", "[ 1 ]").replacen("[ 1 ]", "[ -1, 1 ]", 1), "outputs STRING");
    let batched = text("[ 26, 37 ]", "[ 1 ]", &[("layout", "TNC")]) + " max_batch_size: 8";
    check(&batched, "'layout' is 'TNC', expected NTC, as the model batches");
}

#[test]
fn only_what_is_surely_quick_shares_a_thread() {
    let placement = |text: &str| prepare(&config(&without_confidence(text))).unwrap().placement;
    let by_bytes = Placement::SharedUpTo(4 << 16);
    assert_eq!(placement(&text("[ -1, 26, 37 ]", "[ -1 ]", &[])), by_bytes);
    assert_eq!(placement(&text("[ 40, 26, 37 ]", "[ -1 ]", &[])), Placement::Shared);
    let batched =
        |size: u32| text("[ 26, 37 ]", "[ 1 ]", &[]) + &format!(" max_batch_size: {size}");
    assert_eq!(placement(&batched(32)), Placement::Shared);
    assert_eq!(placement(&batched(100)), by_bytes);

    let placement = |text: &str| prepare(&config(text)).unwrap().placement;
    let by_bytes = Placement::SharedUpTo(4 << 13);
    assert_eq!(placement(&text("[ -1, 26, 37 ]", "[ -1 ]", &[])), by_bytes);
    assert_eq!(placement(&text("[ 40, 26, 37 ]", "[ -1 ]", &[])), by_bytes);
    assert_eq!(placement(&batched(8)), Placement::Shared);
    assert_eq!(placement(&batched(9)), by_bytes);
}

/// Its last output is that.
fn without_confidence(text: &str) -> String {
    let (before, output) = text.rsplit_once("output {").unwrap();
    let (_, after) = output.split_once('}').unwrap();
    format!("{before}{after}")
}
