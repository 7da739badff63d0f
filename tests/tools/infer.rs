//! `troupe infer`: one request from the command line, and its answer as tables or JSON.

use std::{net::TcpListener, path::PathBuf, sync::LazyLock};

use serde_json::{Value, json};

use crate::support::{
    Model, Repository, Server, ensemble, models::delay, native, server::Ended, troupe,
};

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let id = |tensor: &str| native("identity", &format!("x:{tensor} -> y:{tensor}"));
    let all = "text:BYTES[-1] scores:FP32[-1] boxes:FP32[-1,4,2]";
    let outputs = "words:BYTES[-1] marks:FP32[-1] corners:FP32[-1,4,2]";
    let steps = [
        "strings: x=text -> y=words",
        "vector: x=scores -> y=marks",
        "boxes: x=boxes -> y=corners",
    ];
    let state = "state { input_name: 'sum' output_name: 'y' data_type: TYPE_FP32 dims: [1] } oldest { max_candidate_sequences: 8 }";
    let sums = native("add_sub", "x:FP32[1] -> y:FP32[1] difference:FP32[1]")
        .with(format!("sequence_batching {{ {state} max_sequence_idle_microseconds: 60000000 }}"));
    let pets = id("FP32[4]").batch(8);
    let labels = "name: \"y\" label_filename: \"pets.txt\"";
    let pets = Model { config: pets.config.replace("name: \"y\"", labels), ..pets };
    let repository = Repository::new()
        .with("add_sub", native("add_sub", "a:FP32[2] b:FP32[2] -> sum:FP32[2] difference:FP32[2]"))
        .with("vector", id("FP32[-1]"))
        .with("boxes", id("FP32[-1,4,2]"))
        .with("rows", id("INT32[-1,2]").batch(4))
        .with("pixels", id("UINT8[-1]"))
        .with("plane", id("UINT8[-1,-1]"))
        .with("string", id("BYTES[1]").batch(4))
        .with("strings", id("BYTES[-1]"))
        .with("flags", id("BOOL[-1]"))
        .with("slow", delay(60_000, "x:FP32[1] -> y:FP32[1]"))
        .with("ocr", ensemble(&format!("{all} -> {outputs}"), &steps))
        .with("pets", pets)
        .with("sums", sums);
    repository.write_file("pets/pets.txt", "cat\ndog\n");
    Server::start(repository)
});

fn infer(model: &str, arguments: &[&str]) -> Ended {
    let url = SERVER.grpc.to_string();
    troupe(&[&["infer", model, "--url", &url], arguments].concat())
}

#[track_caller]
fn prints(model: &str, arguments: &[&str], expected: &str) {
    let ended = infer(model, arguments);
    assert_eq!(ended.output, expected, "\n{}", ended.output);
    assert_eq!(ended.code, Some(0));
}

#[track_caller]
fn fails(model: &str, arguments: &[&str], expected: &str) {
    let ended = infer(model, arguments);
    assert_eq!(ended.code, Some(1), "{}", ended.output);
    assert!(ended.output.contains(expected), "no `{expected}` in {}", ended.output);
}

/// The shape and the data of the first output.
#[track_caller]
fn output(model: &str, arguments: &[&str]) -> (Value, Value) {
    let ended = infer(model, &[arguments, &["--json"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.output);
    let mut answer: Value = serde_json::from_str(&ended.output).unwrap();
    assert_eq!((&answer["model_name"], &answer["model_version"]), (&json!(model), &json!("1")));
    let output = &mut answer["outputs"][0];
    (output["shape"].take(), output["data"].take())
}

fn file(name: &str, contents: &[u8]) -> PathBuf {
    let path = SERVER.repository.beside(name);
    std::fs::write(&path, contents).unwrap();
    path
}

fn npy(name: &str, descr: &str, shape: &str, data: &[u8]) -> String {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let length = (header.len() as u16).to_le_bytes();
    let contents = [b"\x93NUMPY\x01\0", &length[..], header.as_bytes(), data].concat();
    format!("@{}", file(name, &contents).display())
}

#[test]
fn outputs_come_as_tables() {
    prints(
        "add_sub",
        &["--input", "a=[1, 2]", "--input", "b=[0.5, 0.25]"],
        "\
+---+----------+------------+
|   | sum      | difference |
|   | FP32 [2] | FP32 [2]   |
+---+----------+------------+
| 0 | 1.5      | 0.5        |
| 1 | 2.25     | 1.75       |
+---+----------+------------+
",
    );
    let row = "[[0,0],[1,0],[1,1],[0,1]]";
    prints(
        "ocr",
        &[
            "--input",
            r#"text=["stop","50\nkm/h"]"#,
            "--input=scores=[0.99,1]",
            &format!("--input=boxes=[{row},{row}]"),
        ],
        "\
+---+-----------+----------+--------------------------------------------------+
|   | words     | marks    | corners                                          |
|   | BYTES [2] | FP32 [2] | FP32 [2,4,2]                                     |
+---+-----------+----------+--------------------------------------------------+
| 0 | stop      | 0.99     | [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]] |
| 1 | 50\\nkm/h  | 1.0      | [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]] |
+---+-----------+----------+--------------------------------------------------+
",
    );
    prints(
        "add_sub",
        &["-i", "a=[1, 2]", "-i", "b=[0, 0]", "--output", "difference"],
        "\
+---+------------+
|   | difference |
|   | FP32 [2]   |
+---+------------+
| 0 | 1.0        |
| 1 | 2.0        |
+---+------------+
",
    );
}

#[test]
fn long_outputs_are_shortened_unless_all_is_asked_for() {
    let many = format!("x=[{}]", (0..100).map(|it| it.to_string()).collect::<Vec<_>>().join(","));
    let short = infer("vector", &["--input", &many]).output;
    assert!(short.contains("… 80 more") && !short.contains("21.0"), "{short}");
    let full = infer("vector", &["--input", &many, "--full"]).output;
    assert!(full.contains("| 99 | 99.0"), "{full}");
}

#[test]
fn shapes_are_those_of_the_nesting_with_a_batch_dimension_where_it_lacks() {
    for (model, value, expected) in [
        ("vector", "x=[1,2]", json!([2])),
        ("vector", "7", json!([1])),
        ("rows", "[[1,2],[3,4],[5,6]]", json!([1, 3, 2])),
        ("rows", "[[[1,2]],[[3,4]]]", json!([2, 1, 2])),
        ("rows", "[1,2,3,4]", json!([1, 2, 2])),
        ("plane", "[[1,2],[3,4]]", json!([2, 2])),
        ("string", "hello", json!([1, 1])),
        ("string", r#"["a","b"]"#, json!([2, 1])),
        ("strings", "x=[]", json!([0])),
    ] {
        assert_eq!(output(model, &["--input", value]).0, expected, "{model} {value}");
    }
    assert_eq!(output("plane", &["-i", "[1,2,3,4]", "--shape", "4,-1"]).0, json!([4, 1]));
    let with_name = ["-i", "x=[1,2,3,4]", "--shape=x=2,1,2"];
    assert_eq!(output("rows", &with_name), (json!([2, 1, 2]), json!([[[1, 2]], [[3, 4]]])));
}

#[test]
fn texts_need_no_quotes() {
    for (value, expected) in [
        ("hello world", "hello world"),
        ("x=a=b", "a=b"),
        (r#""x""#, "x"),
        (r#"{"role": "user"}"#, r#"{"role": "user"}"#),
        ("x=5", "5"),
        ("x=", ""),
    ] {
        assert_eq!(output("strings", &["--input", value]).1, json!([expected]), "{value}");
    }
    assert_eq!(output("flags", &["--input", "[true, false]"]).1, json!([true, false]));
}

#[test]
fn files_are_sent_as_they_are() {
    let picture = format!("@{}", file("picture.jpg", &[255, 216, 0, 10]).display());
    assert_eq!(output("pixels", &["-i", &picture]).1, json!([255, 216, 0, 10]));
    assert_eq!(output("strings", &["-i", &picture]).1, json!([{"b64": "/9gACg=="}]));
    let named = format!("x={picture}");
    let shaped = output("plane", &["-i", &named, "--shape=x=2,2"]);
    assert_eq!(shaped, (json!([2, 2]), json!([[255, 216], [0, 10]])));
    fails("plane", &["-i", &picture], "leaves open how to arrange; give --shape");
    let error = "its data has 2 elements, which --shape [3] does not hold";
    fails("vector", &["-i", "[1,2]", "--shape=3"], error);
    fails(
        "vector",
        &["-i", &format!("@{}", file("odd.bin", b"12345").display())],
        "odd.bin: 5 bytes are no whole number of elements of FP32",
    );
    fails("pixels", &["-i", "@no/such/file"], "input `x`: no/such/file: No such file or directory");
}

#[test]
fn arrays_of_numpy_bring_their_shape() {
    let data: Vec<u8> = (1..=4i32).flat_map(i32::to_le_bytes).collect();
    let rows = npy("rows.npy", "<i4", "(2, 2)", &data);
    assert_eq!(output("rows", &["-i", &rows]), (json!([1, 2, 2]), json!([[[1, 2], [3, 4]]])));
    let batch = npy("batch.npy", "<i4", "(2, 1, 2)", &data);
    assert_eq!(output("rows", &["-i", &batch]).0, json!([2, 1, 2]));
    fails("vector", &["-i", &rows], "rows.npy: it holds INT32, expected FP32");
    let big = npy("big.npy", ">i4", "(4,)", &data);
    fails("rows", &["-i", &big], "its elements are big-endian ('>i4'), expected little-endian");
}

#[test]
fn classes_are_printed_with_their_labels() {
    prints(
        "pets",
        &["-i", "[0.5, 2, 1, 0]", "--classes", "2"],
        "\
+---+----------------+
|   | y              |
|   | BYTES [1,2]    |
+---+----------------+
| 0 | 2.000000:1:dog |
| 1 | 1.000000:2     |
+---+----------------+
",
    );
    fails("strings", &["-i", "a", "--classes=1"], "unsupported type 'BYTES'");
}

#[test]
fn parameters_go_with_the_request() {
    let ask = |x: &str, id: &str, more: &[&str]| {
        let id = format!("sequence_id={id}");
        output("sums", &[&["-i", x, "--output=y", "--parameter", &id], more].concat()).1
    };
    let start = ["--parameter", "sequence_start=true"];
    assert_eq!(ask("1", "5", &start), json!([1.0]));
    assert_eq!(ask("10", "user-5", &start), json!([10.0]));
    assert_eq!(ask("2", "5", &["--parameter=sequence_end=true"]), json!([3.0]));
    fails("sums", &["-i", "1", "--parameter", "sequence_id=7"], "START flag");
    fails("sums", &["-i", "1", "--parameter", "x=[1]"], "--parameter x=[1]: expected a number");
    fails("sums", &["-i", "1", "--parameter", "x"], "expected NAME=VALUE");
}

#[test]
fn what_the_server_refuses_is_said_in_its_words() {
    fails("nobody", &["-i", "1"], "Request for unknown model: 'nobody' is not found");
    let versioned = ["-i", "1", "--model-version", "7"];
    fails("vector", &versioned, "Request for unknown model: 'vector' version 7 is not found");
    fails("add_sub", &["-i", "a=[1,2]"], "missing required input(s) ['b']");
    fails("rows", &["-i", "[[1,2,3]]"], "unexpected shape for input 'x' for model 'rows'");
    fails("vector", &["-i", "1", "--output", "z"], "unexpected inference output 'z'");
    fails(
        "add_sub",
        &["-i", "c=1"],
        "begins with no input's name: those of `add_sub` are `a`, `b`",
    );
    fails("vector", &["-i", "abc"], "expected JSON or, behind `@`, a file, got `abc`");
    fails("vector", &["--shape", "x=1"], "--shape x: there is no --input for it");
    fails("vector", &["-i", "1", "--header", "no colon"], "expected `NAME:VALUE`");
    let header = ["-i", "1", "--header", "Authorization: Bearer x", "--model-version=1"];
    assert_eq!(infer("vector", &header).code, Some(0));
}

#[test]
fn a_server_that_does_not_answer_is_told_apart() {
    fails("slow", &["-i", "1", "--timeout", "0.2"], "within 200ms");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ended = troupe(&["infer", "m", "-i", "1", "--url", &free]);
    assert_eq!(ended.code, Some(1));
    let expected = format!("nobody listens at {free}: is the server running?");
    assert!(ended.output.contains(&expected), "{}", ended.output);
    let http = SERVER.http.0.to_string();
    let ended = troupe(&["infer", "m", "-i", "1", "--url", &http]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.output.contains("is it the gRPC port?"), "{}", ended.output);
    let ended = troupe(&["infer", "m", "-i", "1", "--url", "ftp://localhost:1"]);
    assert!(ended.output.contains("expected `HOST:PORT`"), "{}", ended.output);
}
