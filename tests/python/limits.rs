//! Time and memory that a Python model may take, and who is told when one takes more.

use std::{collections::BTreeMap, fs};

use crate::support::{
    Answer, Model, Repository, Server, at_once, ensemble,
    grpc::{self, Grpc, floats_of},
    http::{self, floats},
    models::execute,
    process, python, until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// Writes down what it executes and returns it; runs `what` when it is sent a 0.
fn noted(what: &str) -> Model {
    let body = format!(
        "
import ctypes, signal, sys, threading, time
values = [pb_utils.get_input_tensor_by_name(it, 'x').as_numpy() for it in requests]
with open(os.path.join(os.path.dirname(__file__), 'executed'), 'a') as file:
    for x in values:
        file.write(f'{{int(x.ravel()[0])}} ')
if not values[0].any():
    print('famous last words', file=sys.stderr, flush=True)
    {what}
return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)]) for x in values]"
    );
    execute(FLOATS, &body)
}

/// The error of an answer with this status that holds this text.
#[track_caller]
fn refused(answer: &Answer, status: u16, text: &str) -> String {
    answer.refuses(status, text);
    answer.error()
}

/// How often each value was executed.
fn executed(server: &Server, model: &str) -> BTreeMap<i64, usize> {
    let file = server.repository.models().join(model).join("1/executed");
    let text = fs::read_to_string(file).unwrap();
    let values = text.split_whitespace().map(|it| it.parse().unwrap());
    values.fold(BTreeMap::new(), |mut counts, value| {
        *counts.entry(value).or_default() += 1;
        counts
    })
}

#[test]
fn an_execute_that_takes_too_long_is_ended_and_says_where_it_was() {
    let ways = [
        ("loops", "while True: pass"),
        ("waits", "threading.Event().wait()"),
        ("waits_in_c", "ctypes.CDLL(None).pause()"),
        ("stops", "os.kill(os.getpid(), signal.SIGSTOP)"),
        ("is_deaf", "signal.signal(signal.SIGABRT, signal.SIG_IGN); time.sleep(1000)"),
        (
            "is_half_silent",
            "import troupe_requests; \
          troupe_requests.worker.frames.control.sendall(bytes([0, 0, 0, 64])); time.sleep(1000)",
        ),
    ];
    let limited = |what: &str| noted(what).parameter("EXECUTE_TIMEOUT_MS", "300");
    let repository = Repository::of(ways.map(|(name, what)| (name, limited(what))));
    let steps = ["loops: x=A -> y=Z"];
    let repository = repository.with("e", ensemble("A:FP32[-1] -> Z:FP32[-1]", &steps));
    let server = Server::start(repository);
    for (name, what) in ways {
        let answer = server.infer(name, &floats(&[("x", &[0.0])]));
        let error =
            refused(&answer, 503, "execute took longer than the 300 ms of EXECUTE_TIMEOUT_MS");
        assert!(error.contains("famous last words"), "{what}: {error}");
        assert!(error.contains(&format!("for model instance '{name}_0'")), "{what}: {error}");
        // A process that is stopped or does not listen cannot say where it is.
        let says = !["stops", "is_deaf"].contains(&name);
        assert_eq!(error.contains("in execute"), says, "{what}: {error}");
        until("a new worker", || server.infer(name, &floats(&[("x", &[2.0])])).status == 200);
    }
    let error = server.infer("e", &floats(&[("A", &[0.0])])).error();
    let step = "in ensemble 'e', step 0 (model 'loops' version 1, instance 'loops_0'): ";
    assert!(error.starts_with(step), "{error}");
    until("the server to be ready", || server.http.get("/v2/health/ready").status == 200);
    server.is_well();
}

#[test]
fn a_worker_that_stops_is_replaced_and_one_that_goes_on_is_not() {
    let server = Server::start(Repository::of([
        ("stops", noted("os.kill(os.getpid(), signal.SIGSTOP)")),
        (
            "pauses",
            noted(
                "import subprocess; \
                 subprocess.Popen(['sh', '-c', f'sleep 1; kill -CONT {os.getpid()}']); \
                 os.kill(os.getpid(), signal.SIGSTOP)",
            ),
        ),
    ]));
    let ask = |model: &str, value: f32| server.infer(model, &floats(&[("x", &[value])]));
    assert_eq!(ask("pauses", 0.0).status, 200);
    let error = refused(&ask("stops", 0.0), 503, "it was stopped (SIGSTOP) and did not go on");
    assert!(error.contains("famous last words"), "{error}");
    until("a new worker", || ask("stops", 2.0).status == 200);
    server.is_well();
}

/// Notes each start beside the model, and gets stuck from the `stuck`th on.
fn starts(stuck: usize, way: &str) -> String {
    format!(
        "
        import sys, threading, time

        notes = os.path.join(os.path.dirname(__file__), 'starts')

        class TritonPythonModel:
            def initialize(self, args):
                with open(notes, 'a') as file:
                    file.write('x')
                if {stuck} <= os.path.getsize(notes):
                    print('famous last words', file=sys.stderr, flush=True)
                    {way}

            def execute(self, requests):
                os._exit(3)"
    )
}

const COMPLETES: &str = "
    import sys, time

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            print('famous last words', file=sys.stderr, flush=True)
            time.sleep(1000)

        def execute(self, requests):
            pass";

#[test]
fn a_model_that_does_not_get_ready_in_time_is_not_loaded() {
    const LATE: &str = "it took longer than the 2000 ms of INITIALIZE_TIMEOUT_MS to get ready, so it \
                        was ended; its last lines on stderr:\nfamous last words";
    let ways = [
        ("waits", starts(1, "threading.Event().wait()"), "in initialize"),
        ("asks", starts(1, "pb_utils.load_model('slow')"), "in initialize"),
        (
            "logs",
            starts(1, "while True: pb_utils.Logger.log_info('x'); time.sleep(0.1)"),
            "in initialize",
        ),
        ("loops", starts(1, "while True: pass"), "in initialize"),
        ("completes", COMPLETES.to_owned(), "in auto_complete_config"),
    ];
    let limited = |source: &str| python(FLOATS, source).parameter("INITIALIZE_TIMEOUT_MS", "2000");
    let models = ways.iter().map(|(name, source, _)| (*name, limited(source)));
    let in_time = ("in_time", limited(&starts(2, "pass")));
    let slow = ("slow", python(FLOATS, &starts(1, "time.sleep(4)")));
    let server = Server::explicit(Repository::of(models.chain([in_time, slow])));
    at_once(ways.len(), |index| {
        let (name, _, place) = &ways[index];
        let error = refused(&server.load(name), 400, LATE);
        assert!(error.contains(place), "{name}: {error}");
        assert!(server.state(name).contains("INITIALIZE_TIMEOUT_MS"), "{name}");
    });
    server.load("in_time").ok();
    until("the slow one to be loaded", || server.state("slow") == "READY");
    for model in ["in_time", "slow"] {
        server.unload(model).ok();
    }
    until("all workers to end", || process::descendants(server.pid).len() <= 1);
}

#[test]
fn a_model_that_stops_while_it_is_loaded_is_not_loaded() {
    let stops = python(FLOATS, &starts(1, "os.kill(os.getpid(), 19)"));
    let server = Server::explicit(Repository::of([("stops", stops)]));
    let error = refused(&server.load("stops"), 400, "it was stopped (SIGSTOP) and did not go on");
    assert!(error.contains("famous last words"), "{error}");
}

#[test]
fn a_worker_that_follows_another_has_no_more_time_to_get_ready() {
    let source = starts(2, "time.sleep(1000)");
    let preload = source.replace(
        "    def initialize",
        "    @classmethod\n            def preload(cls, args):\n                pass\n\n            def initialize",
    );
    let limited = |source: &str| python(FLOATS, source).parameter("INITIALIZE_TIMEOUT_MS", "2000");
    let models = [("m", limited(&source)), ("p", limited(&preload).parameter("PRELOAD", "true"))];
    let server = Server::start(Repository::of(models));
    for model in ["m", "p"] {
        server.infer(model, &floats(&[("x", &[1.0])])).refuses(503, "status 3");
        until("the next worker to be late", || {
            let answer = server.infer(model, &floats(&[("x", &[1.0])]));
            assert_eq!(answer.status, 503);
            answer.error().contains("longer than the 2000 ms of INITIALIZE_TIMEOUT_MS")
        });
        assert_eq!(server.http.get(&format!("/v2/models/{model}/ready")).status, 400);
    }
}

#[test]
fn what_waits_behind_a_stuck_execution_is_executed_once() {
    let batched = "dynamic_batching {}";
    for more in ["", "instance_group { count: 2 }", batched] {
        let model = noted("while True: pass").parameter("EXECUTE_TIMEOUT_MS", "500").with(more);
        let is_batched = more == batched;
        let model = if is_batched { model.batch(1) } else { model };
        let server = Server::start(Repository::of([("m", model)]));
        let row = |x: f32| {
            if is_batched { http::rows(&[("x", &[x])]) } else { floats(&[("x", &[x])]) }
        };
        // So that many executions travel in one frame.
        (0..50).for_each(|_| drop(server.infer("m", &row(-1.0))));
        let answers = at_once(24, |caller| {
            let values = (0..4).map(|it| (caller * 4 + it) as f32);
            values.map(|x| (x, server.infer("m", &row(x)))).collect::<Vec<_>>()
        });
        for (x, answer) in answers.into_iter().flatten() {
            if x == 0.0 {
                answer.refuses(503, "execute took longer than the 500 ms of EXECUTE_TIMEOUT_MS");
            } else {
                assert_eq!(answer.ok().numbers("y"), [f64::from(x)]);
            }
        }
        let mut counts = executed(&server, "m");
        counts.remove(&-1);
        let expected = (0..96).map(|it| (it, 1)).collect::<BTreeMap<_, _>>();
        assert_eq!(counts, expected, "{more}");
        server.is_well();
    }
}

#[test]
fn what_a_dead_worker_had_not_begun_is_executed_by_the_next_one() {
    let server = Server::start(Repository::of([("m", noted("time.sleep(0.2); os._exit(3)"))]));
    (0..50).for_each(|_| drop(server.infer("m", &floats(&[("x", &[-1.0])]))));
    for round in 0..5 {
        let answers = at_once(16, |caller| {
            let x = if caller == 0 { 0.0 } else { (round * 16 + caller) as f32 };
            (x, server.infer("m", &floats(&[("x", &[x])])))
        });
        for (x, answer) in answers {
            let is_well = answer.status == 200 && answer.numbers("y") == [f64::from(x)];
            // What was executed just before may have been waiting to be sent.
            assert!(is_well || answer.status == 503, "{x}: {}", answer.text());
        }
    }
    let counts = executed(&server, "m");
    let twice = counts.iter().find(|(value, count)| 0 < **value && 1 < **count);
    assert_eq!(twice, None, "{counts:?}");
    // The one that ended its worker may have come last.
    until("a worker to be there", || server.http.get("/v2/health/ready").status == 200);
    server.is_well();
}

/// Answers from a thread, long after `execute` has returned, unless it is sent a 0.
const SLOW_STREAM: &str = "
    import threading, time

    class TritonPythonModel:
        def execute(self, requests):
            for it in requests:
                x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
                sender = it.get_response_sender()
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('y', x)]))
                if not x.any():
                    time.sleep(1000)
                threading.Thread(target=self.answer, args=(x, sender)).start()

        def answer(self, x, sender):
            time.sleep(0.7)
            if x[0] == 2:
                os._exit(6)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('y', x * 10)]), 1)";

#[test]
fn a_decoupled_model_is_timed_until_execute_returns_and_its_open_requests_end_with_the_worker() {
    let model = python(FLOATS, SLOW_STREAM).parameter("EXECUTE_TIMEOUT_MS", "400");
    let model = model.with("model_transaction_policy { decoupled: true }");
    let server = Server::start(Repository::of([("m", model)]));
    let ask = |x: f32| {
        let answers = Grpc::connect(server.grpc).stream(vec![grpc::floats("m", &[("x", &[x])])]);
        let text = |it: &troupe_proto::inference::ModelStreamInferResponse| {
            let response = it.infer_response.as_ref().unwrap();
            let values = response.raw_output_contents.iter().flat_map(|it| floats_of(it));
            let values = values.map(|it| it.to_string()).collect::<Vec<_>>();
            it.error_message.clone() + &values.join(" ")
        };
        answers.unwrap().iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(ask(1.0), ["1", "10"]);
    for (x, expected) in [(0.0, "execute took longer than the 400 ms"), (2.0, "status 6; ")] {
        let open = at_once(2, |caller| ask(if caller == 0 { x } else { 3.0 }));
        let [first, error] = &open[0][..] else { panic!("{open:?}") };
        assert!(*first == x.to_string() && error.contains(expected), "{open:?}");
        // The other one ends too, whether it was in the same worker's hands or in the next one's.
        assert!(open[1].last().is_some_and(|it| it == "30" || it.contains(expected)), "{open:?}");
        until("a new worker", || ask(1.0) == ["1", "10"]);
    }
    server.is_well();
}

#[test]
fn memory_has_a_limit_of_its_own_for_each_model() {
    let limited = |what: &str| noted(what).parameter("MEMORY_LIMIT_BYTES", "1G");
    let hard = "ctypes.memset(ctypes.CDLL(None).malloc(2 << 30), 1, 2 << 30)";
    let server = Server::start(Repository::of([
        ("soft", limited("bytearray(1 << 30)")),
        ("hard", limited(hard)),
        ("free", noted("bytearray(1 << 30)")),
    ]));
    server.infer("soft", &floats(&[("x", &[0.0])])).refuses(500, "MemoryError");
    let answer = server.infer("hard", &floats(&[("x", &[0.0])]));
    let error = refused(&answer, 503, "it was ended by signal");
    assert!(error.contains("famous last words"), "{error}");
    server.infer("free", &floats(&[("x", &[0.0])])).ok();
    for model in ["soft", "hard", "free"] {
        until("a good answer", || server.infer(model, &floats(&[("x", &[2.0])])).status == 200);
    }
    server.is_well();
}

#[test]
fn limits_that_cannot_be_meant_are_refused_at_load() {
    let rows = [
        ("EXECUTE_TIMEOUT_MS", "0", "expected a positive whole number of milliseconds"),
        ("EXECUTE_TIMEOUT_MS", "soon", "expected a positive whole number of milliseconds"),
        ("INITIALIZE_TIMEOUT_MS", "1s", "expected a positive whole number of milliseconds"),
        ("MEMORY_LIMIT_BYTES", "1T", "expected a positive whole number of bytes, or one with K"),
        ("MEMORY_LIMIT_BYTES", "4M", "the interpreter with numpy alone has "),
        ("PRELOAD", "yes", "expected 'true' or 'false'"),
    ];
    let name = |index: usize| format!("m{index}");
    let models = rows
        .iter()
        .enumerate()
        .map(|(index, (key, value, _))| (name(index), noted("pass").parameter(key, value)));
    let server = Server::explicit(Repository::of(models));
    for (index, (key, value, text)) in rows.iter().enumerate() {
        let error = refused(&server.load(&name(index)), 400, text);
        assert!(error.contains(key), "{key}={value}: {error}");
    }
}

#[test]
fn a_model_that_does_not_move_is_named_once() {
    let models = [("stuck", noted("while True: pass")), ("good", noted("pass"))];
    let steps = ["stuck: x=A -> y=Z"];
    let repository = Repository::of(models).with("e", ensemble("A:FP32[-1] -> Z:FP32[-1]", &steps));
    let server = Server::with(repository, &["--stall-warning-secs=1"]);
    let lost = server.http.start("e", &floats(&[("A", &[0.0])]));
    let told = "version 1: its oldest request has not moved for ";
    let line = server.logged(&format!("model 'stuck' {told}"));
    assert!(line.contains("(1 not answered, 0 of them not executed yet)"), "{line}");
    let waiting = server.http.start("stuck", &floats(&[("x", &[1.0])]));
    let told = &format!("model 'stuck' {told}");
    let count = || server.log().lines().filter(|it| it.contains(told)).count();
    for _ in 0..20 {
        server.infer("good", &floats(&[("x", &[1.0])])).ok();
    }
    assert_eq!(count(), 1, "{}", server.log());
    let stuck = process::descendants(server.pid);
    assert!(!stuck.is_empty());
    drop((lost, waiting));
    server.is_well();
}
