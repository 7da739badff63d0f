//! Workers and connections that are killed under load: only what ran in them is lost.
//!
//! `cargo test` kills a few; `KILLS=1000 CUT_CONNECTIONS=10000 cargo test --test main kills --
//! --nocapture` many, and says what was lost.

use std::{
    collections::BTreeMap,
    env,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use rustix::{net::sockopt::set_socket_linger, process::Signal};
use serde_json::{Value, json};

use prost::Message;

use crate::support::{
    Answer, Http, Model, Repository, Server, at_once, ensemble,
    grpc::{Grpc, bytes},
    http2::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, frame, head},
    models::execute,
    native, process,
    subject::Subject,
    until,
};

const BYTES: &str = "x:UINT8[-1] -> y:UINT8[-1]";
/// Large enough to travel in shared memory, and for an answer not to fit into a socket's buffer.
const LARGE: usize = 1 << 20;
/// Clients that ask all the time.
const CLIENTS: usize = 4;

fn number(name: &str, short: usize) -> usize {
    env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(short)
}

/// Answers with what it got, and with its process.
fn python() -> Model {
    execute(
        "x:UINT8[-1] -> y:UINT8[-1] pid:INT32[1]",
        "
        get = pb_utils.get_input_tensor_by_name
        pid = pb_utils.Tensor('pid', np.array([os.getpid()], np.int32))
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor('y', get(it, 'x').as_numpy()), pid])
            for it in requests
        ]",
    )
    .with("instance_group { count: 2 kind: KIND_CPU }")
}

fn subject() -> Subject {
    let chain = ensemble(BYTES, &["native: x=x -> y=t", "python: x=t -> y=y"]);
    let models = [("native", native("identity", BYTES)), ("python", python()), ("chain", chain)];
    Subject::new(Repository::of(models), &[], |server| {
        for model in ["native", "python", "chain"] {
            for size in [8, LARGE] {
                let asked = || is_right(&ask(server.http, model, size), size);
                until(&format!("{model} to answer"), asked);
            }
        }
    })
}

fn asked(size: usize) -> Value {
    json!({
        "inputs": [{"name": "x", "datatype": "UINT8", "shape": [size],
                    "parameters": {"binary_data_size": size}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": true}}],
    })
}

fn ask(http: Http, model: &str, size: usize) -> Answer {
    http.infer_binary(model, &asked(size), &[&vec![7; size]])
}

fn is_right(answer: &Answer, size: usize) -> bool {
    answer.status == 200 && answer.body.ends_with(&vec![7; size])
}

/// What became of the requests of those that ask all the time.
#[derive(Default)]
struct Tally {
    is_over: AtomicBool,
    answered: AtomicUsize,
    /// Errors, by model and text without numbers.
    lost: Mutex<BTreeMap<String, usize>>,
}

impl Tally {
    /// Asks until it is over: all models, both doors, small and large.
    fn ask(&self, server: &Server, client: usize) {
        let mut grpc = Grpc::connect(server.grpc);
        for turn in client.. {
            if self.is_over.load(SeqCst) {
                return;
            }
            let model = ["python", "chain", "native"][turn % 3];
            let size = if turn % 5 == 0 { LARGE } else { 8 };
            let error = if turn % 2 == 0 {
                let answer = ask(server.http, model, size);
                (!is_right(&answer, size)).then(|| format!("{}: {}", answer.status, answer.error()))
            } else {
                let answer = grpc.infer(bytes(model, size));
                let is_right = |it: &[bytes::Bytes]| it.iter().any(|it| *it == vec![7; size]);
                match answer {
                    Ok(it) if is_right(&it.raw_output_contents) => None,
                    Ok(it) => Some(format!("wrong: {it:?}")),
                    Err(status) => Some(format!("{:?}: {}", status.code(), status.message())),
                }
            };
            match error {
                None => drop(self.answered.fetch_add(1, SeqCst)),
                Some(error) => {
                    let text: String = error.chars().filter(|it| !it.is_ascii_digit()).collect();
                    *self.lost.lock().unwrap().entry(format!("{model}: {text}")).or_default() += 1;
                }
            }
        }
    }

    fn lost(&self) -> usize {
        self.lost.lock().unwrap().values().sum()
    }

    fn report(&self, what: &str) {
        let (answered, lost) = (self.answered.load(SeqCst), self.lost());
        println!("{what}: {answered} requests were answered meanwhile, {lost} were lost");
        for (text, count) in &*self.lost.lock().unwrap() {
            println!("  {count} × {text}");
        }
    }
}

/// Does something while clients ask.
fn under_load(server: &Server, attack: impl FnOnce(&Tally)) -> Tally {
    let tally = Tally::default();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let tally = &tally;
            scope.spawn(move || tally.ask(server, client));
        }
        let attacked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attack(&tally)));
        tally.is_over.store(true, SeqCst);
        attacked.unwrap();
    });
    tally
}

/// The process of one of the two workers.
fn worker(server: &Server) -> Option<u32> {
    let answer = server.infer("python", &{
        let mut request = asked(1);
        request["inputs"][0] = json!({"name": "x", "datatype": "UINT8", "shape": [1], "data": [7]});
        request["outputs"] = json!([{"name": "pid"}]);
        request
    });
    (answer.status == 200).then(|| answer.numbers("pid")[0] as u32)
}

#[test]
fn a_killed_worker_takes_only_what_ran_in_it() {
    let kills = number("KILLS", 20);
    let subject = subject();
    let server = &subject.server;
    let before = process::descendants(server.pid).len();
    let files = process::shared_memory_files();
    let tally = under_load(server, |_| {
        for kill in 0..kills {
            let pid = crate::support::eventually("a worker", || worker(server));
            // At different places of what it does.
            thread::park_timeout(Duration::from_micros(731 * (kill as u64 % 17)));
            process::signal(pid, Signal::KILL);
            until("the worker's end", || !process::is_alive(pid));
        }
    });
    tally.report(&format!("{kills} kills of workers"));
    let lost = tally.lost.lock().unwrap();
    for text in lost.keys() {
        assert!(!text.starts_with("native"), "{text}");
        assert!(text.contains("it was ended by signal  (SIGKILL"), "{text}");
    }
    drop(lost);
    // Of what a worker had read, it had begun one request, and may hold one more answer back.
    assert!(tally.lost() <= 2 * kills, "{} requests were lost by {kills} kills", tally.lost());
    assert!(0 < tally.answered.load(SeqCst));
    subject.is_sound();
    until("both workers, and nothing else", || process::descendants(server.pid).len() == before);
    process::no_file_is_left(&files);
}

/// Resets the connection.
fn cut(stream: &TcpStream) {
    set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
}

/// A request over HTTP that is cut after a part of it, or after a part of its answer.
fn cut_http(address: SocketAddr, model: &str, turn: usize) {
    let (json, data) = (asked(LARGE).to_string(), vec![7; LARGE]);
    let head = format!(
        "POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\
         Inference-Header-Content-Length: {}\r\n\r\n",
        json.len() + data.len(),
        json.len()
    );
    let whole = [head.as_bytes(), json.as_bytes(), &data].concat();
    let stream = TcpStream::connect(address).unwrap();
    let end = match turn % 4 {
        0 => turn % head.len(),
        1 => head.len() + turn % json.len(),
        2 => head.len() + json.len() + turn * 977 % LARGE,
        _ => whole.len(),
    };
    let _ = (&stream).write_all(&whole[..end]);
    if turn % 8 == 7 {
        let _ = (&stream).read_exact(&mut vec![0; turn * 77 % LARGE]);
    }
    cut(&stream);
}

/// The same over gRPC: calls and streams.
fn cut_grpc(address: SocketAddr, model: &str, turn: usize) {
    let message = bytes(model, 32 << 10).encode_to_vec();
    let body = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let method = if turn.is_multiple_of(3) { "ModelStreamInfer" } else { "ModelInfer" };
    let mut sent = frame(HEADERS, END_HEADERS, 1, &head(method));
    let begun = sent.len();
    for part in body.chunks(16 << 10) {
        sent.extend(frame(DATA, 0, 1, part));
    }
    sent.extend(frame(DATA, END_STREAM, 1, b""));
    let end = match turn % 4 {
        0 => turn % begun,
        1 => begun + turn * 977 % (sent.len() - begun),
        _ => sent.len(),
    };
    let mut frames = Frames::connect(address);
    let _ = frames.0.write_all(&sent[..end]);
    if turn % 8 == 7 {
        let _ = frames.0.read_exact(&mut vec![0; turn * 77 % (32 << 10)]);
    }
    cut(&frames.0);
}

#[test]
fn connections_that_are_cut_take_only_their_own_requests() {
    const CUTTERS: usize = 4;
    let connections = number("CUT_CONNECTIONS", 200);
    let subject = subject();
    let server = &subject.server;
    let (http, grpc) = (server.http.0, server.grpc);
    let tally = under_load(server, |_| {
        at_once(CUTTERS, |cutter| {
            for turn in (cutter..connections).step_by(CUTTERS) {
                let model = ["native", "python", "chain"][turn / 2 % 3];
                match turn % 2 {
                    0 => cut_http(http, model, turn / 2),
                    _ => cut_grpc(grpc, model, turn / 2),
                }
            }
        });
    });
    tally.report(&format!("{connections} connections cut"));
    assert_eq!(tally.lost(), 0);
    assert!(0 < tally.answered.load(SeqCst));
    subject.is_sound();
}
