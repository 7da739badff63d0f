//! Connections that wait for ever are given up, on every port.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
};

use rustix::process::Signal;
use serde_json::json;

use crate::support::{
    Http, PATIENCE, Repository, Server,
    http2::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, Received, frame, head},
    native, process, until,
};

const IMPATIENT: &str = "--stalled-connection-secs=1";

fn serve(flags: &[&str]) -> Server {
    let models = [
        ("m", native("identity", "x:FP32[-1] -> y:FP32[-1]")),
        ("bytes", native("identity", "x:UINT8[-1] -> y:UINT8[-1]")),
    ];
    Server::with(Repository::of(models), flags)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends a request whose body does not come; answers when it is being served.
fn begin_request(mut stream: &TcpStream) -> std::io::Result<()> {
    let head = "POST /v2/models/m/infer HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n\
                Content-Length: 1000\r\n\r\n";
    let mut answer = [0; 25];
    stream.write_all(head.as_bytes()).and_then(|()| stream.read_exact(&mut answer))?;
    assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
    Ok(())
}

/// What came until the server closed the connection.
fn until_closed(mut stream: &TcpStream) -> String {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => (),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => (),
        Err(error) => panic!("the server keeps the connection: {error}"),
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn r23_a_body_that_stands_still_is_given_up() {
    let server = serve(&[IMPATIENT]);
    for path in ["/v2/models/m/infer", "/v2/models/m/generate", "/v2/repository/index"] {
        let head = format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n{{\"in");
        let mut stream = connect(server.http.0);
        stream.write_all(head.as_bytes()).unwrap();
        let answer = until_closed(&stream);
        assert!(answer.starts_with("HTTP/1.1 408"), "{path}: {answer}");
    }
    server.is_well();
}

#[test]
fn r23_a_body_that_drips_is_given_up() {
    let server = serve(&[IMPATIENT]);
    let stream = connect(server.http.0);
    let head = "POST /v2/models/m/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n";
    (&stream).write_all(head.as_bytes()).unwrap();
    let dripping = stream.try_clone().unwrap();
    let drip = std::thread::spawn(move || {
        while (&dripping).write_all(b" ").is_ok() {
            std::thread::park_timeout(std::time::Duration::from_millis(100));
        }
    });
    assert!(until_closed(&stream).starts_with("HTTP/1.1 408"));
    drop(stream);
    drip.join().unwrap();
}

#[test]
fn heads_that_never_end_are_given_up_on_every_port() {
    let server = serve(&[]);
    for Http(address) in [server.http, server.metrics] {
        let silent = connect(address);
        let begun = connect(address);
        (&begun).write_all(b"GET /v2/health/live HTTP/1.1\r\nHo").unwrap();
        until_closed(&begun);
        until_closed(&silent);
    }
    server.is_well();
}

#[test]
fn r24_a_connection_without_a_preface_is_closed() {
    let server = serve(&[]);
    let silent = connect(server.grpc);
    let begun = connect(server.grpc);
    (&begun).write_all(b"PRI * HTTP/2.0\r\n").unwrap();
    until_closed(&silent);
    until_closed(&begun);
    server.is_well();
}

#[test]
fn r08_a_call_that_is_opened_and_left_ends() {
    let server = serve(&[IMPATIENT]);
    for method in ["ModelInfer", "ModelStreamInfer", "ServerLive"] {
        let mut frames = Frames::connect(server.grpc);
        frames.send(&[
            frame(HEADERS, END_HEADERS, 1, &head(method)),
            // A message of 1 MiB begins.
            frame(DATA, 0, 1, &[0, 0, 0x10, 0, 0]),
        ]);
        loop {
            let Received { kind, flags, stream, .. } = frames.receive();
            if stream == 1 && (kind == RST_STREAM || kind == HEADERS && flags & END_STREAM != 0) {
                break;
            }
        }
    }
    server.is_well();
}

#[test]
fn r06_an_answer_that_nobody_reads_is_given_up() {
    let server = serve(&[IMPATIENT]);
    let before = process::sockets(server.pid);
    let data = vec![7; 32 << 20];
    let request = json!({
        "inputs": [{
            "name": "x", "datatype": "UINT8", "shape": [data.len()],
            "parameters": {"binary_data_size": data.len()},
        }],
        "parameters": {"binary_data_output": true},
    });
    let mut stream = server.http.start_binary("bytes", &request, &[&data]);
    // The answer has begun; it is not read on.
    stream.read_exact(&mut [0; 12]).unwrap();
    until("the connection to be closed", || process::sockets(server.pid) <= before);
    server.is_well();
}

#[test]
fn b6_connections_beyond_the_limit_are_refused_and_the_others_served() {
    let server = serve(&["--max-connections=8"]);
    let request = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n";
    let mut kept: Vec<TcpStream> = Vec::new();
    let ask = |mut stream: &TcpStream| {
        let mut answer = [0; 12];
        stream.write_all(request).and_then(|()| stream.read_exact(&mut answer))?;
        assert_eq!(&answer, b"HTTP/1.1 200");
        Ok::<(), std::io::Error>(())
    };
    until("eight connections", || {
        let stream = connect(server.http.0);
        // One that is idle would be replaced.
        if begin_request(&stream).is_ok() {
            kept.push(stream);
        }
        kept.len() == 8
    });
    for address in [server.http.0, server.grpc] {
        assert_eq!(until_closed(&connect(address)), "", "the ninth is closed at once");
    }
    ask(&connect(server.metrics.0)).expect("probes have connections of their own");
    server.logged("connections were refused: 8 are open, of at most 8");
    kept.pop();
    until("room for another", || ask(&connect(server.http.0)).is_ok());
}

#[test]
fn a_refused_body_that_goes_on_ends_with_its_connection_and_is_no_error_of_the_server() {
    let server = serve(&["--http-max-input-size=1000"]);
    let stream = connect(server.http.0);
    let head = "POST /v2/models/m/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 1073741824\r\n\r\n";
    (&stream).write_all(head.as_bytes()).unwrap();
    let sending = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let piece = vec![b' '; 1 << 16];
        while (&sending).write_all(&piece).is_ok() {}
    });
    let answer = until_closed(&stream);
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    drop(stream);
    sender.join().unwrap();
    server.is_well();
    server.signal(Signal::TERM);
    server.end();
    let log = server.log();
    assert!(!log.contains("payload stream error"), "{log}");
}
