//! Bodies of requests over HTTP: JSON, JSON with binary tensors, and other endpoints that read JSON.

use super::{
    attempts::{attacked, fuzz_server},
    mutate::Corpus,
};
use crate::support::{Repository, Server, models::native, subject::Subject};

fn subject() -> Subject {
    let models = [
        ("m", native("identity", "x:FP32[-1] -> y:FP32[-1]")),
        ("s", native("identity", "x:BYTES[-1] -> y:BYTES[-1]")),
    ];
    attacked(Repository::of(models), &[], |server| {
        let request = str::from_utf8(STRINGS).unwrap();
        assert_eq!(server.http.infer("s", request).output("y"), serde_json::json!(["a", "ä"]));
    })
}

const TOKENS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"null",
    b"true",
    b"1e999",
    b"-1",
    b"\\u0000",
    b"\\ud800",
    b"9223372036854775807",
    b"18446744073709551616",
    b"\"shape\":[4611686018427387904,4]",
    b"\"datatype\":\"BYTES\"",
    b"\"datatype\":\"BF16\"",
    b"\"binary_data_size\":4294967296",
    b"\"binary_data\":true",
    b"\"classification\":2147483648",
    b"\"shared_memory_region\":\"r\"",
    b"\"shared_memory_offset\":18446744073709551615",
    b"\"sequence_id\":\"a\"",
    b"\"timeout\":1",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b"\xff\xfe",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
];

const JSON: &[u8] =
    br#"{"id":"7","inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2.5]}],
"outputs":[{"name":"y","parameters":{"classification":1}}],"parameters":{"timeout":100,"a":"b"}}"#;
const STRINGS: &[u8] =
    br#"{"inputs":[{"name":"x","datatype":"BYTES","shape":[2],"data":["a","\u00e4"]}]}"#;
const BINARY: &[u8] = b"{\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[2],\"parameters\":\
{\"binary_data_size\":8}}],\"parameters\":{\"binary_data_output\":true}}\x00\x00\x80\x3f\x00\x00\x00\x40";
const BINARY_STRINGS: &[u8] = b"{\"inputs\":[{\"name\":\"x\",\"datatype\":\"BYTES\",\"shape\":[2],\
\"parameters\":{\"binary_data_size\":10}}]}\x01\x00\x00\x00a\x01\x00\x00\x00b";

/// The answer is none of a mistake of the server's own.
fn send(server: &Server, path: &str, headers: &str, body: &[u8]) {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    let answer = server.http.send_or_be_cut(&[head.as_bytes(), body]);
    if let Some(answer) = answer {
        // Triton's status for data of another shape.
        let is_of_triton = || answer.error().starts_with("Unable to parse 'data'");
        let is_sound = answer.status < 500 || [501, 503].contains(&answer.status) || is_of_triton();
        assert!(is_sound, "{} {}", answer.status, answer.text());
    }
}

#[test]
fn json_bodies_are_answered() {
    let corpus = Corpus { inputs: &[JSON, STRINGS], tokens: TOKENS };
    let subject = subject();
    fuzz_server("JSON over HTTP", &subject, |random| {
        let input = &random.input(&corpus);
        let model = random.pick(&["m", "s"]);
        send(&subject.server, &format!("/v2/models/{model}/infer"), "", input);
    });
}

#[test]
fn binary_bodies_are_answered() {
    let corpus = Corpus { inputs: &[BINARY, BINARY_STRINGS], tokens: TOKENS };
    let subject = subject();
    fuzz_server("binary over HTTP", &subject, |random| {
        let input = &random.input(&corpus);
        let model = random.pick(&["m", "s"]);
        let end = input.iter().rposition(|it| *it == b'}').map_or(0, |it| it + 1);
        let wrong = random.below(input.len() + 2).to_string();
        let length = match random.below(8) {
            0 => wrong,
            1 => (*random.pick(&["-1", "99999999999", "1e3", "", "0"])).to_owned(),
            _ => end.to_string(),
        };
        let header = format!("inference-header-content-length: {length}\r\n");
        send(&subject.server, &format!("/v2/models/{model}/infer"), &header, input);
    });
}

#[test]
fn other_bodies_are_answered() {
    let corpus = Corpus {
        inputs: &[
            br#"{"parameters":{"config":"{}","file:1/model.py":"YQ=="}}"#,
            br#"{"parameters":{"unload_dependents":true}}"#,
            br#"{"ready":true}"#,
            br#"{"log_verbose_level":0,"log_info":true,"log_format":"default"}"#,
            br#"{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1"}"#,
            br#"{"key":"/r","offset":0,"byte_size":8}"#,
            br#"{"x":"1","parameters":{}}"#,
        ],
        tokens: TOKENS,
    };
    let paths = [
        "/v2/repository/index",
        "/v2/repository/models/m/load",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/m/trace/setting",
        "/v2/systemsharedmemory/region/r/register",
        "/v2/systemsharedmemory/unregister",
        "/v2/models/s/generate",
        "/v2/models/s/generate_stream",
    ];
    let subject = subject();
    fuzz_server("other JSON over HTTP", &subject, |random| {
        let input = &random.input(&corpus);
        let path: &&str = random.pick(&paths);
        send(&subject.server, path, "", input);
    });
}
