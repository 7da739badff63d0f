//! Requests that are not what they seem, on every route: chunks, lengths, aliases; and health where no
//! request blocks it.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::json;

use crate::support::{PATIENCE, Repository, Server, grpc, http::floats, models::execute, native};

const POSTS: &[&str] = &[
    "/v2/models/m/infer",
    "/v2/models/m/versions/1/infer",
    "/v2/models/m/generate",
    "/v2/models/m/generate_stream",
    "/v2/models/m/tap",
    "/v2/models/m/trace/setting",
    "/v2/trace/setting",
    "/v2/logging",
    "/v2/repository/index",
    "/v2/repository/models/m/load",
    "/v2/repository/models/m/unload",
    "/v2/systemsharedmemory/unregister",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/cudasharedmemory/unregister",
    "/no/such/route",
];

fn serve() -> Server {
    Server::explicit(Repository::of([("m", native("identity", "x:FP32[-1] -> y:FP32[-1]"))]))
}

fn works(server: &Server) {
    server.load("m").ok();
    server.is_well();
    assert_eq!(server.infer("m", &floats(&[("x", &[1.0])])).numbers("y"), [1.0]);
}

#[test]
fn cve_2025_23310_one_byte_chunks_are_bounded_on_every_post_route() {
    let server = serve();
    for path in POSTS {
        for encoding in [None, Some(("Content-Encoding", "gzip"))] {
            let mut text = format!("POST {path} HTTP/1.1\r\nHost: t\r\n").into_bytes();
            if let Some((name, value)) = encoding {
                text.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
            }
            text.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            (0..70_000).for_each(|_| text.extend_from_slice(b"1\r\n \r\n"));
            text.extend_from_slice(b"0\r\n\r\n");
            // The server may close before it has read all.
            if let Some(answer) = server.http.send_or_be_cut(&[&text]) {
                assert_ne!(answer.status, 500, "{path}");
                assert!(answer.status == 200 || (400..=501).contains(&answer.status), "{path}");
            }
        }
    }
    works(&server);
}

#[test]
fn numbers_that_are_none_are_refused_and_end_nothing() {
    let server = serve();
    server.load("m").ok();
    let values = ["-1", "99999999999999999999", "1e3", "0x10", "", " ", "1 2", "+1", "1,1", "٣"];
    for value in values {
        for name in ["Content-Length", "Inference-Header-Content-Length"] {
            let text = format!(
                "POST /v2/models/m/infer HTTP/1.1\r\nHost: t\r\n{name}: {value}\r\n\
                 Connection: close\r\n\r\n{{}}"
            );
            if let Some(answer) = server.http.send_or_be_cut(&[text.as_bytes()]) {
                assert!((400..500).contains(&answer.status), "{name}: {value}: {}", answer.status);
            }
        }
    }
    let both = b"POST /v2/logging HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\
                 Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v2 HTTP/1.1\r\nHost: t\r\n\r\n";
    let mut stream = TcpStream::connect(server.http.0).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(both).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400", "two lengths are one too many");
    works(&server);
}

#[test]
fn names_that_lead_elsewhere_lead_nowhere() {
    let server = serve();
    for path in [
        "/v2/models/%2e%2e/config",
        "/v2/models/..%2f..%2fetc/config",
        "/v2/models/a%00b/config",
        "/v2/models/%2Fetc%2Fpasswd/config",
        "/v2/models/m/../../../etc/passwd",
        "//v2/health/live",
        "/v2//health/live",
        "/v2/health/live/",
        "/V2/health/live",
        "/v2/health/%2e/live",
    ] {
        let status = server.http.get(path).status;
        assert!(matches!(status, 400 | 404), "{path}: {status}");
    }
    works(&server);
}

#[test]
fn health_on_the_metrics_port_does_not_wait_for_requests() {
    let server = serve();
    for path in ["/v2/health/live", "/v2/health/ready"] {
        assert_eq!(server.metrics.get(path).status, 200, "{path}");
    }
    assert_eq!(server.metrics.send("POST", "/v2/health/live", &[], b"").status, 405);
}

#[test]
fn headers_that_match_become_parameters_and_reserved_names_are_refused() {
    let body = "
        answers = []
        for it in requests:
            x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
            parameters = json.loads(it.parameters())
            answers.append(
                pb_utils.InferenceResponse([pb_utils.Tensor('y', x)], parameters=parameters))
        return answers";
    let signature = "x:FP32[-1] -> y:FP32[-1]";
    let server = Server::with(
        Repository::of([("m", execute(signature, body))]),
        &[
            "--http-header-forward-pattern=^x-|^triton|^timeout$",
            "--grpc-header-forward-pattern=^X-",
        ],
    );
    let request = floats(&[("x", &[1.0])]).to_string();
    let send = |headers: &[(&str, &str)]| {
        server.http.send("POST", "/v2/models/m/infer", headers, request.as_bytes())
    };
    let parameters =
        send(&[("X-Tenant", "blue"), ("Other", "no")]).ok().json()["parameters"].take();
    assert_eq!(parameters, json!({"x-tenant": "blue"}));
    for (name, shown) in [("timeout", "timeout"), ("Triton_x", "triton_x")] {
        let text =
            format!("Header '{shown}' is reserved for Triton usage and cannot be forwarded.");
        send(&[(name, "1")]).refuses(400, &text);
    }
    let mut client = grpc::Grpc::connect(server.grpc);
    let mut call = tonic::Request::new(grpc::floats("m", &[("x", &[1.0])]));
    call.metadata_mut().insert("x-tenant", tonic::metadata::MetadataValue::from_static("red"));
    let answer = client.call(async |it| it.model_infer(call).await).unwrap();
    assert!(format!("{:?}", answer.parameters["x-tenant"]).contains("red"));
    server.is_well();
}
