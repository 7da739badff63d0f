//! Flags that tune gRPC: pings and ages of connections, compressed answers, shared ports.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use tonic::codec::CompressionEncoding;

use crate::support::{
    PATIENCE, Repository, Server,
    grpc::{Grpc, bytes_of, floats},
    native,
};

/// The preface of HTTP/2 and an empty SETTINGS frame.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Types of frames.
const PING: u8 = 6;
const GOAWAY: u8 = 7;

fn repository() -> Repository {
    Repository::of([("identity", native("identity", "x:FP32[-1] -> y:FP32[-1]"))])
}

/// The types of all frames a server sends to a client that says hello and nothing more, until it
/// closes the connection.
fn frames(address: SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(HELLO).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let mut types = Vec::new();
    let mut rest = &bytes[..];
    while let [a, b, c, kind, ..] = *rest {
        types.push(kind);
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        rest = rest.get(9 + length..).unwrap_or(&[]);
    }
    types
}

#[test]
fn connections_that_are_too_old_are_told_to_go() {
    // Without a grace a client that says nothing could stay.
    let flags = ["--grpc-max-connection-age=100", "--grpc-max-connection-age-grace=100"];
    let server = Server::with(repository(), &flags);
    let seen = frames(server.grpc);
    assert!(seen.contains(&GOAWAY), "{seen:?}");
    Grpc::connect(server.grpc).infer(floats("identity", &[("x", &[1.0])])).unwrap();
    server.is_well();
}

#[test]
fn clients_that_do_not_answer_pings_are_gone() {
    let flags = ["--grpc-keepalive-time=50", "--grpc-keepalive-timeout=50"];
    let server = Server::with(repository(), &flags);
    assert!(frames(server.grpc).contains(&PING));
    server.is_well();
}

#[test]
fn answers_are_compressed_for_clients_that_take_gzip() {
    let server = Server::with(repository(), &["--grpc-infer-response-compression-level=high"]);
    let mut grpc = Grpc::connect(server.grpc);
    for length in [1, 1_000, 1_000_000] {
        let data = vec![0.5; length];
        for takes_gzip in [false, true] {
            let request = floats("identity", &[("x", &data)]);
            let answer = grpc.run(async |client| {
                let mut client = client.clone();
                if takes_gzip {
                    client = client.accept_compressed(CompressionEncoding::Gzip);
                }
                client.model_infer(request).await
            });
            let answer = answer.unwrap();
            let coding = answer.metadata().get("grpc-encoding").map(|it| it.to_str().unwrap());
            assert_eq!(coding == Some("gzip"), takes_gzip, "{length}");
            assert_eq!(answer.into_inner().raw_output_contents[0], bytes_of(&data));
        }
    }
    server.is_well();
}

#[test]
fn a_port_is_shared_by_servers_that_both_say_so() {
    let flags = ["--reuse-http-port=true", "--reuse-grpc-port=true"];
    let first = Server::with(repository(), &flags);
    let (http, grpc) = (first.http.0.port(), first.grpc.port());
    let ports = [format!("--http-port={http}"), format!("--grpc-port={grpc}")];
    let refused = Server::fails(&repository(), &[&ports[0], flags[1]]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.output.contains("Address already in use"), "{}", refused.output);
    let flags = [&ports[0], &ports[1], flags[0], flags[1]];
    let second = Server::launch(repository(), &flags, &[]);
    // Until then either of them may answer.
    drop(first);
    second.ready();
    let answer = second.infer("identity", &crate::support::http::floats(&[("x", &[1.0])]));
    assert_eq!(answer.numbers("y"), [1.0]);
    Grpc::connect(second.grpc).infer(floats("identity", &[("x", &[1.0])])).unwrap();
}
