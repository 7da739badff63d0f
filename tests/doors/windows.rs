//! Windows of HTTP/2: clients that leave them shut, or send drop by drop.

use std::{thread, time::Duration};

use prost::Message;
use troupe_proto::inference::ServerLiveRequest;

use crate::support::{
    Repository, Server,
    grpc::{Grpc, bytes},
    http2::{
        ACK, DATA, END_HEADERS, Frames, HEADERS, INITIAL_WINDOW_SIZE, Received, SETTINGS,
        WINDOW_UPDATE, frame, head, message, number, setting,
    },
    native,
    process::resident_mib,
    until,
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

/// The window that the server gives to each new stream.
fn window(client: &mut Frames) -> usize {
    loop {
        let Received { kind, flags, payload, .. } = client.receive();
        if kind != SETTINGS || flags & ACK != 0 {
            continue;
        }
        let mut settings = payload.chunks_exact(6).map(|it| it.split_at(2));
        let (_, value) = settings.find(|it| it.0 == INITIAL_WINDOW_SIZE.to_be_bytes()).unwrap();
        return u32::from_be_bytes(value.try_into().unwrap()) as usize;
    }
}

/// A client that takes no answer, and has sent on a stream what the server lets it: the stream is
/// not read while an answer waits.
fn park(server: &Server) -> (Frames, usize) {
    let mut client = Frames::connect(server.grpc);
    let window = window(&mut client);
    let small = bytes("bytes", 10).encode_to_vec();
    let prefix = |size: usize| [&[0][..], &(size as u32).to_be_bytes()].concat();
    let first = [prefix(small.len()), small].concat();
    let begin = frame(HEADERS, END_HEADERS, 1, &head("ModelStreamInfer"));
    client.send(&[setting(INITIAL_WINDOW_SIZE, 0), begin, frame(DATA, 0, 1, &first)]);
    // The first answer waits now.
    client.is_read();
    let rest = [prefix(window), vec![7; window - first.len() - 5]].concat();
    let frames: Vec<_> = rest.chunks(16 << 10).map(|it| frame(DATA, 0, 1, it)).collect();
    client.send(&frames);
    (client, window)
}

#[test]
fn what_clients_park_unread_is_bounded_by_the_budget() {
    let bytes_model = native("identity", "x:UINT8[-1] -> y:UINT8[-1]");
    let budget = format!("--max-inflight-bytes={}", 64 << 20);
    let server = Server::with(Repository::of([("bytes", bytes_model)]), &[&budget]);
    let before = resident_mib(server.pid);
    let (mut parked, windows): (Vec<_>, Vec<_>) = (0..60).map(|_| park(&server)).unzip();
    for client in &mut parked {
        client.is_read();
    }
    let resident = resident_mib(server.pid);
    assert!(resident < before + 50, "{before} MiB, then {resident}");
    // An eighth of the budget has room for two with wide windows.
    assert_eq!(windows.iter().filter(|it| **it == 2 << 20).count(), 2, "{windows:?}");
    // Who comes later has narrow ones, and is served.
    let answer = Grpc::connect(server.grpc).infer(bytes("bytes", SIZE)).unwrap();
    assert_eq!(answer.raw_output_contents[0].len(), SIZE);
}
