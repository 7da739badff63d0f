//! Bodies as bytes: binary tensors, sizes, chunks, compression.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};

use super::*;

const LENGTH: &str = "Inference-Header-Content-Length";

/// Sends JSON and bytes behind it.
async fn binary(bench: &Bench, model: &str, (length, body): (&str, &[u8])) -> Answered {
    let path = format!("/v2/models/{model}/infer");
    bench.send(&message("POST", &path, &[(LENGTH, length)], body)).await
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|it| it.to_le_bytes()).collect()
}

#[actix_rt::test]
async fn binary_tensors_follow_the_json_in_order() {
    let bench = Bench::start().await;
    let json = concat!(
        r#"{"inputs":[{"name":"IN1","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":8}},"#,
        r#"{"name":"IN0","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":16}}]}"#
    );
    let tensors = [&[5, 0, 0, 0, 6, 0, 0, 0][..], &floats(&[1., 2., 3., 4.])].concat();
    let length = json.len().to_string();
    let body = |tensors: &[u8]| [json.as_bytes(), tensors].concat();
    let right = binary(&bench, "two", (&length, &body(&tensors))).await;
    assert!(right.text().contains(r#""data":[1.0,2.0,3.0,4.0]"#), "{}", right.text());
    let size = json.replace("\"binary_data_size\":16", "\"binary_data_size\":12");
    let whole = body(&tensors);
    let range = |got: &str| {
        format!("inference header size should be in range (0, {}), got: {got}", whole.len())
    };
    for (length, body, error) in [
        (
            &*length,
            body(&tensors[..23]),
            "unexpected size for input 'IN0', expecting 1 additional bytes for model 'two'"
                .to_owned(),
        ),
        (
            &length,
            body(&[&tensors[..], b"x"].concat()),
            "unexpected additional input data for model 'two'".to_owned(),
        ),
        (
            &length,
            [size.as_bytes(), &tensors[..20]].concat(),
            "[request id: <id_unknown>] input byte size mismatch for input 'IN0' for model 'two'. \
             Expected 16, got 12"
                .to_owned(),
        ),
        ("abc", whole.clone(), format!("Unable to parse {LENGTH}, got: abc")),
        (
            "99999999999",
            whole.clone(),
            format!(
                "Unable to parse {LENGTH}, value is out of range [ -2147483648, 2147483647 ], got: 99999999999"
            ),
        ),
        ("5000", whole.clone(), range("5000")),
        ("-1", whole.clone(), range("-1")),
    ] {
        assert_eq!(binary(&bench, "two", (length, &body)).await.error(), (400, error));
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn byte_strings_must_end_in_the_body() {
    let bench = Bench::start().await;
    let json = |size: usize| {
        format!(
            r#"{{"inputs":[{{"name":"IN0","datatype":"BYTES","shape":[1],"parameters":{{"binary_data_size":{size}}}}}]}}"#
        )
    };
    for (tensor, error) in [
        (
            &b"\xff\xff\xff\x7fabc"[..],
            "incomplete string data for inference input 'IN0' for model 'word', expecting string of \
             length 2147483647 but only 3 bytes available.",
        ),
        (
            b"\x01\0",
            "incomplete string length indicator for inference input 'IN0' for model 'word', \
             expecting 4 bytes but only 2 bytes available. Please make sure the string length \
             indicator is in one buffer.",
        ),
        (b"", "expected 1 string elements for inference input 'IN0' for model 'word', got 0"),
    ] {
        let json = json(tensor.len());
        let body = [json.as_bytes(), tensor].concat();
        let error = format!("[request id: <id_unknown>] {error}");
        let answer = binary(&bench, "word", (&json.len().to_string(), &body)).await;
        assert_eq!(answer.error(), (400, error));
    }
    let json = json(5);
    let body = [json.as_bytes(), b"\x01\0\0\0\xff"].concat();
    let (status, error) = binary(&bench, "word", (&json.len().to_string(), &body)).await.error();
    assert!(status == 400 && error.contains("not UTF-8"), "{error}");
    bench.stop().await;
}

#[actix_rt::test]
async fn a_raw_body_is_the_only_input() {
    let bench = Bench::start().await;
    for (model, body, tail) in [
        ("fp32", floats(&[1., 2., 3.]), floats(&[1., 2., 3.])),
        ("batched", floats(&[1., 2.]), floats(&[1., 2.])),
        ("word", b"hello".to_vec(), b"\x05\0\0\0hello".to_vec()),
        ("fp32", Vec::new(), Vec::new()),
    ] {
        let answer = binary(&bench, model, ("0", &body)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let header = answer.header(LENGTH).unwrap().parse::<usize>().unwrap();
        assert_eq!(answer.body[header..], tail);
    }
    for (model, body, error) in [
        (
            "two",
            &b"1234"[..],
            "Raw request must only have 1 input (found 2) to be deduced but got 2 inputs in 'two' model configuration",
        ),
        (
            "many",
            b"1234",
            "The shape of the raw input 'IN0' can not be deduced because there are more than one variable-sized dimension",
        ),
        ("fp32", b"12345", "shape [1] of FP32 needs 4 bytes, got 5"),
        ("batched", b"1234", "shape [1,2] of FP32 needs 8 bytes, got 4"),
    ] {
        assert_eq!(binary(&bench, model, ("0", body)).await.error(), (400, error.to_owned()));
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn big_bodies_for_worker_processes_lie_aligned_in_a_segment() {
    let bench = Bench::start().await;
    let bytes: Vec<u8> = (0..100_000u32).map(|it| (it % 249) as u8).collect();
    let json = concat!(
        r#"{"inputs":[{"name":"IN0","datatype":"UINT8","shape":[100000],"#,
        r#""parameters":{"binary_data_size":100000}}],"parameters":{"binary_data_output":true}}"#
    );
    let body = [json.as_bytes(), &bytes].concat();
    let answer = binary(&bench, "shared", (&json.len().to_string(), &body)).await;
    let header = answer.header(LENGTH).unwrap().parse::<usize>().unwrap();
    assert!(answer.body[header..] == bytes);
    let model = bench.state.repository.catalog.load().get("shared", None).unwrap();
    let pool = &bench.state.settings.segments;
    let segment = pool.take(100_000, model.owner).unwrap().freeze();
    let view = troupe_base::tensor::Lease::bytes(&segment, 0..segment.segment().size()).unwrap();
    let at = view.windows(64).position(|it| it == &bytes[..64]).unwrap();
    assert_eq!(at % 64, 0);
    bench.stop().await;
}

#[actix_rt::test]
async fn too_much_is_refused_and_the_connection_survives() {
    let bench = Bench::start().await;
    let body = vec![b' '; LIMIT + 1];
    let path = "/v2/models/fp32/infer";
    let json = bench.send(&message("POST", path, &[], &body)).await;
    assert_eq!(json.error(), (400, "request JSON size of 1048577 bytes exceeds the maximum allowed input size of 1048576 bytes. Use --http-max-input-size to increase the limit.".to_owned()));
    let raw = binary(&bench, "fp32", ("0", &body)).await;
    assert_eq!(raw.error(), (400, "Raw input has a byte_size (1048577 bytes) that exceeds the maximum allowed value of 1048576 bytes. Use --http-max-input-size to increase the limit.".to_owned()));
    let mut twice = message("POST", path, &[], &body);
    twice = String::from_utf8(twice).unwrap().replace("Connection: close\r\n", "").into_bytes();
    twice.extend(message("GET", "/v2/health/live", &[], b""));
    let both = bench.send(&twice).await.text();
    assert!(both.contains("HTTP/1.1 200 OK"), "{both}");
    bench.stop().await;
}

#[actix_rt::test]
async fn chunked_bodies_are_joined_up_to_a_number_of_chunks() {
    let bench = Bench::start().await;
    let body = r#"{"inputs":[{"name":"IN0","datatype":"FP32","shape":[1],"data":[1]}]}"#;
    let chunked = |count: usize| {
        let padding = " ".repeat(count - body.len());
        let pieces = body.chars().chain(padding.chars()).map(|it| format!("1\r\n{it}\r\n"));
        pieces.collect::<String>() + "0\r\n\r\n"
    };
    let path = "/v2/models/fp32/infer";
    let headers = [("Transfer-Encoding", "chunked")];
    for (count, status) in [(body.len(), 200), (65_536, 200), (65_537, 400), (200_000, 400)] {
        let answer = bench.send(&message("POST", path, &headers, chunked(count).as_bytes())).await;
        assert_eq!(answer.status, status, "{count}: {}", answer.text());
        if status == 400 {
            assert_eq!(
                answer.error().1,
                "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."
            );
        }
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn compressed_bodies_are_inflated_up_to_the_limit() {
    let bench = Bench::start().await;
    let body = r#"{"inputs":[{"name":"IN0","datatype":"FP32","shape":[1],"data":[1]}]}"#.as_bytes();
    let gzip = |bytes: &[u8]| {
        let mut to = GzEncoder::new(Vec::new(), Compression::fast());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    };
    let zlib = {
        let mut to = flate2::write::ZlibEncoder::new(Vec::new(), Compression::fast());
        to.write_all(body).unwrap();
        to.finish().unwrap()
    };
    let bomb = gzip(&vec![b' '; 40 * LIMIT]);
    let path = "/v2/models/fp32/infer";
    for (coding, body, status, error) in [
        ("gzip", gzip(body), 200, ""),
        ("deflate", zlib, 200, ""),
        ("identity", body.to_vec(), 200, ""),
        ("br", body.to_vec(), 501, "Unsupported compression type"),
        ("gzip", body.to_vec(), 400, "failed to decompress the request body: "),
        ("gzip", bomb, 400, "request JSON size of 1048577 bytes exceeds the maximum "),
    ] {
        let headers = [("Content-Encoding", coding)];
        let answer = bench.send(&message("POST", path, &headers, &body)).await;
        assert_eq!(answer.status, status, "{coding} {}", answer.text());
        if status != 200 {
            assert!(answer.error().1.starts_with(error), "{}", answer.text());
        }
        if status == 501 {
            assert_eq!(answer.header("accept-encoding"), Some("gzip, deflate"));
        }
    }
    bench.stop().await;
}

#[actix_rt::test]
async fn an_id_of_a_megabyte_is_harmless() {
    let bench = Bench::start().await;
    let id = "\\n\\u0000\\u001b".repeat(50_000);
    let body = format!(
        r#"{{"id":"{id}","inputs":[{{"name":"IN0","datatype":"FP32","shape":[1],"data":[1]}}]}}"#
    );
    let answer = bench.post("/v2/models/fp32/infer", &body).await;
    assert!(answer.text().starts_with(&format!(r#"{{"id":"{id}","#)), "{}", answer.status);
    bench.stop().await;
}
