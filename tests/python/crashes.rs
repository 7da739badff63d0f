//! Workers broken in every way there is: one batch fails and says why, and nothing else is lost.

use std::{
    collections::BTreeSet,
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::support::{
    Model, Repository, Server, at_once, ensemble, http::floats, models::execute, process, python,
    until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";
const ANSWERS: &str = "[
            pb_utils.InferenceResponse([
                pb_utils.Tensor('y', pb_utils.get_input_tensor_by_name(it, 'x').as_numpy())
            ]) for it in requests
        ]";

/// Answers well, except that it says its last words and does this when it is sent a 0.
fn breaks(what: &str) -> Model {
    let mut body = String::from(
        "
import ctypes, signal, struct, sys, threading, time, troupe_requests
values = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
frames = troupe_requests.worker.frames
def send(kind, body, size=None):
    size = 8 + len(body) if size is None else size
    frames.control.sendall(struct.pack('<Ic3x', size, kind) + body)
def remember(pid):
    with open(os.path.join(os.path.dirname(__file__), 'children'), 'a') as file:
        file.write(f'{pid} ')
if not values.any():
    print('famous last words', file=sys.stderr, flush=True)
",
    );
    for line in what.lines() {
        body += &format!("    {line}\n");
    }
    execute(FLOATS, &format!("{body}return {ANSWERS}"))
}

/// A way to break: the model's name, what it does, the status and a text that come of it.
struct Row(&'static str, &'static str, u16, &'static str);

/// Mistakes that the worker survives.
const MISTAKES: &[Row] = &[
    Row("raises", "raise ValueError('no luck')", 500, "ValueError: no luck"),
    Row("leaves", "sys.exit(3)", 500, "SystemExit: 3"),
    Row("wants_too_much", "bytearray(1 << 60)", 500, "MemoryError"),
];

/// Ends of the worker.
const DEADLY: &[Row] = &[
    Row("exits", "os._exit(3)", 503, "it exited with status 3; "),
    Row("segfaults", "ctypes.string_at(0)", 503, "it was ended by signal 11 (SIGSEGV); "),
    Row("is_killed", "os.kill(os.getpid(), 9)", 503, "it was ended by signal 9 (SIGKILL, "),
    Row("aborts", "os.abort()", 503, "it was ended by signal 6 (SIGABRT); "),
    Row(
        "loses_a_thread_badly",
        "it = threading.Thread(target=ctypes.string_at, args=(0,))\nit.start()\nit.join()",
        503,
        "it was ended by signal 11 (SIGSEGV); ",
    ),
    Row("closes_its_socket", "frames.control.close()", 503, "it exited with status 1; "),
    Row("closes_everything", "os.closerange(3, 256)\nos._exit(1)", 503, "status 1; "),
    Row(
        "lives_on_without_a_socket",
        "frames.control.close()\nthreading.Event().wait()",
        503,
        "it closed its socket, lived on and was killed; ",
    ),
    Row("writes_garbage", "frames.control.sendall(b'garbage' * 20)", 503, "it sent a frame of "),
    Row(
        "claims_too_much",
        "send(b'L', b'', 0xfffffff8)",
        503,
        "it sent a frame of 4294967288 bytes",
    ),
    Row("of_no_kind", "send(b'?', bytes(8))", 503, "it sent a frame of kind 63 and was killed; "),
    Row(
        "too_short",
        "send(b'A', b'')",
        503,
        "it sent a frame that ends too early and was killed; ",
    ),
    Row(
        "of_another_frame",
        "send(b'A', struct.pack('<IIQQQIHBB', 4711, 0, 0, 0, 0, 0, 0, 0, 0))",
        503,
        "it sent an answer nobody waits for and was killed; ",
    ),
    Row(
        "of_another_group",
        "send(b'A', struct.pack('<IIQQQIHBB', requests[0]._group[0], 99, 0, 0, 0, 0, 0, 0, 0))",
        503,
        "it sent an answer nobody waits for and was killed; ",
    ),
    Row(
        "with_too_many_answers",
        "send(b'A', struct.pack('<IIQQQIHBB', *requests[0]._group, 0, 0, 0, 9, 0, 0, 0))",
        503,
        "it sent 9 answers to 1 requests and was killed; ",
    ),
    Row(
        "floods",
        "os.write(1, b'x' * 3_000_000)\n\
         os.write(2, b'y' * 3_000_000 + b'\\nfamous last words\\n')\nos._exit(7)",
        503,
        "it exited with status 7; ",
    ),
    Row(
        "leaves_a_child_behind",
        "if os.fork() == 0:\n    remember(os.getpid())\n    threading.Event().wait()\nos._exit(3)",
        503,
        "it exited with status 3; ",
    ),
    Row(
        "leaves_a_daemon_behind",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        \
         remember(os.getpid())\n        threading.Event().wait()\n    os._exit(0)\n\
         os.wait()\nos._exit(3)",
        503,
        "it exited with status 3; ",
    ),
];

/// What a model may do with processes and threads without harm; it answers.
const HARMLESS: &[Row] = &[
    Row("a_child_exits", "if os.fork() == 0:\n    os._exit(0)\nos.wait()", 200, ""),
    Row("a_child_leaves", "if os.fork() == 0:\n    sys.exit(3)\nos.wait()", 200, ""),
    Row("a_child_raises", "if os.fork() == 0:\n    raise ValueError('child')\nos.wait()", 200, ""),
    Row("a_child_returns", "if os.fork() == 0:\n    return None\nos.wait()", 200, ""),
    Row("a_child_answers_too", "if os.fork() != 0:\n    os.wait()", 200, ""),
    Row(
        "a_child_talks",
        "if os.fork() == 0:\n    pb_utils.Logger.log_info('from a child')\n    \
         requests[0].is_cancelled()\n    os._exit(0)\nos.wait()",
        200,
        "",
    ),
    Row(
        "a_child_lives_on",
        "if os.fork() == 0:\n    remember(os.getpid())\n    threading.Event().wait()",
        200,
        "",
    ),
    Row(
        "a_thread_dies",
        "def die():\n    raise ValueError('thread')\n\
         it = threading.Thread(target=die)\nit.start()\nit.join()",
        200,
        "",
    ),
];

/// The ensemble of which the model is the only step.
fn around(name: &str) -> (String, Model) {
    let step = format!("{name}: x=A -> y=Z");
    (format!("e_{name}"), ensemble("A:FP32[-1] -> Z:FP32[-1]", &[&step]))
}

/// Asks a model that has nothing to do with it until `ends` has run; every answer must be good.
fn under_load<T>(server: &Server, ends: impl FnOnce() -> T) -> T {
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = || {
            let mut count = 0;
            while !has_ended.load(Ordering::Relaxed) || count == 0 {
                let answer = server.infer("bystander", &floats(&[("x", &[4.0])]));
                assert_eq!(answer.ok().numbers("y"), [4.0]);
                count += 1;
            }
        };
        let callers = [scope.spawn(load), scope.spawn(load)];
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ends));
        has_ended.store(true, Ordering::Relaxed);
        callers.into_iter().for_each(|it| it.join().expect("the bystander answers"));
        ended.unwrap_or_else(|it| std::panic::resume_unwind(it))
    })
}

/// The processes that models have written down.
fn remembered(server: &Server, rows: &[Row]) -> Vec<u32> {
    let file = |row: &Row| server.repository.models().join(row.0).join("1/children");
    let texts = rows.iter().filter_map(|it| fs::read_to_string(file(it)).ok());
    texts
        .flat_map(|it| it.split_whitespace().map(|it| it.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

/// A server with a model and an ensemble for each row, and with a folder for temporary files.
fn serve(rows: &[Row]) -> Server {
    let repository = Repository::new().with("bystander", breaks("pass"));
    let with = |it: Repository, row: &Row| {
        let (name, around) = around(row.0);
        it.with(row.0, breaks(row.1)).with(name, around)
    };
    let repository = rows.iter().fold(repository, with);
    let temporary = repository.beside("tmp");
    fs::create_dir_all(&temporary).unwrap();
    let flags = ["--model-control-mode=explicit", "--load-model=*"];
    let server = Server::launch(repository, &flags, &[("TMPDIR", &temporary)]);
    server.ready();
    server
}

/// One row from its first break to its last process; it is broken twice, by itself and as a step.
fn check(server: &Server, Row(name, what, status, text): &Row) {
    let (outer, _) = around(name);
    for (model, input) in [(*name, "x"), (&outer, "A")] {
        let answer = server.infer(model, &floats(&[(input, &[0.0])]));
        assert_eq!(answer.status, *status, "{model}: {what}: {}", answer.text());
        if *status != 200 {
            let error = answer.error();
            let instance = format!("for model instance '{name}_0', message: ");
            let step = format!(
                "in ensemble '{outer}', step 0 (model '{name}' version 1, instance '{name}_0'): "
            );
            assert!(error.contains(text), "{what}: no `{text}` in {error}");
            assert!(error.contains(&instance), "{what}: no `{instance}` in {error}");
            assert!(model == *name || error.starts_with(&step), "{what}: no `{step}` in {error}");
            let quotes = *status == 503;
            assert!(!quotes || error.contains("famous last words"), "{what}: {error}");
        }
        until("a worker that answers", || {
            server.infer(name, &floats(&[("x", &[2.0])])).status == 200
        });
        assert_eq!(server.http.get(&format!("/v2/models/{model}/ready")).status, 200);
    }
}

/// Runs all rows under load on another model, and looks for what they leave behind.
fn check_all(rows: &[Row]) {
    let files = process::shared_memory_files();
    let server = serve(rows);
    let processes = process::descendants(server.pid).len();
    for row in rows {
        under_load(&server, || check(&server, row));
    }
    let children = remembered(&server, rows);
    for row in rows.iter().filter(|it| it.2 == 200) {
        server.unload(&around(row.0).0).ok();
        server.unload(row.0).ok();
        server.load(row.0).ok();
    }
    until("all that models have forked to end", || {
        !children.iter().any(|it| process::is_alive(*it))
            && process::descendants(server.pid).len() == processes
    });
    process::no_file_is_left(&files);
    let left: BTreeSet<_> = fs::read_dir(server.repository.beside("tmp")).unwrap().collect_names();
    assert_eq!(left, BTreeSet::new(), "files are left in the folder for temporary ones");
    server.is_well();
}

trait Names {
    fn collect_names(self) -> BTreeSet<String>;
}

impl Names for fs::ReadDir {
    fn collect_names(self) -> BTreeSet<String> {
        self.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[test]
fn mistakes_cost_their_batch_only() {
    check_all(MISTAKES);
}

#[test]
fn a_worker_that_ends_costs_its_batch_only() {
    check_all(DEADLY);
}

#[test]
fn what_a_model_forks_cannot_confuse_the_server() {
    check_all(HARMLESS);
}

#[test]
fn nothing_survives_a_server_that_is_killed() {
    let rows = [
        Row("a_child_lives_on", HARMLESS[6].1, 200, ""),
        Row("exits_later", "os.setsid() if os.fork() == 0 else None", 200, ""),
    ];
    let server = serve(&rows);
    server.infer("a_child_lives_on", &floats(&[("x", &[0.0])])).ok();
    until("the child", || !remembered(&server, &rows).is_empty());
    let all = process::descendants(server.pid);
    server.signal(rustix::process::Signal::KILL);
    until("all processes to end", || !all.iter().any(|it| process::is_alive(*it)));
}

/// Cannot be initialized while a file is there; ends when it is sent a 0.
const FRAGILE: &str = "
    class TritonPythonModel:
        def initialize(self, args):
            self.broken = os.path.join(args['model_repository'], 'broken')
            if os.path.exists(self.broken):
                with open(self.broken) as file:
                    if args['model_instance_name'].endswith(file.read()):
                        raise ValueError('still broken')

        def execute(self, requests):
            x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
            if not x.any():
                os._exit(5)
            return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)]) for _ in requests]";

#[test]
fn a_model_that_cannot_come_back_is_not_ready_until_it_can() {
    let repository = Repository::of([("fragile", python(FLOATS, FRAGILE))]);
    let server = Server::start(repository.with("bystander", breaks("pass")));
    let ready = |path: &str| server.http.get(path).status == 200;
    under_load(&server, || {
        server.repository.write_file("fragile/broken", "");
        server.infer("fragile", &floats(&[("x", &[0.0])])).refuses(503, "status 5; ");
        until("later attempts to come later", || {
            let answer = server.infer("fragile", &floats(&[("x", &[1.0])]));
            assert_eq!(answer.status, 503, "{}", answer.text());
            let error = answer.error();
            let why = "Model 'fragile': ValueError: still broken";
            error.contains(why) && error.contains("Next attempt within 800 ms")
        });
        assert!(!ready("/v2/models/fragile/ready") && !ready("/v2/health/ready"));
        assert!(ready("/v2/models/bystander/ready") && ready("/v2/health/live"));
        server.repository.remove("fragile/broken");
        until("the model to be ready", || ready("/v2/models/fragile/ready"));
        assert!(ready("/v2/health/ready"));
        assert_eq!(server.infer("fragile", &floats(&[("x", &[1.0])])).numbers("y"), [1.0]);
    });
    server.is_well();
}

#[test]
fn a_worker_that_ends_in_its_first_execute_is_started_less_and_less_often() {
    let server = Server::start(Repository::of([
        ("first", breaks("os._exit(5)")),
        ("bystander", breaks("pass")),
    ]));
    under_load(&server, || {
        until("later attempts to come later", || {
            let answer = server.infer("first", &floats(&[("x", &[0.0])]));
            assert_eq!(answer.status, 503, "{}", answer.text());
            answer.error().contains("Next attempt within 400 ms")
        });
        until("it to answer what it can", || {
            server.infer("first", &floats(&[("x", &[1.0])])).status == 200
        });
    });
    server.is_well();
}

#[test]
fn other_instances_lose_nothing_to_one_that_is_down() {
    let fragile = python(FLOATS, FRAGILE).with("instance_group { count: 2 }");
    let server = Server::start(Repository::of([("fragile", fragile)]));
    server.repository.write_file("fragile/broken", "_0");
    let ask = |x: f32| server.infer("fragile", &floats(&[("x", &[x])]));
    until("the first instance to go down for long", || {
        let answers = at_once(8, |caller| ask(if caller < 4 { 0.0 } else { 1.0 }));
        assert!(answers.iter().all(|it| matches!(it.status, 200 | 503)), "{answers:?}");
        server.log().contains("ValueError: still broken")
    });
    until("the second instance to answer", || ask(1.0).status == 200);
    for answers in (0..20).map(|_| at_once(8, |_| ask(3.0))) {
        answers.iter().for_each(|it| assert_eq!(it.ok().numbers("y"), [3.0]));
    }
    assert_eq!(server.http.get("/v2/models/fragile/ready").status, 200);
    server.is_well();
}

#[test]
fn nothing_survives_a_server_that_is_killed_while_it_is_told_something() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = root.join("tests/python/killed_server.py");
    let mut command = std::process::Command::new(crate::support::venv::python());
    command.arg("-B").arg(program).arg(root.join("src/backends/python/py"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("all are gone"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
