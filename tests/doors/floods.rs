//! Floods and malformed heads over HTTP and HTTP/2: each is answered or cut, and costs little.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

use crate::support::{
    PATIENCE, Repository, Server,
    http2::{
        CONTINUATION, DATA, END_HEADERS, Frames, HEADERS, PADDED, PING, PRIORITY, RST_STREAM,
        SETTINGS, WINDOW_UPDATE, frame, head, number,
    },
    native, process,
};

const MIB: usize = 1 << 20;
/// What the server may hold more after all of a test's floods.
const MAX_GROWTH_MIB: u64 = 100;
/// So much of a head is read in any case.
const MAX_READ_BYTES: usize = 4 << 10;
/// Frames or lines of a flood.
const MANY: usize = 20_000;

fn serve() -> Server {
    let model = native("identity", "x:FP32[-1] -> y:FP32[-1]");
    Server::with(Repository::of([("m", model)]), &["--stalled-connection-secs=2"])
}

/// Runs each attack; the server is well after each, and has not grown.
fn withstand<T>(attacks: Vec<(&str, T)>, run: impl Fn(&Server, &str, T)) {
    let server = serve();
    let before = process::resident_mib(server.pid);
    for (name, attack) in attacks {
        run(&server, name, attack);
        server.still_serves(name);
        let most = process::memory_mib(server.pid, "VmHWM");
        assert!(most <= before + MAX_GROWTH_MIB, "{name}: {before} MiB became {most} MiB");
    }
}

fn get(headers: &str) -> String {
    format!("GET /v2/health/live HTTP/1.1\r\nHost: t\r\n{headers}\r\n")
}

fn post(headers: &str, body: &str) -> String {
    format!("POST /v2/models/m/infer HTTP/1.1\r\nHost: t\r\n{headers}\r\n\r\n{body}")
}

/// The first line that comes; empty if the server only closes.
fn first_line(mut stream: TcpStream, sent: &str) -> String {
    let mut writer = stream.try_clone().unwrap();
    thread::scope(|scope| {
        // It may be cut in the middle.
        scope.spawn(move || writer.write_all(sent.as_bytes()));
        let mut line = String::new();
        let read = BufReader::new(&mut stream).read_line(&mut line);
        match read.map_err(|it| it.kind()) {
            Ok(_) | Err(ErrorKind::ConnectionReset) => line.trim_end().to_owned(),
            Err(error) => panic!("neither an answer nor an end: {error}"),
        }
    })
}

#[test]
fn heads_that_no_client_sends_are_refused() {
    const BAD: &str = "HTTP/1.1 400 Bad Request";
    const LARGE: &str = "HTTP/1.1 431 Request Header Fields Too Large";
    const FINE: &str = "HTTP/1.1 200 OK";
    let line = |it: usize| format!("x-{it}: y\r\n");
    let lines: String = (0..MANY).map(line).collect();
    let ranges: String = (0..5000).map(|it| format!("{it}-,")).collect();
    let long = "a".repeat(MIB);
    withstand(
        vec![
            ("a header of 1 MiB", (get(&format!("x: {long}\r\n")), LARGE)),
            ("a name of 1 MiB", (get(&format!("{long}: x\r\n")), LARGE)),
            ("a path of 1 MiB", (format!("GET /{long} HTTP/1.1\r\nHost: t\r\n\r\n"), LARGE)),
            ("a method of 1 MiB", (format!("{long} / HTTP/1.1\r\nHost: t\r\n\r\n"), LARGE)),
            ("many lines", (get(&lines), LARGE)),
            ("many ranges", (get(&format!("Range: bytes={ranges}\r\n")), FINE)),
            (
                "many encodings",
                (get(&format!("Accept-Encoding: {}\r\n", "gzip,".repeat(9000))), FINE),
            ),
            ("no protocol", ("\0".repeat(MIB), BAD)),
            ("a protocol of the future", ("GET / HTTP/9.9\r\n\r\n".to_owned(), BAD)),
            ("TLS", ("\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{3}\u{3}".to_owned(), BAD)),
            ("HTTP/2", ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), BAD)),
            ("no host", ("GET /v2/health/live HTTP/1.1\r\n\r\n".to_owned(), BAD)),
            ("two hosts", (get("Host: u\r\n"), BAD)),
            ("a folded line", (get("x: y\r\n z\r\n"), BAD)),
            ("a bare CR", (get("x: y\rz: y\r\n"), BAD)),
            ("a space before the colon", (post("Content-Length : 2", "{}"), BAD)),
            ("a signed version", ("GET / HTTP/+1.1\r\nHost: t\r\n\r\n".to_owned(), BAD)),
            ("an upgrade to HTTP/2", (get("Connection: Upgrade\r\nUpgrade: h2c\r\n"), FINE)),
            ("lines that end with LF", (get("").replace('\r', ""), FINE)),
            ("chunks of HTTP/1.0", {
                let chunked = post("Transfer-Encoding: chunked", "0\r\n\r\n");
                (chunked.replace("HTTP/1.1", "HTTP/1.0"), BAD)
            }),
            (
                "a coding before chunks",
                (post("Transfer-Encoding: gzip, chunked", "0\r\n\r\n"), BAD),
            ),
            ("a signed chunk", (post("Transfer-Encoding: chunked", "+2\r\n{}\r\n0\r\n\r\n"), BAD)),
            ("chunks with LF", (post("Transfer-Encoding: chunked", "2\n{}\n0\n\n"), BAD)),
            ("two lengths", (post("Content-Length: 1\r\nContent-Length: 2", "{}"), BAD)),
            ("a negative length", (post("Content-Length: -1", "{}"), BAD)),
            ("a signed length", (post("Content-Length: +2", "{}"), BAD)),
            ("a length beyond all", (post("Content-Length: 99999999999999999999", "{}"), BAD)),
            (
                "a length and chunks",
                (post("Content-Length: 2\r\nTransfer-Encoding: chunked", "{}"), BAD),
            ),
            ("chunked twice", (post("Transfer-Encoding: chunked, chunked", "0\r\n\r\n"), BAD)),
            (
                "a chunk beyond all",
                (post("Transfer-Encoding: chunked", "fffffffffffffffff\r\n{}"), BAD),
            ),
            ("a chunk of no number", (post("Transfer-Encoding: chunked", "zz\r\n{}"), BAD)),
        ],
        |server, name, (sent, expected)| {
            let line = first_line(server.http.connect(), &sent);
            // What the server has not read when it closes resets the connection, and the answer may
            // be lost with it. A short head is read whole.
            let may_be_reset = expected != FINE && MAX_READ_BYTES < sent.len();
            assert!(line == expected || (line.is_empty() && may_be_reset), "{name}: {line}");
        },
    );
}

#[test]
fn requests_that_are_sent_all_at_once_are_all_answered() {
    let all = get("").repeat(MANY) + &get("Connection: close\r\n");
    withstand(vec![("many requests", all)], |server, name, sent| {
        let mut stream = server.http.connect();
        let mut writer = stream.try_clone().unwrap();
        let mut text = String::new();
        thread::scope(|scope| {
            scope.spawn(move || writer.write_all(sent.as_bytes()).unwrap());
            stream.read_to_string(&mut text).unwrap();
        });
        assert_eq!(text.matches("HTTP/1.1 200 OK").count(), MANY + 1, "{name}");
    });
}

/// Writes the same over and over until nothing more is taken or the connection ends, and reads
/// nothing until it has ended.
fn pour(mut stream: TcpStream, bytes: &[u8]) {
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        match stream.write_all(bytes) {
            Ok(()) => (),
            Err(error) if error.kind() == ErrorKind::WouldBlock => (),
            Err(_) => return,
        }
        assert!(std::time::Instant::now() < deadline, "the server takes it all, for ever");
    }
}

#[test]
fn answers_that_nobody_reads_end_the_connection_that_asks_for_more_and_more() {
    withstand(vec![("HTTP", true), ("HTTP/2", false)], |server, _, is_http| match is_http {
        true => pour(server.http.connect(), get("").repeat(100).as_bytes()),
        false => {
            let pings = frame(PING, 0, 0, b"are you?").repeat(100);
            pour(Frames::connect(server.grpc).0, &pings);
        }
    });
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Ends,
    GoesOn,
}
use Outcome::{Ends, GoesOn};

/// Sends all of it and asks whether the server still answers there.
fn outcome(server: &Server, sent: &[u8]) -> Outcome {
    const LAST: &[u8; 8] = b"the last";
    let mut frames = Frames::connect(server.grpc);
    let mut writer = frames.share().0;
    thread::scope(|scope| {
        scope.spawn(move || {
            // It may be cut in the middle.
            let _ =
                writer.write_all(sent).and_then(|()| writer.write_all(&frame(PING, 0, 0, LAST)));
        });
        loop {
            match frames.receive_or_be_cut() {
                Ok(it) if it.kind == PING && it.payload == LAST => return GoesOn,
                Ok(_) => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("neither"),
                Err(_) => return Ends,
            }
        }
    })
}

/// A frame for each of many calls.
fn calls(count: usize, frames: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (0..count as u32).flat_map(|it| frames(2 * it + 1)).collect()
}

fn begin(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &head("ModelStreamInfer"))
}

/// A header of 4 KB that is named once, and then by its number again and again.
fn hpack_bomb() -> Vec<u8> {
    let value = [b'a'; 4000];
    // A length of 4000 takes three bytes: 127 + 33 + 30 * 128.
    let literal = [&[0x40, 1, b'x', 0x7f, 0xa1, 0x1e][..], &value].concat();
    let named = vec![0xbe; 12_000];
    frame(HEADERS, END_HEADERS, 1, &[head("ServerLive"), literal, named].concat())
}

#[test]
fn frames_that_no_client_sends_end_their_connection_or_nothing() {
    let open = begin(1);
    let with = |more: Vec<u8>| [open.clone(), more].concat();
    let reset = |it: u32| [begin(it), number(RST_STREAM, it, 8)].concat();
    let part = vec![b'a'; 16 << 10];
    let unended = frame(HEADERS, 0, 1, &head("ServerLive"));
    let continued = frame(CONTINUATION, 0, 1, &part).repeat(1000);
    withstand(
        vec![
            ("calls that are taken back", (calls(MANY, reset), Ends)),
            ("a head that is continued", ([unended.clone(), continued].concat(), Ends)),
            (
                "a head that is continued by nothing",
                ([unended, frame(CONTINUATION, 0, 1, b"").repeat(MANY)].concat(), Ends),
            ),
            ("settings", (frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]).repeat(MANY), GoesOn)),
            ("pings", (frame(PING, 0, 0, b"are you?").repeat(MANY), GoesOn)),
            ("priorities", (calls(MANY, |it| frame(PRIORITY, 0, it, &[0, 0, 0, 0, 9])), GoesOn)),
            ("a priority of itself", (frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 9]), GoesOn)),
            ("frames of no kind", (frame(200, 255, 1, b"what?").repeat(MANY), GoesOn)),
            ("a window too wide", (number(WINDOW_UPDATE, 0, (1 << 31) - 1).repeat(2), Ends)),
            ("a window of nothing", (number(WINDOW_UPDATE, 0, 0), Ends)),
            (
                "a call's window too wide",
                (with(number(WINDOW_UPDATE, 1, (1 << 31) - 1).repeat(2)), GoesOn),
            ),
            ("windows", (number(WINDOW_UPDATE, 0, 1).repeat(MANY), GoesOn)),
            ("data of nothing", (with(frame(DATA, 0, 1, b"").repeat(MANY)), Ends)),
            ("data of no call", (frame(DATA, 0, 7, b"data"), Ends)),
            ("more padding than there is", (with(frame(DATA, PADDED, 1, &[255, 0])), Ends)),
            ("a frame that is too long", (with(frame(DATA, 0, 1, &vec![0; MIB])), Ends)),
            ("a promise", (with(frame(5, END_HEADERS, 1, &[0, 0, 0, 2])), Ends)),
            ("a call of the server's", (begin(2), Ends)),
            ("calls in no order", ([begin(9), begin(3)].concat(), Ends)),
            ("a head of no sense", (frame(HEADERS, END_HEADERS, 1, &[0xff; 64]), Ends)),
            ("a head that names itself", (hpack_bomb(), Ends)),
            ("more calls than there may be", (calls(3000, begin), GoesOn)),
        ],
        |server, name, (sent, expected)| assert_eq!(outcome(server, &sent), expected, "{name}"),
    );
}
