//! Windows of HTTP/2: clients that leave them shut, or send drop by drop.

use std::{thread, time::Duration};

use prost::Message;
use troupe_proto::inference::ServerLiveRequest;

use crate::support::{
    Repository, Server,
    grpc::bytes,
    http2::{
        DATA, END_HEADERS, Frames, HEADERS, INITIAL_WINDOW_SIZE, Received, WINDOW_UPDATE, frame,
        head, message, number, setting,
    },
    native, until,
};

const SIZE: usize = 1 << 20;
const PAUSE: Duration = Duration::from_millis(100);

fn serve(stalled_secs: u32) -> Server {
    let bytes = native("identity", "x:UINT8[-1] -> y:UINT8[-1]");
    let patience = format!("--stalled-connection-secs={stalled_secs}");
    Server::with(Repository::of([("bytes", bytes)]), &[&patience])
}

/// An inference of 1 MiB, which comes back.
fn inference(stream: u32) -> Vec<u8> {
    message(stream, &bytes("bytes", SIZE).encode_to_vec())
}

fn in_flight(server: &Server) -> f64 {
    ["received", "tensors", "responses"]
        .iter()
        .map(|kind| server.metric("troupe_inflight_bytes", &[kind]).unwrap())
        .sum()
}

/// A client that takes nothing of answers unless it says so, with an inference on its way.
fn ask(server: &Server, method: &str) -> Frames {
    let mut client = Frames::connect(server.grpc);
    // Until the server has said it, a connection has 64 KiB: who sends more is cut for that.
    let opens = |it: &Received| it.kind == WINDOW_UPDATE && it.stream == 0;
    while !opens(&client.receive()) {}
    let begin = frame(HEADERS, END_HEADERS, 1, &head(method));
    client.send(&[setting(INITIAL_WINDOW_SIZE, 0), begin, inference(1)]);
    client
}

#[test]
fn an_answer_whose_window_stays_shut_is_given_up() {
    let server = serve(1);
    for method in ["ModelInfer", "ModelStreamInfer"] {
        let mut client = ask(&server, method);
        assert!(!client.until_ended(1), "{method}: the connection ends");
    }
    until("the memory of the answers to be free", || in_flight(&server) == 0.0);
    server.is_well();
}

#[test]
fn an_answer_whose_window_is_opened_byte_by_byte_is_given_up_beside_other_calls() {
    let server = serve(3);
    let mut client = ask(&server, "ModelInfer");
    let mut reading = client.share();
    let reader = thread::spawn(move || while reading.receive_or_be_cut().is_ok() {});
    for stream in (3..).step_by(2) {
        let live = [
            frame(HEADERS, END_HEADERS, stream, &head("ServerLive")),
            number(WINDOW_UPDATE, stream, 1000),
            message(stream, &ServerLiveRequest {}.encode_to_vec()),
            number(WINDOW_UPDATE, 1, 1),
        ];
        if client.send_or_be_cut(&live).is_err() {
            break;
        }
        thread::park_timeout(PAUSE);
    }
    reader.join().unwrap();
    until("the memory of the answer to be free", || in_flight(&server) == 0.0);
}

#[test]
fn an_answer_that_is_taken_in_time_arrives() {
    let server = serve(3);
    let mut client = ask(&server, "ModelInfer");
    client.send(&[number(WINDOW_UPDATE, 0, 1 << 21)]);
    let mut reading = client.share();
    let reader = thread::spawn(move || reading.until_ended(1));
    // All of it takes longer than an answer may stand still.
    for _ in 0..16 + 1 {
        client.send(&[number(WINDOW_UPDATE, 1, 64 << 10)]);
        thread::park_timeout(3 * PAUSE);
    }
    assert!(reader.join().unwrap(), "the call ends before its connection");
}

#[test]
fn a_request_that_drips_is_given_up() {
    let server = serve(1);
    for method in ["ModelInfer", "ModelStreamInfer", "ServerLive"] {
        let mut client = Frames::connect(server.grpc);
        client.send(&[
            frame(HEADERS, END_HEADERS, 1, &head(method)),
            // A message of 64 KiB begins.
            frame(DATA, 0, 1, &[0, 0, 1, 0, 0]),
        ]);
        let mut reading = client.share();
        let reader = thread::spawn(move || reading.until_ended(1));
        while !reader.is_finished() {
            client.send(&[frame(DATA, 0, 1, b"\n")]);
            thread::park_timeout(PAUSE);
        }
        assert!(reader.join().unwrap(), "{method}");
    }
    server.is_well();
}
