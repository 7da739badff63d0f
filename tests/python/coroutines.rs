//! Models whose `execute` is a coroutine: one worker has many requests in work at once.

use std::{fs, thread};

use serde_json::{Value, json};

use crate::support::{
    Model, Repository, Server, at_once,
    gate::Gate,
    http::{self, floats, rows},
    process, python, until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";
const ALL: usize = 64;

/// A model that has `async def work(self, request)`, which gives its answer's `y`. A request for a
/// 0 is answered at once; others can wait for company with `await self.company(how_many)`.
fn coroutine(signature: &str, work: &str) -> Model {
    let work: String = work.trim_matches('\n').lines().map(|it| format!("    {it}\n")).collect();
    let mut model = python(
        signature,
        "
        import asyncio

        def y_of(array):
            return pb_utils.InferenceResponse([pb_utils.Tensor('y', array)])

        def x_of(request):
            return pb_utils.get_input_tensor_by_name(request, 'x').as_numpy()

        class TritonPythonModel:
            def initialize(self, args):
                self.inside = 0
                self.most = 0
                # Of the loop that `execute` runs in, whatever the version of Python.
                self.all_are_here = asyncio.Event()

            async def company(self, count):
                if count <= self.inside:
                    self.all_are_here.set()
                await self.all_are_here.wait()

            async def execute(self, requests):
                if not x_of(requests[0]).any():
                    return [y_of(x_of(it)) for it in requests]
                self.inside += len(requests)
                self.most = max(self.most, self.inside)
                try:
                    return [y_of(it) for it in
                            await asyncio.gather(*[self.work(it) for it in requests])]
                finally:
                    self.inside -= len(requests)

        ",
    );
    model.source = model.source.map(|it| it + "\n" + &work);
    model
}

/// Adds one to each element, once so many requests are in work.
fn meeting(count: usize) -> Model {
    let work = "async def work(self, request):\n    await self.company({count})\n    return x_of(request) + 1";
    coroutine(FLOATS, &work.replace("{count}", &count.to_string()))
}

fn ask(server: &Server, model: &str, value: f32) -> http::Answer {
    server.infer(model, &floats(&[("x", &[value])]))
}

#[test]
fn one_worker_has_all_requests_in_work_at_once() {
    let server = Server::start(Repository::of([("m", meeting(ALL))]));
    let answers = at_once(ALL, |caller| ask(&server, "m", 1.0 + caller as f32));
    for (caller, answer) in answers.iter().enumerate() {
        assert_eq!(answer.numbers("y"), [2.0 + caller as f64]);
    }
    assert_eq!(server.executions("m"), ALL as u64);
    assert_eq!(server.successes("m"), ALL as u64);
    server.is_well();
}

#[test]
fn batches_are_formed_as_usual_and_several_of_them_overlap() {
    let work =
        "async def work(self, request):\n    await self.company(64)\n    return x_of(request) + 1";
    let model = coroutine("x:FP32[1] -> y:FP32[1]", work).batch(8);
    let model = model.with(
        "dynamic_batching { max_queue_delay_microseconds: 60000000 preserve_ordering: true }",
    );
    let server = Server::start(Repository::of([("m", model)]));
    let answers = at_once(ALL, |caller| server.infer("m", &rows(&[("x", &[1.0 + caller as f32])])));
    for (caller, answer) in answers.iter().enumerate() {
        assert_eq!(answer.numbers("y"), [2.0 + caller as f64]);
    }
    assert_eq!(server.executions("m"), 8);
}

#[test]
fn the_work_is_spread_over_all_workers() {
    let repository = Repository::new();
    let (here, all_are_here) = (repository.beside("here"), repository.beside("all_are_here"));
    let work = "
async def work(self, request):
    with open('{here}', 'a') as here:
        here.write('.')
    while not os.path.exists('{all_are_here}'):
        await asyncio.sleep(0.01)
    return np.full(1, os.getpid(), np.float32)";
    let work = work.replace("{here}", here.to_str().unwrap());
    let work = work.replace("{all_are_here}", all_are_here.to_str().unwrap());
    let model = coroutine(FLOATS, &work).with("instance_group { count: 2 kind: KIND_CPU }");
    let server = Server::start(repository.with("m", model));
    let pids = thread::scope(|scope| {
        let asked = scope.spawn(|| at_once(16, |_| ask(&server, "m", 1.0).numbers("y")[0] as u64));
        // None ends before the last has come: a worker that is free again would get that one.
        until("sixteen requests in work", || fs::read(&here).is_ok_and(|it| it.len() == 16));
        fs::write(&all_are_here, "").unwrap();
        asked.join().unwrap()
    });
    let first = pids.iter().filter(|it| **it == pids[0]).count();
    assert_eq!(first, 8, "{pids:?}");
}

#[test]
fn one_that_raises_fails_alone() {
    let work = "
async def work(self, request):
    await self.company(16)
    value = x_of(request)[0]
    if value % 4 == 0:
        raise ValueError(f'no {value}')
    if value % 4 == 1:
        asyncio.current_task().cancel()
        await asyncio.sleep(0)
    if value % 4 == 2:
        raise SystemExit(3)
    return x_of(request)";
    let server = Server::start(Repository::of([("m", coroutine(FLOATS, work))]));
    let answers = at_once(16, |caller| ask(&server, "m", 1.0 + caller as f32));
    for (caller, answer) in answers.iter().enumerate() {
        let value = caller + 1;
        let text = match value % 4 {
            0 => format!("message: ValueError: no {value}.0\n\nAt:\n"),
            1 => "message: CancelledError: ".to_owned(),
            2 => "message: SystemExit: 3".to_owned(),
            _ => {
                assert_eq!(answer.numbers("y"), [value as f64]);
                continue;
            }
        };
        answer.refuses(500, &text);
    }
    assert_eq!(ask(&server, "m", 0.0).numbers("y"), [0.0]);
    server.is_well();
}

#[test]
fn no_more_are_in_work_than_the_config_allows() {
    let work = "
async def work(self, request):
    await self.company(3)
    await asyncio.sleep(0)
    return np.full(1, self.most, np.float32)";
    let model = coroutine(FLOATS, work).parameter("MAX_CONCURRENT_EXECUTIONS", "3");
    let server = Server::start(Repository::of([("m", model)]));
    let most = at_once(24, |_| ask(&server, "m", 1.0).numbers("y")[0]);
    assert!(most.iter().all(|it| *it == 3.0), "{most:?}");
}

#[test]
fn a_limit_that_has_no_effect_or_no_sense_is_refused() {
    let plain = || crate::support::models::execute(FLOATS, "return []");
    let mut models = vec![("plain", plain().parameter("MAX_CONCURRENT_EXECUTIONS", "8"))];
    for (name, value) in [("none", "0"), ("less", "-1"), ("word", "many"), ("mistake", "65537")] {
        models.push((name, meeting(1).parameter("MAX_CONCURRENT_EXECUTIONS", value)));
    }
    let server = Server::lenient(Repository::of(models));
    for (name, text) in [
        ("plain", "which is for models whose `execute` is a coroutine function"),
        ("none", "of model 'none' is '0', expected a number from 1 to 65536"),
        ("less", "of model 'less' is '-1', expected a number from 1 to 65536"),
        ("word", "of model 'word' is 'many', expected a number from 1 to 65536"),
        ("mistake", "of model 'mistake' is '65537', expected a number from 1 to 65536"),
    ] {
        let state = server.state(name);
        assert!(state.starts_with("UNAVAILABLE: ") && state.contains(text), "{state}");
    }
}

#[test]
fn a_later_answer_keeps_its_place_where_order_is_kept() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let work = "
async def work(self, request):
    if x_of(request)[0, 0] == 1:
        await asyncio.get_running_loop().run_in_executor(None, pass_gate)
    return x_of(request)";
    let model = coroutine("x:FP32[1] -> y:FP32[1]", work).batch(1);
    let model = gate.passed_by(model).with("dynamic_batching { preserve_ordering: true }");
    let server = Server::start(repository.with("m", model));
    let first = server.http.start("m", &rows(&[("x", &[1.0])]));
    gate.is_reached();
    let second = server.http.start("m", &rows(&[("x", &[2.0])]));
    until("the second to be executed", || server.executions("m") == 1);
    assert_eq!(server.successes("m"), 0, "the second waits for the first");
    gate.let_through(1);
    assert_eq!(http::finish(first).numbers("y"), [1.0]);
    assert_eq!(http::finish(second).numbers("y"), [2.0]);
}

/// Strings and large tensors, every type of them, out of requests that are in work together.
#[test]
fn requests_in_work_together_keep_their_tensors_apart() {
    let work =
        "async def work(self, request):\n    await self.company(8)\n    return x_of(request)";
    let model = |dtype: &str| coroutine(&format!("x:{dtype}[-1] -> y:{dtype}[-1]"), work);
    let server = Server::start(
        Repository::new().with("floats", model("FP32")).with("strings", model("BYTES")),
    );
    for (model, dtype) in [("floats", "FP32"), ("strings", "BYTES")] {
        let answers = at_once(8, |caller| {
            let elements = 100_000 + caller;
            let data = match dtype {
                "FP32" => vec![caller as f32 + 1.0; elements]
                    .iter()
                    .flat_map(|it| it.to_le_bytes())
                    .collect(),
                _ => format!("\x03\0\0\0<{caller}>").repeat(elements).into_bytes(),
            };
            let request = json!({
                "inputs": [{"name": "x", "datatype": dtype, "shape": [elements],
                            "parameters": {"binary_data_size": data.len()}}],
                "parameters": {"binary_data_output": true},
            });
            (server.http.infer_binary(model, &request, &[&data]), data)
        });
        for (answer, data) in answers {
            let length = answer.ok().header("inference-header-content-length").unwrap();
            let (head, back) = answer.body.split_at(length.parse().unwrap());
            let head: Value = serde_json::from_slice(head).unwrap();
            assert!(back == data, "{head}");
        }
    }
    server.is_well();
}

#[test]
fn whoever_goes_away_is_noticed_and_holds_up_nobody() {
    let repository = Repository::new();
    let noticed = repository.beside("noticed");
    let work = format!(
        "
async def work(self, request):
    if x_of(request)[0] == 1:
        while not request.is_cancelled():
            await asyncio.sleep(0.001)
        open('{}', 'w').close()
    return x_of(request)",
        noticed.display()
    );
    let server = Server::start(repository.with("m", coroutine(FLOATS, &work)));
    let gone = server.http.start("m", &floats(&[("x", &[1.0])]));
    assert_eq!(ask(&server, "m", 2.0).numbers("y"), [2.0]);
    assert!(!noticed.exists());
    drop(gone);
    until("the model to notice", || noticed.exists());
    assert_eq!(ask(&server, "m", 2.0).numbers("y"), [2.0]);
}

#[test]
fn a_worker_that_dies_fails_all_it_has_in_work_and_is_replaced() {
    let before = process::shared_memory_files();
    let work = "
async def work(self, request):
    if self.inside == 64:
        os.kill(os.getpid(), 9)
    await asyncio.sleep(1000)";
    let server = Server::start(Repository::of([("m", coroutine(FLOATS, work))]));
    for _ in 0..2 {
        for answer in at_once(ALL, |_| ask(&server, "m", 1.0)) {
            answer.refuses(503, "Stub process 'm_0' is not healthy.");
            assert!(answer.text().contains("it was ended by signal 9"), "{}", answer.text());
        }
        until("a new worker", || ask(&server, "m", 0.0).status == 200);
    }
    process::no_file_is_left(&before);
    server.is_well();
}

#[test]
fn what_is_in_work_when_the_model_goes_is_cancelled_before_it_is_finalized() {
    let repository = Repository::new();
    let log = repository.beside("log");
    let work = format!(
        "
def note(self, text):
    with open('{}', 'a') as log:
        log.write(text + ' ')

async def work(self, request):
    try:
        self.note('begun')
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        self.note('cancelled')
        raise

async def finalize(self):
    await asyncio.sleep(0)
    self.note('finalized')",
        log.display()
    );
    let repository = repository.with("m", coroutine(FLOATS, &work));
    let server = Server::with(repository, &["--model-control-mode=explicit", "--load-model=m"]);
    let noted = || fs::read_to_string(&log).unwrap_or_default();
    let gone = server.http.start("m", &floats(&[("x", &[1.0])]));
    until("the work to begin", || noted() == "begun ");
    server.unload("m").ok();
    drop(gone);
    until("the end", || noted() == "begun cancelled finalized ");
    until("the worker to end", || process::descendants(server.pid).len() <= 1);
}

/// Calls to the server that wait, in the loop's own thread and in a thread that the loop waits for.
#[test]
fn calls_that_hold_up_the_loop_are_answered_all_the_same() {
    let work = "
async def work(self, request):
    from concurrent.futures import ThreadPoolExecutor

    await self.company(4)
    said = [request.is_cancelled()]
    with ThreadPoolExecutor(2) as threads:
        said += [threads.submit(request.is_cancelled).result() for _ in range(3)]
    said.append(await asyncio.get_running_loop().run_in_executor(None, request.is_cancelled))
    return np.array(said, np.float32)";
    let server = Server::start(Repository::of([("m", coroutine(FLOATS, work))]));
    for answer in at_once(4, |_| ask(&server, "m", 1.0)) {
        assert_eq!(answer.numbers("y"), [0.0; 5]);
    }
}
