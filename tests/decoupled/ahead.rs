//! Ensembles whose steps make much of little: how much is made ahead of a slow first iteration, or
//! of a client that does not read.

use tonic::Streaming;
use troupe_proto::inference::ModelStreamInferResponse;

use crate::{
    decoupled::ensembles::{ENSEMBLE, FLOATS, ask, decoupled, stream, summary},
    support::{
        Model, Repository, Server, ensemble,
        gate::Gate,
        grpc::{Grpc, floats_of},
        http,
        models::{execute, python},
        native, process, until,
    },
};

const STEPS: [&str; 2] = ["counts: x=IN -> y=mid", "swells: x=mid -> y=OUT"];

/// 0, 1, 2 … as many as it is asked for, from a thread; and when it was told that nobody wants
/// more.
fn counts() -> Model {
    decoupled(python(
        FLOATS,
        "
        import threading

        class TritonPythonModel:
            def execute(self, requests):
                for it in requests:
                    count, = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
                    sender = it.get_response_sender()
                    threading.Thread(target=self.count, args=(sender, int(count))).start()

            def count(self, sender, count):
                for number in range(count):
                    if sender.is_cancelled():
                        print('heard that the client has gone', flush=True)
                        break
                    y = pb_utils.Tensor('y', np.array([number], np.float32))
                    sender.send(pb_utils.InferenceResponse([y]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
    ))
}

/// Makes one MiB of every number; what stands `before` is done first.
fn swells(before: &str) -> String {
    format!(
        "
        answers = []
        for it in requests:
            x, = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
            {before}
            y = pb_utils.Tensor('y', np.full(1 << 18, x, np.float32))
            answers.append(pb_utils.InferenceResponse([y]))
        return answers"
    )
}

fn slow_at_first(gate: &Gate) -> Model {
    let slow = swells("if x == 0: pass_gate()");
    gate.guard(FLOATS, &slow).with("instance_group { count: 2 }")
}

/// Of the server and its workers.
fn resident(server: &Server) -> u64 {
    let all = process::descendants(server.pid).into_iter().chain([server.pid]);
    all.map(process::resident_mib).sum()
}

struct Reader {
    grpc: Grpc,
    answers: Streaming<ModelStreamInferResponse>,
}

impl Reader {
    fn start(server: &Server, count: usize) -> Reader {
        let mut grpc = Grpc::connect(server.grpc);
        let requests = tokio_stream::iter(vec![ask("e", &[count as f32])]);
        let answers = grpc
            .run(async |client| client.model_stream_infer(requests).await.unwrap().into_inner());
        Reader { grpc, answers }
    }

    /// The number of the next response; `None` at the end.
    fn next(&mut self) -> Option<usize> {
        let Reader { grpc, answers } = self;
        let answer = grpc.run(async |_| answers.message().await.unwrap().unwrap());
        assert_eq!(answer.error_message, "");
        let response = answer.infer_response.unwrap();
        let data = response.raw_output_contents.first()?;
        assert_eq!(data.len(), 1 << 20);
        Some(floats_of(&data[..4])[0] as usize)
    }
}

/// Waits until no more is made, while others are served; how many were.
fn stalls(server: &Server) -> u64 {
    let (mut last, mut same) = (0, 0);
    until("the step to be asked no more", || {
        let answer = server.infer("other", &http::floats(&[("x", &[1.0])]));
        assert_eq!(answer.ok().numbers("y"), [1.0]);
        let made = server.successes("swells");
        same = if made == last { same + 1 } else { 0 };
        last = made;
        0 < made && same == 20
    });
    last
}

fn start(repository: Repository, swells: Model, window: Option<&str>) -> Server {
    let e = ensemble(ENSEMBLE, &STEPS);
    let e = match window {
        Some(window) => e.parameter("ITERATION_WINDOW_BYTES", window),
        None => e,
    };
    Server::start(
        repository
            .with("counts", counts())
            .with("swells", swells)
            .with("other", native("identity", FLOATS))
            .with("e", e),
    )
}

const COUNT: usize = 400;

#[test]
fn little_is_made_ahead_of_a_slow_first_iteration() {
    for (window, ahead) in [(None, 60..=63), (Some("16M"), 15..=15)] {
        let repository = Repository::new();
        let gate = Gate::new(&repository, "gate");
        let swells = slow_at_first(&gate);
        let server = start(repository, swells, window);
        let before = resident(&server);
        let mut reader = Reader::start(&server, COUNT);
        gate.is_reached();
        until("others to be through", || *ahead.start() <= server.successes("swells"));
        let made = stalls(&server);
        assert!(ahead.contains(&made), "{made} were made ahead");
        // Each takes its place once, in memory that its worker and the server share.
        let most = before + 3 * (made + 1) + 64;
        assert!(resident(&server) < most, "{before} MiB at first, then {}", resident(&server));
        gate.let_through(1);
        for number in 0..COUNT {
            assert_eq!(reader.next(), Some(number));
            if number % 50 == 0 {
                let now = resident(&server);
                assert!(now < most, "{before} MiB at first, then {now} at {number}");
            }
        }
        assert_eq!(reader.next(), None);
        assert_eq!(server.successes("swells"), COUNT as u64);
        server.is_well();
    }
}

#[test]
fn little_is_made_ahead_of_a_client_that_does_not_read() {
    let server = start(Repository::new(), execute(FLOATS, &swells("pass")), Some("8M"));
    let before = resident(&server);
    let mut reader = Reader::start(&server, COUNT);
    let made = stalls(&server) as usize;
    // Sockets hold some.
    assert!((8..60).contains(&made), "{made} were made ahead");
    for number in 0..COUNT {
        assert_eq!(reader.next(), Some(number));
    }
    assert_eq!(reader.next(), None);
    let now = resident(&server);
    assert!(now < before + 200, "{before} MiB at first, then {now}");
    server.is_well();
}

#[test]
fn a_client_that_leaves_sets_its_producer_free_whatever_is_slow() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let swells = slow_at_first(&gate);
    let server = start(repository, swells, None);
    let reader = Reader::start(&server, 100_000_000);
    gate.is_reached();
    stalls(&server);
    drop(reader);
    server.logged("heard that the client has gone");
    gate.let_through(1);
    let labels = ["ensemble=\"e\"", "step=\"1\""];
    let in_flight = || server.metric("troupe_ensemble_step_in_flight", &labels);
    until("the step to be free", || in_flight() == Some(0.0));
    let mut reader = Reader::start(&server, 2);
    gate.is_reached();
    gate.let_through(1);
    assert_eq!([reader.next(), reader.next(), reader.next()], [Some(0), Some(1), None]);
    server.is_well();
}

/// Sends values on until it comes to a 9, which is its end.
const DIES_ON_9: &str = "
    for it in requests:
        sender = it.get_response_sender()
        for value in pb_utils.get_input_tensor_by_name(it, 'x').as_numpy():
            if value == 9:
                os._exit(7)
            y = pb_utils.Tensor('y', np.array([value], np.float32))
            sender.send(pb_utils.InferenceResponse([y]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";

const ENDS_ON_9: &str = "
    x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
    if x[0] == 9:
        os._exit(7)
    return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]";

#[test]
fn a_worker_that_dies_in_the_middle_ends_the_request_once_and_in_order() {
    let inner = ["dies: x=IN -> y=a", "ends: x=a -> y=OUT"];
    let server = Server::start(
        Repository::new()
            .with("dies", decoupled(execute(FLOATS, DIES_ON_9)))
            .with("ends", execute(FLOATS, ENDS_ON_9))
            .with("row", ensemble(ENSEMBLE, &["dies: x=IN -> y=a", "dies: x=a -> y=OUT"]))
            .with("inner", ensemble(ENSEMBLE, &inner))
            .with("outer", ensemble(ENSEMBLE, &["inner: IN=IN -> OUT=b", "ends: x=b -> y=OUT"])),
    );
    for (model, step) in [("row", 0), ("inner", 0), ("outer", 0)] {
        let good = stream(&server, model, &[1.0, 2.0, 3.0]);
        assert_eq!(good, ["1", "2", "3", "."], "{model}");
        let answers = stream(&server, model, &[1.0, 2.0, 9.0, 3.0]);
        let (error, before) = answers.split_last().unwrap();
        assert!(["1", "2"].map(str::to_owned).starts_with(before), "{model}: {answers:?}");
        let place = format!("in ensemble '{model}', step {step} ");
        assert!(error.starts_with(&place) && error.contains("status 7"), "{model}: {error}");
        assert!(error.ends_with('.'), "{model}: {error}");
        until("a new worker", || stream(&server, model, &[4.0]) == ["4", "."]);
    }
    for step in ["step=\"0\"", "step=\"1\""] {
        let labels = ["ensemble=\"inner\"", step];
        let in_flight = || server.metric("troupe_ensemble_step_in_flight", &labels);
        until("the step to be free", || in_flight() == Some(0.0));
    }
    server.is_well();
}

#[test]
fn a_consumer_that_dies_ends_the_request_behind_what_came_before() {
    let source = DIES_ON_9.replace("os._exit(7)", "pass");
    let server = Server::start(
        Repository::new()
            .with("sends", decoupled(execute(FLOATS, &source)))
            .with("ends", execute(FLOATS, ENDS_ON_9))
            .with("e", ensemble(ENSEMBLE, &["sends: x=IN -> y=a", "ends: x=a -> y=OUT"])),
    );
    let answers = Grpc::connect(server.grpc)
        .stream(vec![ask("e", &[1.0, 2.0, 9.0, 3.0, 4.0]), ask("e", &[5.0])])
        .unwrap();
    let mut ends = answers.iter().map(summary).filter(|it| it.ends_with('.'));
    let (one, two) = (ends.next().unwrap(), ends.next().unwrap());
    assert!(ends.next().is_none());
    let is_death = |it: &String| {
        it.starts_with("in ensemble 'e', step 1 (model 'ends' version 1, instance 'ends_0'")
    };
    assert!(is_death(&one) || is_death(&two), "{one} and {two}");
    until("a new worker", || stream(&server, "e", &[4.0]) == ["4", "."]);
    server.is_well();
}
