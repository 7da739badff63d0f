//! Errors of Python models: each is reported, and ends with its request.

use std::sync::LazyLock;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{
    Model, Repository, Server, ensemble,
    http::{self, floats},
    models::execute,
    native,
    process::{self, resident_mib},
    python, until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// The good answer of a model in this file.
const GOOD: &str = "[
            pb_utils.InferenceResponse([
                pb_utils.Tensor('y', pb_utils.get_input_tensor_by_name(it, 'x').as_numpy())
            ]) for it in requests
        ]";

/// Does something odd when it is sent a 0, and answers well otherwise.
fn odd(what: &str) -> Model {
    let mut body = String::from(
        "\nif not pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy().any():\n",
    );
    for line in what.lines() {
        body += &format!("    {line}\n");
    }
    execute(FLOATS, &format!("{body}return {GOOD}"))
}

/// A name, what it does, and the status and text that come of it.
const ODD: &[(&str, &str, u16, &str)] = &[
    (
        "raises",
        "raise ValueError('no luck')",
        500,
        "Failed to process the request(s) for model instance 'raises_0', message: ValueError: no \
         luck",
    ),
    ("raises_with_a_trace", "raise KeyError('deep')", 500, "\n\nAt:\n"),
    ("divides", "1 / 0", 500, "ZeroDivisionError"),
    ("exits_politely", "raise SystemExit(3)", 500, ""),
    ("interrupts", "raise KeyboardInterrupt()", 500, ""),
    ("recurses", "def again():\n    return again()\nagain()", 500, "RecursionError"),
    ("asks_for_memory", "bytearray(1 << 60)", 500, "MemoryError"),
    ("returns_none", "return None", 500, "Expected a list in the execute return, found type "),
    ("returns_a_word", "return 'word'", 500, "Expected a list in the execute return, found type "),
    (
        "returns_too_few",
        "return []",
        500,
        "Number of InferenceResponse objects do not match the number of InferenceRequest objects. \
         InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0",
    ),
    (
        "returns_too_many",
        "return [pb_utils.InferenceResponse([]), pb_utils.InferenceResponse([])]",
        500,
        "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2",
    ),
    (
        "returns_words",
        "return ['word']",
        500,
        "Expected an 'InferenceResponse' object in the execute function return list, found type ",
    ),
    ("returns_nothing_in_a_list", "return [None]", 500, ""),
    (
        "wrong_type",
        "return [pb_utils.InferenceResponse([pb_utils.Tensor('y', np.zeros(1, np.int32))])]",
        500,
        "y",
    ),
    (
        "wrong_shape",
        "return [pb_utils.InferenceResponse([pb_utils.Tensor('y', np.zeros((2, 2), np.float32))])]",
        500,
        "y",
    ),
    (
        "complex_numbers",
        "return [pb_utils.InferenceResponse([pb_utils.Tensor('y', np.zeros(1, np.complex64))])]",
        500,
        "",
    ),
    ("not_an_array", "return [pb_utils.InferenceResponse([pb_utils.Tensor('y', 3)])]", 500, ""),
    (
        "an_error",
        "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('told'))]",
        500,
        "told",
    ),
    ("a_long_error", "raise ValueError('long' * 100000)", 500, "longlong"),
    (
        "writes_to_its_pipe",
        "os.write(1, b'x' * 100000)\nos.close(0)\nraise OSError('closed')",
        500,
        "closed",
    ),
];

/// Each ends its worker.
const DEADLY: &[(&str, &str)] = &[
    ("exits", "os._exit(7)"),
    ("exits_well", "os._exit(0)"),
    ("segfaults", "import ctypes\nctypes.string_at(0)"),
    ("aborts", "os.abort()"),
    ("is_killed", "os.kill(os.getpid(), 9)"),
    ("closes_all", "os.closerange(3, 256)\nos._exit(1)"),
];

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let odd_ones = ODD.iter().map(|(name, what, ..)| (*name, odd(what)));
    let deadly = DEADLY.iter().map(|(name, what)| (*name, odd(what)));
    let steps = ["good: x=A -> y=m", "is_killed: x=m -> y=Z"];
    Server::start(
        Repository::of(odd_ones.chain(deadly))
            .with("good", native("identity", FLOATS))
            .with("e", ensemble("A:FP32[-1] -> Z:FP32[-1]", &steps)),
    )
});

#[test]
fn what_a_model_returns_wrong_is_told_and_it_goes_on() {
    for (name, what, status, text) in ODD {
        let answer = SERVER.infer(name, &floats(&[("x", &[0.0])]));
        if *name == "returns_nothing_in_a_list" && answer.status == 200 {
            panic!("a request that nobody answers was answered: {}", answer.text());
        }
        assert_eq!(answer.status, *status, "{name}: {what}: {}", answer.text());
        answer.refuses(*status, text);
        until("the model to answer well again", || {
            SERVER.infer(name, &floats(&[("x", &[2.0])])).status == 200
        });
        assert_eq!(SERVER.infer(name, &floats(&[("x", &[2.0])])).numbers("y"), [2.0], "{name}");
    }
    SERVER.is_well();
}

#[test]
fn a_worker_that_dies_fails_its_work_and_is_replaced() {
    let before = process::shared_memory_files();
    for (name, what) in DEADLY {
        let answer = SERVER.infer(name, &floats(&[("x", &[0.0])]));
        assert_eq!(answer.status, 503, "{name}: {what}: {}", answer.text());
        let error = answer.error();
        assert!(error.contains(name), "the error does not name its model: {error}");
        until("a new worker", || SERVER.infer(name, &floats(&[("x", &[2.0])])).status == 200);
    }
    until("the server to be ready again", || SERVER.http.get("/v2/health/ready").status == 200);
    let answer = SERVER.infer("e", &floats(&[("A", &[0.0])]));
    answer.refuses(
        503,
        "in ensemble 'e', step 1 (model 'is_killed' version 1, instance 'is_killed_0'): ",
    );
    until("the step to be there again", || {
        SERVER.infer("e", &floats(&[("A", &[5.0])])).status == 200
    });
    process::no_file_is_left(&before);
    SERVER.is_well();
}

#[test]
fn an_error_names_how_the_worker_ended_and_what_it_said_last() {
    let model =
        odd("import sys\nprint('famous last words', file=sys.stderr, flush=True)\nos._exit(7)");
    let server = Server::start(Repository::of([("m", model)]));
    let error = server.infer("m", &floats(&[("x", &[0.0])])).error();
    for text in ["7", "famous last words"] {
        assert!(error.contains(text), "no `{text}` in {error}");
    }
}

#[test]
fn a_loop_without_end_holds_up_nobody_else() {
    let server = Server::with(
        Repository::of([("loops", odd("while True:\n    pass")), ("good", odd("pass"))])
            .with("e", ensemble("A:FP32[-1] -> Z:FP32[-1]", &["loops: x=A -> y=Z"])),
        &["--model-control-mode=explicit", "--load-model=*"],
    );
    let workers = || process::descendants(server.pid).len();
    let all = workers();
    let lost = server.http.start("loops", &floats(&[("x", &[0.0])]));
    let lost_too = server.http.start("e", &floats(&[("A", &[0.0])]));
    for _ in 0..20 {
        assert_eq!(server.infer("good", &floats(&[("x", &[1.0])])).numbers("y"), [1.0]);
    }
    server.unload("loops").ok();
    assert_ne!(server.state("loops"), "READY");
    server.load("loops").ok();
    assert_eq!(server.infer("loops", &floats(&[("x", &[1.0])])).numbers("y"), [1.0]);
    assert_eq!(server.infer("e", &floats(&[("A", &[1.0])])).numbers("Z"), [1.0]);
    // The old worker is kept for the sake of who waits for it, and for nobody else's.
    assert!(all < workers(), "{} of {all}", workers());
    drop((lost, lost_too));
    until("the worker that loops to end", || workers() == all);
    server.is_well();
}

#[test]
fn a_hundred_megabytes_of_output_are_read_and_forgotten() {
    let chatty =
        odd("import sys\nfor _ in range(1600):\n    sys.stdout.write('y' * 65535 + chr(10))\n\
         sys.stdout.write('z' * (1 << 20))");
    let server = Server::start(Repository::of([("m", chatty), ("good", odd("pass"))]));
    server.infer("good", &floats(&[("x", &[1.0])])).ok();
    let before = resident_mib(server.pid);
    assert_eq!(server.infer("m", &floats(&[("x", &[0.0])])).numbers("y"), [0.0]);
    assert_eq!(server.infer("good", &floats(&[("x", &[1.0])])).numbers("y"), [1.0]);
    until("memory to come back", || resident_mib(server.pid) < before + 64);
    assert!(server.log().lines().all(|it| it.len() < 70_000), "a line without end");
    server.is_well();
}

#[test]
fn a_model_that_does_not_load_says_why() {
    let class = "class TritonPythonModel:\n";
    let run = "    def execute(self, requests):\n        return []\n";
    let with = |name: &str, arguments: &str, body: &str| {
        let decorator = if name == "initialize" { "" } else { "    @staticmethod\n" };
        format!("{class}{decorator}    def {name}({arguments}):\n        {body}\n{run}")
    };
    let rows: Vec<(&str, String, &str)> = vec![
        (
            "init_raises",
            with("initialize", "self, args", "raise ValueError('no weights')"),
            "no weights",
        ),
        ("init_exits", with("initialize", "self, args", "os._exit(9)"), "9"),
        (
            "completes_badly",
            with("auto_complete_config", "config", "raise ValueError('no idea')"),
            "no idea",
        ),
        (
            "completes_nothing",
            with("auto_complete_config", "config", "return None"),
            "auto_complete_config function in model 'completes_nothing' must return a valid",
        ),
        (
            "completes_misspelled",
            with(
                "auto_complete_config",
                "config",
                "config.add_input({'name': 'x', 'data_type': 'FP32', 'dims': [-1]})",
            ),
            "has the data_type 'FP32', which does not exist: write 'TYPE_FP32'",
        ),
        ("no_execute", format!("{class}    pass\n"), "does not implement `execute` method."),
        ("no_class", "VALUE = 3\n".to_owned(), "TritonPythonModel"),
        ("no_module", format!("import nothing_of_this_name\n{class}{run}"), "nothing_of_this_name"),
        ("no_python", format!("def (:\n{class}{run}"), "SyntaxError"),
        ("dies_early", "os._exit(3)\n".to_owned(), "3"),
    ];
    let models = rows.iter().map(|(name, source, _)| (*name, python(FLOATS, source)));
    let no_file = Model { source: None, ..python(FLOATS, "") };
    let server =
        Server::explicit(Repository::of(models).with("no_file", no_file).with("good", odd("pass")));
    for (name, _, text) in &rows {
        let answer = server.load(name);
        answer.refuses(400, text);
        let state = server.state(name);
        assert!(state.starts_with("UNAVAILABLE") && state.contains(text), "{name}: {state}");
    }
    let error = server.load("no_file").error();
    assert!(error.contains("model.py"), "{error}");
    server.load("good").ok();
    assert_eq!(server.infer("good", &floats(&[("x", &[1.0])])).numbers("y"), [1.0]);
}

#[test]
fn finalize_may_raise_hang_or_die() {
    let rows = [
        ("raises", "raise ValueError('at the end')"),
        ("dies", "os._exit(5)"),
        ("hangs", "while True: pass"),
    ];
    let source = |body: &str| {
        format!(
            "class TritonPythonModel:\n    def execute(self, requests):\n        return {GOOD}\n    \
             def finalize(self):\n        {body}\n"
        )
    };
    let models = rows.map(|(name, body)| (name, python(FLOATS, &source(body))));
    let server =
        Server::with(Repository::of(models), &["--model-control-mode=explicit", "--load-model=*"]);
    for (name, _) in rows {
        server.infer(name, &floats(&[("x", &[1.0])])).ok();
        server.unload(name).ok();
        assert!(server.state(name).contains("unloaded"), "{}", server.state(name));
    }
    until("all workers to end", || process::descendants(server.pid).len() <= 1);
    server.is_well();
}

#[test]
fn workers_killed_again_and_again_under_load() {
    let body = format!("return {GOOD}");
    let model = execute("x:FP32[1] -> y:FP32[1]", &body).batch(8).with("dynamic_batching {}");
    let server = Server::start(Repository::of([("m", model)]));
    let before = process::shared_memory_files();
    let victims = || {
        // The worker is a leaf: whoever forked it has a child.
        let all = process::descendants(server.pid);
        all.into_iter().filter(|it| process::descendants(*it).is_empty()).collect::<Vec<_>>()
    };
    let request = http::rows(&[("x", &[3.0])]);
    for _ in 0..10 {
        let answers = crate::support::at_once(8, |caller| {
            if caller == 0 {
                victims().into_iter().for_each(|it| process::signal(it, Signal::KILL));
            }
            (0..5).map(|_| server.infer("m", &request)).collect::<Vec<_>>()
        });
        for answer in answers.into_iter().flatten() {
            match answer.status {
                200 => assert_eq!(answer.numbers("y"), [3.0]),
                status => assert_eq!(status, 503, "{}", answer.text()),
            }
        }
        until("a new worker to answer", || server.infer("m", &request).status == 200);
    }
    assert_eq!(server.infer("m", &request).shape("y"), json!([1, 1]));
    process::no_file_is_left(&before);
    until("the server to be ready", || server.http.get("/v2/health/ready").status == 200);
    server.is_well();
}

/// Answers with the number of its worker process.
fn pid_model() -> crate::support::Model {
    execute(
        "x:FP32[-1] -> y:INT64[1]",
        "
        y = pb_utils.Tensor('y', np.array([os.getpid()], dtype=np.int64))
        return [pb_utils.InferenceResponse([y]) for _ in requests]",
    )
}

fn worker_of(server: &Server, model: &str) -> u32 {
    server.infer(model, &floats(&[("x", &[1.0])])).numbers("y")[0] as u32
}

#[test]
fn a_killed_worker_is_replaced_and_only_its_work_fails() {
    let repository = Repository::of([("pid", pid_model()), ("other", pid_model())]);
    let server = Server::start(repository);
    let other = worker_of(&server, "other");
    for _ in 0..5 {
        let worker = worker_of(&server, "pid");
        process::signal(worker, Signal::KILL);
        until("a new worker to answer", || {
            let answer = server.infer("pid", &floats(&[("x", &[1.0])]));
            match answer.status {
                200 => answer.numbers("y")[0] as u32 != worker,
                503 => false,
                500 => false,
                status => panic!("{status}: {}", answer.text()),
            }
        });
        assert!(!process::is_alive(worker));
    }
    server.ready();
    assert_eq!(worker_of(&server, "other"), other, "the other model's worker was touched");
    server.is_well();
}
