//! What an inference answers: JSON, bytes, both, compressed.

use std::io::Read;

use super::*;

const TWO: &str = concat!(
    r#"{"id":"7","parameters":{"a":1,"b":true,"c":"x","d":1.5},"inputs":["#,
    r#"{"name":"IN1","shape":[2],"data":[5,6],"datatype":"INT32"},"#,
    r#"{"name":"IN0","datatype":"FP32","shape":[4],"data":[[1,2],[3,4.5]]}]"#,
);

#[actix_rt::test]
async fn every_datatype_comes_back_as_it_was_sent() {
    let bench = Bench::start().await;
    for (model, dtype, data) in [
        ("bool", "BOOL", "[true,false]"),
        ("uint8", "UINT8", "[0,255]"),
        ("uint16", "UINT16", "[0,65535]"),
        ("uint32", "UINT32", "[0,4294967295]"),
        ("uint64", "UINT64", "[0,18446744073709551615]"),
        ("int8", "INT8", "[-128,127]"),
        ("int16", "INT16", "[-32768,32767]"),
        ("int32", "INT32", "[-2147483648,2147483647]"),
        ("int64", "INT64", "[-9223372036854775808,9223372036854775807]"),
        ("fp32", "FP32", "[0.1,-1.5]"),
        ("fp32", "FP32", "[NaN,-Infinity]"),
        ("fp64", "FP64", "[0.30000000000000004,1.7976931348623157e+308]"),
        ("fp64", "FP64", "[Infinity,NaN]"),
        ("string", "BYTES", r#"["How can \"you\"\n","\u0000ü"]"#),
    ] {
        let answer = bench.one(model, (dtype, "[2]", data)).await;
        let expected = format!(
            r#"{{"model_name":"{model}","model_version":"1","outputs":[{{"name":"OUT0","datatype":"{dtype}","shape":[2],"data":{data}}}]}}"#
        );
        assert_eq!((answer.status, answer.text()), (200, expected));
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn ids_parameters_order_and_wanted_outputs_are_kept() {
    let bench = Bench::start().await;
    let head = concat!(
        r#"{"id":"7","model_name":"two","model_version":"1","#,
        r#""parameters":{"a":1,"b":true,"c":"x","d":1.5},"outputs":["#
    );
    let out0 = r#"{"name":"OUT0","datatype":"FP32","shape":[4],"data":[1.0,2.0,3.0,4.5]}"#;
    let out1 = r#"{"name":"OUT1","datatype":"INT32","shape":[2],"data":[5,6]}"#;
    for (end, outputs) in [
        ("}", format!("{out0},{out1}")),
        (r#","outputs":[]}"#, format!("{out0},{out1}")),
        (r#","outputs":[{"name":"OUT1"}]}"#, out1.to_owned()),
        (r#","outputs":[{"name":"OUT1"},{"name":"OUT0"}]}"#, format!("{out0},{out1}")),
    ] {
        let body = format!("{TWO}{end}");
        // What `curl -d` says about the body is not believed.
        let form = [("Content-Type", "application/x-www-form-urlencoded")];
        let path = "/v2/models/two/versions/1/infer";
        let answer = bench.send(&message("POST", path, &form, body.as_bytes())).await;
        assert_eq!((answer.status, answer.text()), (200, format!("{head}{outputs}]}}")));
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("inference-header-content-length"), None);
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn outputs_come_as_bytes_where_asked() {
    let bench = Bench::start().await;
    let out0: Vec<u8> = [1f32, 2., 3., 4.5].iter().flat_map(|it| it.to_le_bytes()).collect();
    let out1: Vec<u8> = [5i32, 6].iter().flat_map(|it| it.to_le_bytes()).collect();
    let both = [&out0[..], &out1].concat();
    let all = TWO.replace("\"a\":1", "\"binary_data_output\":true");
    for (text, end, tail) in [
        (
            TWO,
            r#","outputs":[{"name":"OUT0","parameters":{"binary_data":true}},{"name":"OUT1"}]}"#,
            &out0,
        ),
        (&all, "}", &both),
        (
            &all,
            r#","outputs":[{"name":"OUT1"},{"name":"OUT0","parameters":{"binary_data":false}}]}"#,
            &out1,
        ),
    ] {
        let answer = bench.post("/v2/models/two/infer", &format!("{text}{end}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
        let length = answer.header("inference-header-content-length").unwrap();
        let (json, rest) = answer.body.split_at(length.parse().unwrap());
        assert_eq!(rest, tail);
        let text = String::from_utf8(json.to_vec()).unwrap();
        assert!(text.contains(r#""parameters":{"binary_data_size":"#) && text.ends_with("]}"));
        serde_json::from_str::<serde::de::IgnoredAny>(&text).unwrap();
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn big_answers_arrive_whole_in_either_form() {
    let bench = Bench::start().await;
    let bytes: Vec<u8> = (0..700_000u32).map(|it| (it % 251) as u8).collect();
    let (raw, gzip) = (("Inference-Header-Content-Length", "0"), ("Accept-Encoding", "gzip"));
    let raw_path = "/v2/models/uint8/infer";
    let answer = bench.send(&message("POST", raw_path, &[raw], &bytes)).await;
    let header: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
    assert!(answer.body[header..] == bytes);
    let answer = bench.send(&message("POST", raw_path, &[raw, gzip], &bytes)).await;
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    let mut inflated = Vec::new();
    flate2::read::GzDecoder::new(&answer.body[..]).read_to_end(&mut inflated).unwrap();
    assert!(inflated[header..] == bytes);
    let text = format!("[{}]", vec!["3"; 300_000].join(","));
    let answer = bench.one("uint8", ("UINT8", "[300000]", &text)).await;
    assert!(answer.text().ends_with(&format!("\"data\":{text}}}]}}")), "{}", answer.status);
    bench.stop().await;
}

#[actix_rt::test]
async fn small_answers_are_compressed_for_those_who_ask() {
    let bench = Bench::start().await;
    let body = format!("{TWO}}}");
    let plain = bench.post("/v2/models/two/infer", &body).await;
    for (accept, coding) in
        [("gzip;q=0.5, deflate;q=1", Some("deflate")), ("gzip", Some("gzip")), ("br", None)]
    {
        let headers = [("Accept-Encoding", accept)];
        let path = "/v2/models/two/infer";
        let answer = bench.send(&message("POST", path, &headers, body.as_bytes())).await;
        assert_eq!(answer.header("content-encoding"), coding);
        let mut text = String::new();
        match coding {
            Some("gzip") => {
                flate2::read::GzDecoder::new(&answer.body[..]).read_to_string(&mut text).unwrap()
            }
            Some(_) => {
                flate2::read::ZlibDecoder::new(&answer.body[..]).read_to_string(&mut text).unwrap()
            }
            None => Read::read_to_string(&mut &answer.body[..], &mut text).unwrap(),
        };
        assert_eq!(text, plain.text());
    }
    bench.stop().await;
}
