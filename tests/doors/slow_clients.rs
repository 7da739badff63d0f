//! Clients that are slow on purpose: heads, bodies and answers that drip, and connections that wait.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    thread,
    time::Duration,
};

use serde_json::json;

use crate::support::{Http, PATIENCE, Repository, Server, native, process, until};

const IMPATIENT: &str = "--stalled-connection-secs=1";
/// A connection without requests has no buffers any more after this.
const IDLE: Duration = Duration::from_secs(4);

const GET: &[u8] = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n";

fn serve(flags: &[&str]) -> Server {
    let bytes = native("identity", "x:UINT8[-1] -> y:UINT8[-1]");
    Server::with(Repository::of([("bytes", bytes)]), flags)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// An inference of so many bytes, which come back.
fn inference(size: usize) -> Vec<u8> {
    let json = json!({
        "inputs": [{
            "name": "x", "datatype": "UINT8", "shape": [size],
            "parameters": {"binary_data_size": size},
        }],
        "parameters": {"binary_data_output": true},
    })
    .to_string();
    let head = format!(
        "POST /v2/models/bytes/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\
         Inference-Header-Content-Length: {}\r\n\r\n{json}",
        json.len() + size,
        json.len()
    );
    [head.as_bytes(), &vec![7; size]].concat()
}

/// Reads one answer to its end.
fn read_answer(mut stream: impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.lines().find_map(|it| it.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |it| it.parse().unwrap());
    stream.read_exact(&mut vec![0; length]).unwrap();
    head
}

fn ask(mut stream: &TcpStream, request: &[u8]) {
    stream.write_all(request).unwrap();
    let head = read_answer(stream);
    assert!(head.starts_with("http/1.1 200"), "{head}");
}

/// Waits until the server has closed the connection.
fn until_closed(mut stream: impl Read) {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => (),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => (),
        Err(error) => panic!("the server keeps the connection: {error}"),
    }
}

/// Writes a byte now and then until the connection ends.
fn drip(mut stream: &TcpStream) {
    while stream.write_all(b"x").is_ok() {
        thread::park_timeout(Duration::from_millis(100));
    }
}

#[test]
fn half_a_head_behind_an_answered_request_is_given_up() {
    let server = serve(&[IMPATIENT]);
    for Http(address) in [server.http, server.metrics] {
        let [still, dripping, was_idle] = [(); 3].map(|()| connect(address));
        for stream in [&still, &dripping, &was_idle] {
            ask(stream, GET);
        }
        (&still).write_all(b"GET /v2/hea").unwrap();
        (&dripping).write_all(b"GET /v2/health/live HTTP/1.1\r\nX: ").unwrap();
        let dripped = dripping.try_clone().unwrap();
        let drip = thread::spawn(move || drip(&dripped));
        until_closed(&still);
        until_closed(&dripping);
        drop(dripping);
        drip.join().unwrap();
        thread::park_timeout(IDLE);
        (&was_idle).write_all(b"GET /v2/hea").unwrap();
        until_closed(&was_idle);
    }
    server.is_well();
}

#[test]
fn idle_connections_are_served_again() {
    let server = serve(&[IMPATIENT]);
    let streams = [(); 3].map(|()| connect(server.http.0));
    for _ in 0..2 {
        for stream in &streams {
            ask(stream, GET);
            ask(stream, &inference(100));
        }
        let [_, one, other] = &streams;
        ask(one, GET);
        ask(
            other,
            b"POST /v2/repository/index HTTP/1.1\r\nHost: t\r\n\
            Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        );
        thread::park_timeout(IDLE);
    }
    for stream in &streams {
        ask(stream, &inference(1 << 20));
    }
}

#[test]
fn half_a_head_that_came_with_the_request_before_is_read_on_or_given_up() {
    let server = serve(&[IMPATIENT]);
    for first in [GET.to_vec(), inference(100)] {
        let [goes_on, still] = [(); 2].map(|()| connect(server.http.0));
        for stream in [&goes_on, &still] {
            ask(stream, &[&first[..], &GET[..20]].concat());
        }
        ask(&goes_on, &GET[20..]);
        until_closed(&still);
    }
}

#[test]
fn a_body_that_came_fast_at_first_may_not_drip_later() {
    let server = serve(&[IMPATIENT]);
    let stream = connect(server.http.0);
    let body = inference(2 << 20);
    (&stream).write_all(&body[..body.len() - (64 << 10)]).unwrap();
    drip(&stream);
    server.is_well();
}

/// Sends this over a new connection, and drips what may be missing until the connection ends.
fn hold(address: SocketAddr, part: &[u8]) -> thread::JoinHandle<()> {
    let mut stream = connect(address);
    stream.write_all(part).unwrap();
    thread::spawn(move || {
        while stream.write_all(&[7; 200]).is_ok() {
            thread::park_timeout(Duration::from_millis(100));
        }
    })
}

#[test]
fn clients_that_hold_the_memory_and_drip_make_room_for_others() {
    const MIB: usize = 1 << 20;
    let server = serve(&["--max-inflight-bytes=67108864", "--stalled-connection-secs=3"]);
    let unfinished = inference(4 * MIB);
    let part = &unfinished[..unfinished.len() - MIB];
    let holders: Vec<_> = (0..12).map(|_| hold(server.http.0, part)).collect();
    let large = inference(15 * MIB);
    // It is refused once its head has come, or not at all.
    let is_refused = || {
        let (mut stream, mut status) = (connect(server.http.0), [0; 12]);
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        stream.write_all(&large[..1000]).unwrap();
        stream.read_exact(&mut status).is_ok() && &status == b"HTTP/1.1 503"
    };
    until("the memory to be held", is_refused);
    until("room for a large request", || !is_refused());
    ask(&connect(server.http.0), &large);
    let ended = || holders.iter().filter(|it| it.is_finished()).count();
    until("one to have been ended", || ended() != 0);
    assert_ne!(ended(), holders.len(), "no more than are in the way");
    drop(server);
    holders.into_iter().for_each(|it| it.join().unwrap());
}

#[test]
fn an_answer_that_is_read_drop_by_drop_is_given_up() {
    let server = serve(&[IMPATIENT]);
    let before = process::sockets(server.pid);
    let stream = connect(server.http.0);
    (&stream).write_all(&inference(32 << 20)).unwrap();
    until("the connection to be closed", || {
        // What is left of the answer may come with its end.
        let _ = (&stream).read(&mut [0; 16]);
        process::sockets(server.pid) <= before
    });
    server.is_well();
}

#[test]
fn an_answer_that_nobody_reads_is_given_up_on_unix_sockets() {
    let flags = ["--http-address=unix:h", "--grpc-address=unix:g", "--metrics-address=unix:m"];
    let bytes = native("identity", "x:UINT8[-1] -> y:UINT8[-1]");
    let server = Server::launch(
        Repository::of([("bytes", bytes)]),
        &[&flags[..], &[IMPATIENT]].concat(),
        &[],
    );
    let path = server.repository.beside("h");
    let ready = b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n\r\n";
    until("the server to be ready", || {
        let Ok(mut stream) = UnixStream::connect(&path) else { return false };
        stream.write_all(ready).unwrap();
        read_answer(&stream).starts_with("http/1.1 200")
    });
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&inference(8 << 20)).unwrap();
    // The answer has begun; it is not read on until the server has closed.
    stream.read_exact(&mut [0; 12]).unwrap();
    let before = process::sockets(server.pid);
    until("the connection to be closed", || process::sockets(server.pid) < before);
}

#[test]
fn the_buffer_for_answers_counts_until_its_connection_is_idle() {
    let server = serve(&[]);
    let buffers = || server.metric("troupe_inflight_bytes", &["other"]).unwrap();
    let mut stream = connect(server.http.0);
    stream.write_all(&inference(8 << 20)).unwrap();
    // The answer is more than the kernel takes for somebody who does not read.
    until("a part of the answer to wait in a buffer", || 256e3 < buffers());
    read_answer(&stream);
    until("the buffers to be given back", || buffers() == 0.0);
    ask(&stream, GET);
}
