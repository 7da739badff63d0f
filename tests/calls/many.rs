//! Many calls at once, and calls with many responses.

use std::sync::LazyLock;

use crate::support::{
    Repository, Server,
    gate::Gate,
    http,
    models::{execute, native, python},
    script::{coroutines, scripts},
    until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// One response per element, then the end; as many elements each as its value says, or an error.
const REPEATS: &str = "
    for it in requests:
        sender = it.get_response_sender()
        for value in it.inputs()[0].as_numpy():
            if value < 0:
                error = pb_utils.TritonError('negative', pb_utils.TritonError.INVALID_ARG)
                sender.send(pb_utils.InferenceResponse(error=error))
            else:
                y = pb_utils.Tensor('y', np.full(int(value), value, np.float32))
                sender.send(pb_utils.InferenceResponse([y]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";

/// Sends until it is cancelled, and remembers how it ended.
const ENDLESS: &str = "
    class TritonPythonModel:
        def execute(self, requests):
            for it in requests:
                sender = it.get_response_sender()
                for number in range(1 << 30):
                    y = pb_utils.Tensor('y', np.full(1024, number, np.float32))
                    if sender.is_cancelled():
                        error = pb_utils.TritonError('stopped', pb_utils.TritonError.CANCELLED)
                        sender.send(pb_utils.InferenceResponse(error=error), 1)
                        break
                    sender.send(pb_utils.InferenceResponse([y]))";

/// Answers from threads of its own, after it has asked another model there.
const ASKS_LATER: &str = "
    import threading

    class TritonPythonModel:
        def execute(self, requests):
            for it in requests:
                threading.Thread(target=self.answer, args=(it, it.get_response_sender())).start()

        def answer(self, request, sender):
            for value in request.inputs()[0].as_numpy():
                x = pb_utils.Tensor('x', np.array([value], np.float32))
                it = pb_utils.InferenceRequest(
                    model_name='doubles', inputs=[x], requested_output_names=['y'])
                sender.send(it.exec())
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";

/// All requests at once, none after another.
const GATHERS: &str = "
    import asyncio

    class TritonPythonModel:
        async def execute(self, requests):
            return [await self.answer(it) for it in requests]

        async def answer(self, request):
            values = request.inputs()[0].as_numpy()
            make = lambda value: pb_utils.InferenceRequest(
                model_name='doubles', requested_output_names=['y'],
                inputs=[pb_utils.Tensor('x', np.array([value], np.float32))])
            got = await asyncio.gather(*[make(value).async_exec() for value in values])
            ys = [pb_utils.get_output_tensor_by_name(it, 'y').as_numpy() for it in got]
            return pb_utils.InferenceResponse([pb_utils.Tensor('y', np.concatenate(ys))])";

const DECOUPLED: &str = "model_transaction_policy { decoupled: true }";

fn repository() -> Repository {
    Repository::new()
        .with("scripts", scripts())
        .with("coroutines", coroutines())
        .with("doubles", execute(FLOATS, crate::calls::basics::DOUBLES))
        .with("identity", native("identity", FLOATS))
        .with("repeats", execute(FLOATS, REPEATS).with(DECOUPLED))
        .with("asks_later", python(FLOATS, ASKS_LATER).with(DECOUPLED))
        .with("gathers", python(FLOATS, GATHERS))
}

static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(repository()));

#[track_caller]
fn check(model: &str, body: &str, expected: &[&str]) {
    assert_eq!(SERVER.run(model, body), expected);
}

#[test]
fn many_threads_call_at_once() {
    check(
        "scripts",
        "
        wrong = []

        def calls(thread):
            for turn in range(50):
                got = y(make('doubles' if turn % 2 else 'identity', [thread, turn]).exec())
                if got != [thread * (1 + turn % 2), turn * (1 + turn % 2)]:
                    wrong.append(got)

        threads = [threading.Thread(target=calls, args=(it,)) for it in range(8)]
        [it.start() for it in threads]
        [it.join() for it in threads]
        return wrong",
        &[],
    );
}

#[test]
fn many_coroutines_call_at_once() {
    let body = "
        calls = [make('doubles' if it % 2 else 'identity', [it]).async_exec() for it in range(200)]
        got = [y(it) for it in await asyncio.gather(*calls)]
        return [it for it in range(200) if got[it] != [it * (1 + it % 2)]]";
    check("coroutines", body, &[]);
    check("coroutines", body, &[]);
    let values: Vec<f32> = (0..100).map(|it| it as f32).collect();
    let answer = SERVER.infer("gathers", &http::floats(&[("x", &values)]));
    assert_eq!(
        answer.numbers("y"),
        values.iter().map(|it| 2.0 * f64::from(*it)).collect::<Vec<_>>()
    );
}

#[test]
fn a_loop_of_the_models_own_will_do() {
    check(
        "scripts",
        "
        async def many():
            calls = [make('doubles', [it]).async_exec() for it in range(3)]
            return [y(await it) for it in calls]

        return asyncio.run(many()) + asyncio.run(many())",
        &["[0.0]", "[2.0]", "[4.0]", "[0.0]", "[2.0]", "[4.0]"],
    );
}

#[test]
fn coroutines_and_threads_call_beside_each_other() {
    check(
        "coroutines",
        "
        loop = asyncio.get_running_loop()
        threads = [loop.run_in_executor(None, make('doubles', [it]).exec) for it in range(20)]
        calls = [make('identity', [it]).async_exec() for it in range(20)]
        got = [y(it) for it in await asyncio.gather(*threads, *calls)]
        late = y(make('doubles', [21]).exec())
        return [got == [[2.0 * it] for it in range(20)] + [[it] for it in range(20)], late]",
        &["True", "[42.0]"],
    );
}

#[test]
fn errors_of_awaited_calls_are_responses_too() {
    check(
        "coroutines",
        "
        got = await asyncio.gather(make('nobody').async_exec(), make('repeats').async_exec())
        return [y(it) for it in got]",
        &[
            "2: Failed for execute the inference request. Model 'nobody' is not ready.",
            "5: Model repeats is using the decoupled. The current BLS request call doesn't support \
             models using the decoupled transaction policy. Please use 'decoupled=True' argument to \
             the 'exec' or 'async_exec' calls for decoupled models.'",
        ],
    );
}

#[test]
fn an_iterator_has_as_many_responses_as_the_model_gives() {
    check(
        "scripts",
        "
        said = [[y(it) for it in make('repeats', x).exec(decoupled=True)]
                for x in ([], [1], [1, 2, 3], [1, -1, 2])]
        one = make('doubles', [4]).exec(decoupled=True)
        return said + [y(next(one)), raised(next, one), raised(next, one),
                       [y(it) for it in make('nobody').exec(decoupled=True)],
                       isinstance(one, pb_utils.ResponseIterator)]",
        &[
            "[]",
            "[[1.0]]",
            "[[1.0], [2.0, 2.0], [3.0, 3.0, 3.0]]",
            "[[1.0], '3: negative', [2.0, 2.0]]",
            "[8.0]",
            "StopIteration: ",
            "StopIteration: ",
            "[\"2: Failed for execute the inference request. Model 'nobody' is not ready.\"]",
            "True",
        ],
    );
}

#[test]
fn an_iterator_can_be_awaited() {
    check(
        "coroutines",
        "
        async def all(x):
            return [y(it) async for it in await make('repeats', x).async_exec(decoupled=True)]

        got = await asyncio.gather(*[all(range(it)) for it in range(20)])
        expected = [[[float(value)] * value for value in range(it)] for it in range(20)]
        mixed = [y(it) for it in await make('repeats', [1, 2]).async_exec(decoupled=True)]
        return [got == expected, mixed]",
        &["True", "[[1.0], [2.0, 2.0]]"],
    );
}

#[test]
fn large_and_small_responses_come_in_order() {
    // More bytes than may be on the way, each response in the frame or in shared memory.
    check(
        "scripts",
        "
        sizes = [1, 300000, 2, 5000, 20000, 400000] * 10
        responses = make('repeats', sizes).exec(decoupled=True)
        got = [pb_utils.get_output_tensor_by_name(it, 'y').as_numpy() for it in responses]
        return [[it.size for it in got] == sizes, all((it == it.size).all() for it in got)]",
        &["True", "True"],
    );
}

#[test]
fn what_is_not_wanted_any_more_is_cancelled() {
    let server =
        Server::start(repository().with("endless", python(FLOATS, ENDLESS).with(DECOUPLED)));
    let ended = |count: u64| {
        until("the model to hear of it", || {
            let stats = server.stats("endless");
            let of = |it: &str| stats["inference_stats"][it]["count"].as_u64().unwrap();
            of("success") + of("fail") == count
        })
    };
    // Told to end, it is heard to the end.
    let said = server.run(
        "scripts",
        "
        responses = make('endless').exec(decoupled=True)
        first = y(next(responses))[:1]
        responses.cancel()
        rest = [y(it) for it in responses]
        return [first, rest[-1]]",
    );
    assert_eq!(said, ["[0.0]", "7: stopped"]);
    ended(1);
    // Let go of, it has ended, too, and the memory comes back.
    let said = server.run(
        "scripts",
        "
        for it in make('endless').exec(decoupled=True):
            break
        del it
        return [len(pb_utils._requests.worker.frames.replies)]",
    );
    assert_eq!(said, ["0"]);
    ended(2);
    let said = server.run(
        "coroutines",
        "
        async for it in await make('endless').async_exec(decoupled=True):
            return y(it)[:1]",
    );
    assert_eq!(said, ["0.0"]);
    ended(3);
}

#[test]
fn an_awaited_call_that_takes_too_long_is_cancelled() {
    let mut repository = repository();
    let gate = Gate::new(&repository, "gate");
    repository.write("gated", &gate.model("FP32[-1]"));
    let server = Server::start(repository);
    let said = server.run(
        "coroutines",
        "
        late = make('gated').async_exec()
        try:
            return [await asyncio.wait_for(late, 0.5)]
        except asyncio.TimeoutError:
            return [late.cancelled(), len(pb_utils._requests.worker.frames.replies)]",
    );
    assert_eq!(said, ["True", "0"]);
    gate.is_reached();
    gate.let_through(1);
    until("the answer nobody waits for", || server.executions("gated") == 1);
    assert_eq!(
        server.run("coroutines", "return [y(await make('doubles').async_exec())]"),
        ["[2.0]"]
    );
}

#[test]
fn a_worker_that_dies_cancels_its_calls() {
    let kills = execute(
        FLOATS,
        "
        responses = pb_utils.InferenceRequest(
            model_name='endless', requested_output_names=['y'], inputs=requests[0].inputs(),
        ).exec(decoupled=True)
        next(responses)
        os.kill(os.getpid(), 9)",
    );
    let endless = python(FLOATS, ENDLESS).with(DECOUPLED);
    let server = Server::start(repository().with("endless", endless).with("kills", kills));
    let answer = server.infer("kills", &http::floats(&[("x", &[1.0])]));
    answer.refuses(503, "it was ended by signal 9");
    until("the called model to hear of it", || {
        server.stats("endless")["inference_stats"]["success"]["count"] == 0
            && server.run("scripts", "return [make('endless').exec(decoupled=True).cancel()]")
                == ["None"]
    });
}

#[test]
fn a_thread_that_outlives_execute_calls() {
    let body = "
        got = [y(it) for it in make('asks_later', [1, 2, 3]).exec(decoupled=True)]
        return got";
    check("scripts", body, &["[2.0]", "[4.0]", "[6.0]"]);
}

#[test]
fn coroutines_may_call_their_own_model() {
    const COUNTS_DOWN: &str = "
        class TritonPythonModel:
            async def execute(self, requests):
                return [await self.answer(it.inputs()[0].as_numpy()[0]) for it in requests]

            async def answer(self, number):
                if number == 0:
                    return pb_utils.InferenceResponse([pb_utils.Tensor('y', np.zeros(1, 'f4'))])
                x = pb_utils.Tensor('x', np.array([number - 1], np.float32))
                return await pb_utils.InferenceRequest(
                    model_name='NAME', inputs=[x], requested_output_names=['y']).async_exec()";
    let counts_down = |of: &str| python(FLOATS, &COUNTS_DOWN.replace("NAME", of));
    let narrow = counts_down("narrow").parameter("MAX_CONCURRENT_EXECUTIONS", "3");
    let passes = "
        ask = lambda it: pb_utils.InferenceRequest(
            model_name='between', inputs=it.inputs(), requested_output_names=['y'])
        return [ask(it).exec() for it in requests]";
    let repository = Repository::new()
        .with("wide", counts_down("wide"))
        .with("narrow", narrow)
        .with("between", counts_down("passes"))
        .with("passes", execute(FLOATS, passes));
    let server = Server::start(repository);
    let ask = |model: &str, depth: f32| server.infer(model, &http::floats(&[("x", &[depth])]));
    assert_eq!(ask("wide", 40.0).numbers("y"), [0.0]);
    ask("wide", 100.0).refuses(501, "calls are nested more than 64 deep");
    assert_eq!(ask("narrow", 2.0).numbers("y"), [0.0]);
    ask("narrow", 3.0)
        .refuses(501, "model 'narrow' would wait for itself: 'narrow' calls 'narrow'");
    let circle =
        "model 'passes' would wait for itself: 'passes' calls 'between', which calls 'passes'";
    ask("passes", 3.0).refuses(501, circle);
    assert_eq!(ask("passes", 0.0).numbers("y"), [0.0]);
}

#[test]
fn an_alarm_ends_a_call() {
    let mut repository = repository();
    let gate = Gate::new(&repository, "gate");
    repository.write("gated", &gate.model("FP32[-1]"));
    let server = Server::start(repository);
    let said = server.run(
        "scripts",
        "
        import signal

        def ring(*_):
            raise TimeoutError('enough')

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        said = raised(make('gated').exec)
        return [said, y(make('doubles').exec())]",
    );
    assert_eq!(said, ["TimeoutError: enough", "[2.0]"]);
    gate.let_through(1);
}
