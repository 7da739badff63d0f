//! Texts, what they mean, and what is wrong with them.

use super::read::{MAX_TEXT_BYTES, ParsedText, read};
use crate::config::problem::{LineColumn, Problem};
use troupe_proto as proto;

/// What the text means, or each `line:column: problem`.
fn parse(text: &str) -> Result<ParsedText, Vec<String>> {
    read(text, proto::model_config(), "f").map_err(|problems| {
        let text = |problem: Problem| problem.to_string().replacen("f:", "", 1);
        problems.into_iter().map(text).collect()
    })
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    match parse(text) {
        Ok(_) => assert!(expected.is_empty(), "no problem found, expected {expected:#?}"),
        Err(problems) => assert_eq!(problems, expected, "{text}"),
    }
}

/// Two texts say the same.
#[track_caller]
fn same(left: &str, right: &str) {
    let message = |text| {
        let parsed = parse(text).unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
        parsed.message.transcode_to::<proto::inference::ModelConfig>().unwrap()
    };
    assert_eq!(message(left), message(right), "{left}");
}

#[test]
fn every_way_to_write_a_message_is_read() {
    let plain = r#"input { name: "a" dims: 1 dims: 2 } input { name: "b" }"#;
    same(r#"input: { name: "a", dims: [1, 2]; } input < name: 'b' >"#, plain);
    same(r#"input [ { name: "a" dims: [1] dims: 2 }, < name: "b" > ]"#, plain);
    same("input: [\n{ # one\nname:\"a\" dims:[1,2]},{name:\"b\"}]; # two", plain);
    same("\u{feff}name: \"x\"", "name: 'x'");
    same("input []", "");
    same("# nothing", "");
}

#[test]
fn strings_are_joined_and_unescaped() {
    same(r#"name: "a" 'b' "\x63\u00e9\144""#, r#"name: "abcéd""#);
    same(r#"name: "it's" ' "so"'"#, r#"name: "it\'s \"so\"""#);
    same("name: \"two\nlines\"", r#"name: "two\nlines""#);
}

#[test]
fn numbers_booleans_and_enums_have_many_forms() {
    same("max_batch_size: 0x10", "max_batch_size: 020");
    same("max_batch_size: - 4", "max_batch_size: -4");
    same("input { dims: -1 }", "input { dims: - 0x1 }");
    same("input { optional: t }", "input { optional: 1 }");
    same("input { optional: True }", "input { optional: true }");
    same("input { optional: False }", "input { optional: 0 }");
    same("input { data_type: TYPE_FP32 }", "input { data_type: 11 }");
    let utilization =
        |value| format!("sequence_batching {{ direct {{ minimum_slot_utilization: {value} }} }}");
    for value in ["0.5", ".5", "5e-1", "0.5f", "5E-1F"] {
        same(&utilization(value), &utilization("0.50"));
    }
    same(&utilization("-inf"), &utilization("-Infinity"));
    same(&utilization("3"), &utilization("3."));
    same(
        "dynamic_batching { priority_levels: 18446744073709551615 }",
        "dynamic_batching { priority_levels: 0xFFFFFFFFFFFFFFFF }",
    );
    same("input { dims: -9223372036854775808 }", "input { dims: -0x8000000000000000 }");
    same("max_batch_size: -2147483648", "max_batch_size: -0x80000000");
}

#[test]
fn numbers_are_refused_in_protobufs_words() {
    let inflight = |value| format!("ensemble_scheduling {{ max_inflight_requests: {value} }}");
    check(&inflight("-1"), &["1:46: Expected integer, got: -"]);
    check(&inflight("\"abc\""), &["1:46: Expected integer, got: \"abc\""]);
    check(&inflight("12345678901"), &["1:46: Integer out of range (12345678901)"]);
    check(&inflight("1.5"), &["1:46: Expected integer, got: 1.5"]);
    check(
        &inflight("99999999999999999999999"),
        &["1:46: Integer out of range (99999999999999999999999)"],
    );
    check("max_batch_size: 2147483648", &["1:17: Integer out of range (2147483648)"]);
    check("max_batch_size: -2147483649", &["1:17: Integer out of range (2147483649)"]);
    check("max_batch_size: many", &["1:17: Expected integer, got: many"]);
    check("max_batch_size: {}", &["1:17: Expected integer, got: {"]);
    check("max_batch_size: [1]", &["1:17: Expected integer, got: ["]);
    check(
        "max_batch_size: 09",
        &[
            "1:17: Integer out of range (09)",
            "1:17: Numbers starting with leading zero must be in octal.",
        ],
    );
    check(
        "max_batch_size: 0x",
        &["1:17: \"0x\" must be followed by hex digits.", "1:17: Integer out of range (0x)"],
    );
}

#[test]
fn words_are_refused_in_protobufs_words() {
    check("name: x", &["1:7: Expected string, got: x"]);
    check("name \"x\"", &["1:6: Expected \":\", found \"\"x\"\"."]);
    check("input { dims [1] }", &["1:14: Expected \":\", found \"[\"."]);
    check("input: 5", &["1:8: Expected \"{\", found \"5\"."]);
    check(
        "input { optional: maybe }",
        &["1:19: Invalid value for boolean field \"optional\". Value: \"maybe\"."],
    );
    check("input { optional: 2 }", &["1:19: Integer out of range (2)"]);
    check("input { optional: \"x\" }", &["1:19: Expected identifier, got: \"x\""]);
    check(
        "input { data_type: TYPE_FP3 }",
        &[
            "1:20: Unknown enumeration value of \"TYPE_FP3\" for field \"data_type\". Did you mean `TYPE_FP32`?",
        ],
    );
    check(
        "input { data_type: 99 }",
        &["1:20: Unknown enumeration value of \"99\" for field \"data_type\"."],
    );
    check(
        "input { data_type: \"TYPE_FP32\" }",
        &["1:20: Expected integer or identifier, got: \"TYPE_FP32\""],
    );
    check("name: \"\\377\"", &["1:7: String field \"name\" contains invalid UTF-8."]);
}

#[test]
fn unknown_fields_are_named_and_the_rest_is_still_read() {
    check(
        "nme: \"x\"\ninput { nam: [1, {a: 2}] }\nzebra < a: 1 >\nmax_batch_size: x",
        &[
            "1:1: Message type \"inference.ModelConfig\" has no field named \"nme\". Did you mean `name`?",
            "2:9: Message type \"inference.ModelInput\" has no field named \"nam\". Did you mean `name`?",
            "3:1: Message type \"inference.ModelConfig\" has no field named \"zebra\".",
            "4:17: Expected integer, got: x",
        ],
    );
    check(
        "[a.b/c.d] { }",
        &[
            "1:1: Extension \"a.b/c.d\" is not defined or is not an extension of \"inference.ModelConfig\".",
        ],
    );
}

#[test]
fn a_field_is_given_once_and_a_choice_made_once() {
    check(
        "name: \"a\" name: \"a\"",
        &["1:11: Non-repeated field \"name\" is specified multiple times."],
    );
    check(
        "dynamic_batching { }\nsequence_batching { }",
        &[
            "2:1: Field \"sequence_batching\" is specified along with field \"dynamic_batching\", another member of oneof \"scheduling_choice\".",
        ],
    );
}

#[test]
fn broken_syntax_is_one_problem_after_those_before_it() {
    check(
        "nme: 1\ninput { name: \"a\"",
        &[
            "1:1: Message type \"inference.ModelConfig\" has no field named \"nme\". Did you mean `name`?",
            "2:18: Expected identifier, got:  (the bracket at 2:7 is not closed)",
        ],
    );
    check(
        "input [ { name: \"a\" ]",
        &["1:21: Expected identifier, got: ] (the bracket at 1:9 is not closed)"],
    );
    check("}", &["1:1: Expected identifier, got: }"]);
    check("input { >", &["1:9: Expected \"}\", found \">\"."]);
    check("name:", &["1:6: Expected string, got: "]);
    check("5: 3", &["1:1: Expected identifier, got: 5"]);
    check("input { dims: [1 2] }", &["1:18: Expected \",\", found \"2\"."]);
    check("input { dims: [1,] }", &["1:18: Expected integer, got: ]"]);
    check("input [ { name: \"a\" }, ]", &["1:24: Expected \"{\", found \"]\"."]);
    check("name: \"a", &["1:7: Unexpected end of string."]);
    check("[a", &["1:3: Expected identifier, got: "]);
    check("name: \"\\q\"", &["1:7: Invalid escape sequence in string literal."]);
    check("\u{1}name: 'x'", &["1:1: Invalid control characters encountered in text."]);
    check("name: é", &["1:7: Expected string, got: é"]);
    check(
        "max_batch_size: 1.2.3",
        &[
            "1:17: Already saw decimal point or exponent; can't have another one.",
            "1:17: Expected integer, got: 1.2",
            "1:20: Expected identifier, got: .3",
        ],
    );
}

#[test]
fn depth_and_size_have_limits() {
    let deep = "a { ".repeat(100_000);
    let problems = parse(&deep).err().unwrap_or_default();
    let last = problems.last().cloned().unwrap_or_default();
    assert!(last.contains("recursion limit of 100."), "{last}");
    let lists = format!("a: {}", "[".repeat(100_000));
    assert!(parse(&lists).is_err());
    let large = " ".repeat(MAX_TEXT_BYTES + 1);
    assert_eq!(
        parse(&large).err(),
        Some(vec![" the file has 16777217 bytes, expected at most 16777216".into()])
    );
}

#[test]
fn fields_are_found_where_they_stand() {
    let text = r#"
ensemble_scheduling {
  step [
    { model_name: "a" },
    {
      model_name: "b"
      input_map { key: "x" value: "y" }
      input_map { key: "a" value: "z" }
    }
  ]
}
parameters [ { key: "k" value { string_value: "v" } } ]
"#;
    let parsed = parse(text).unwrap_or_else(|problems| panic!("{problems:?}"));
    for (path, expected) in [
        ("ensemble_scheduling", "f:2:1"),
        ("ensemble_scheduling.step", "f:3:3"),
        ("ensemble_scheduling.step[0]", "f:4:5"),
        ("ensemble_scheduling.step[1].model_name", "f:6:7"),
        ("ensemble_scheduling.step[1].input_map[0]", "f:7:7"),
        ("ensemble_scheduling.step[1].input_map[\"a\"]", "f:8:7"),
        ("ensemble_scheduling.step[1].input_map[1].value", "f:8:28"),
        ("ensemble_scheduling.step[1].output_map", "f:5:5"),
        ("parameters[0]", "f:12:14"),
        ("parameters[\"k\"]", "f:12:14"),
        ("name", "f"),
    ] {
        assert_eq!(parsed.source_map.locate(path).to_string(), expected, "{path}");
    }
}

#[test]
fn the_last_of_two_values_for_a_key_is_kept_and_the_conflict_is_known() {
    let text = "metric_tags { key: 'a' value: '1' }\nmetric_tags { key: 'a' value: '2' }";
    same(text, "metric_tags { key: 'a' value: '2' }");
    let parsed = parse(text).unwrap_or_else(|problems| panic!("{problems:?}"));
    let found: Vec<_> = parsed.conflicts.iter().map(|it| (&*it.map, &*it.key, it.at)).collect();
    assert_eq!(found, [("metric_tags", "a", LineColumn { line: 2, column: 1 })]);
    let again = "metric_tags { key: 'a' value: '1' }".repeat(2);
    assert!(parse(&again).is_ok_and(|parsed| parsed.conflicts.is_empty()));
}

/// Panics are what it looks for; that a stray bracket is never overlooked is checked on the way.
#[test]
fn a_damaged_text_is_a_problem_and_never_a_panic() {
    let text = r#"name: "m\x41é" 'n' max_batch_size: 0x1F # é
        input [ { name: "a", dims: [ -1, 3 ] optional: t }, < data_type: 11 > ];
        sequence_batching { direct { minimum_slot_utilization: 1.5e-3f } }
        parameters { key: "k" value: { string_value: "v" } }"#;
    assert!(parse(text).is_ok());
    let comment = text.find('#').unwrap()..=text.find('\n').unwrap();
    for (index, old) in text.char_indices() {
        let (before, after) = (&text[..index], &text[index + old.len_utf8()..]);
        drop(parse(before));
        for new in
            ["{", "}", "[", "]", "<", ">", ":", ",", "-", "\"", "'", "\\", "#", "\0", "é", ""]
        {
            drop(parse(&format!("{before}{new}{after}")));
        }
        let quotes = before.matches(['"', '\'']).count();
        if quotes % 2 == 0 && !comment.contains(&index) {
            assert!(parse(&format!("{before} ] {old}{after}")).is_err(), "{before} ] {old}{after}");
        }
    }
}
