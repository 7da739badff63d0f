//! Clients that go at the worst moment: cancelled calls, connections reset in the middle of answers,
//! and models that answer whoever has gone.

use std::{io::Write, sync::LazyLock, thread, time::Duration};

use rustix::net::sockopt::set_socket_linger;
use tonic::{Code, Request};
use troupe_proto::inference::ModelInferRequest;

use crate::{
    decoupled::models::{REPEATS, decoupled},
    support::{
        Repository, Server, at_once, ensemble,
        grpc::{Grpc, floats},
        http,
        models::{delay, execute, python, same},
        native,
        process::{descriptors, memory_is_back, resident_mib},
        until,
    },
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";
/// Cancelled calls for each way of cancelling; `FUZZ_SECONDS` asks for more of them.
const CALLS: usize = 400;

fn calls() -> usize {
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|it| it.parse::<usize>().ok());
    seconds.map_or(CALLS, |it| CALLS.max(it * 30))
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    Server::start(Repository::of([
        ("m", native("identity", FLOATS)),
        ("slow", delay(3, FLOATS)),
        ("python", same(FLOATS)),
        ("repeats", decoupled(execute(FLOATS, REPEATS))),
        ("chain", ensemble(FLOATS, &["python: x=x -> y=t", "slow: x=t -> y=y"])),
        ("large", native("identity", "x:UINT8[-1] -> y:UINT8[-1]")),
    ]))
});

fn asked(model: &str) -> ModelInferRequest {
    floats(model, &[("x", &[1.0, 2.0, 3.0])])
}

#[test]
fn cve_2025_23322_calls_cancelled_at_any_moment_leave_nothing_behind() {
    const MODELS: [&str; 5] = ["m", "slow", "python", "repeats", "chain"];
    SERVER.still_serves("nothing");
    let before = resident_mib(SERVER.pid);
    at_once(4, |caller| {
        let mut grpc = Grpc::connect(SERVER.grpc);
        for turn in 0..calls() {
            let model = MODELS[(turn + caller) % MODELS.len()];
            // From before its headers are sent until after its answer has come.
            let jitter = Duration::from_micros((turn * 7919 % 5000) as u64);
            let is_stream = turn % 2 == 0 || model == "repeats";
            grpc.run(async |client| {
                let wait = tokio::time::sleep(jitter);
                let call = async {
                    if is_stream {
                        let requests = tokio_stream::iter(vec![asked(model); 3]);
                        let mut stream = client.model_stream_infer(requests).await?.into_inner();
                        while stream.message().await?.is_some() {}
                    } else {
                        let mut request = Request::new(asked(model));
                        if turn % 3 == 0 {
                            request.set_timeout(jitter);
                        }
                        client.model_infer(request).await?;
                    }
                    Ok::<(), tonic::Status>(())
                };
                tokio::select! {
                    biased;
                    () = wait, if turn % 3 != 0 => (),
                    ended = call => if let Err(status) = ended {
                        let codes = [Code::DeadlineExceeded, Code::Cancelled];
                        assert!(codes.contains(&status.code()), "{model}: {status}");
                    }
                }
            });
            let answer = grpc.infer(asked("m")).unwrap();
            assert_eq!(answer.raw_output_contents[0].len(), 12, "after {model}");
        }
    });
    let pending = |model: &str| {
        SERVER.metric("nv_inference_pending_request_count", &[&format!("model=\"{model}\"")])
    };
    for model in MODELS {
        until("no request to be pending", || pending(model).is_none_or(|it| it == 0.0));
    }
    for kind in ["received", "tensors", "responses", "other"] {
        until("all bytes to be given back", || {
            SERVER.metric("troupe_inflight_bytes", &[kind]) == Some(0.0)
        });
    }
    memory_is_back(SERVER.pid, before + 32);
    SERVER.still_serves("cancelled calls");
    SERVER.is_well();
}

#[test]
fn e24fd86da_a_connection_that_is_reset_in_the_middle_of_an_answer_ends_nothing() {
    const SIZE: usize = 4 << 20;
    let json = format!(
        r#"{{"inputs":[{{"name":"x","datatype":"UINT8","shape":[{SIZE}],"parameters":{{"binary_data_size":{SIZE}}}}}],"parameters":{{"binary_data_output":true}}}}"#
    );
    let head = format!(
        "POST /v2/models/large/infer HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\
         Inference-Header-Content-Length: {}\r\n\r\n{json}",
        json.len() + SIZE,
        json.len()
    );
    let body = vec![7; SIZE];
    SERVER.still_serves("nothing");
    let before = descriptors(SERVER.pid).len();
    at_once(4, |caller| {
        for turn in 0..20 {
            let mut stream = SERVER.http.connect();
            // Closing it is a reset.
            set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            let sent = if turn % 2 == 0 { SIZE } else { SIZE / 20 * turn };
            stream.write_all(&body[..sent]).unwrap();
            thread::park_timeout(Duration::from_micros((turn * 977 + caller * 131) as u64));
            drop(stream);
        }
    });
    until("connections that were reset to be gone", || {
        descriptors(SERVER.pid).len() <= before + 16
    });
    SERVER.still_serves("resets");
    let one = http::floats(&[("x", &[5.0])]);
    assert_eq!(SERVER.infer("chain", &one).numbers("y"), [5.0]);
    SERVER.is_well();
}

/// Answers as no model should; `x[0]` says how.
const CONFUSED: &str = "
    import threading

    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


    class TritonPythonModel:
        def execute(self, requests):
            for it in requests:
                x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
                sender = it.get_response_sender()
                self.answer(int(x[0]), sender)

        def answer(self, case, sender):
            y = pb_utils.InferenceResponse([pb_utils.Tensor('y', np.array([case], np.float32))])
            bad = pb_utils.InferenceResponse(error=pb_utils.TritonError('in the middle'))
            send = lambda *all, **more: self.quietly(sender, *all, **more)
            if case == 1:
                send(flags=FINAL)
                send(flags=FINAL)
            if case == 2:
                send(flags=FINAL)
                send(y)
                send(y, flags=FINAL)
            if case == 3:
                send(y)
                send(bad)
                send(y)
                send(y, flags=FINAL)
            if case == 4:
                threads = [threading.Thread(target=send, args=(y,)) for _ in range(64)]
                [it.start() for it in threads]
                [it.join() for it in threads]
                send(flags=FINAL)
            if case == 5:
                ends = [threading.Thread(target=send, args=(y, FINAL)) for _ in range(64)]
                [it.start() for it in ends]
                [it.join() for it in ends]
            if case == 6:
                send(bad, flags=FINAL)
                send(y)
            if case == 7:
                send(y)
                raise ValueError('after a response')

        def quietly(self, sender, *all, **more):
            try:
                sender.send(*all, **more)
            except Exception:
                pass
    ";

#[test]
fn c1b7cb73c_a_request_ends_once_however_its_model_answers() {
    let server = Server::start(Repository::of([
        ("m", native("identity", FLOATS)),
        ("confused", decoupled(python(FLOATS, CONFUSED))),
    ]));
    let mut grpc = Grpc::connect(server.grpc);
    for (case, answers, errors) in
        [(1, 0, 0), (2, 0, 0), (3, 3, 1), (4, 64, 0), (5, 1, 0), (6, 0, 1), (7, 1, 1)]
    {
        for turn in 0..5 {
            let request = floats("confused", &[("x", &[case as f32])]);
            let all = grpc.stream(vec![request]).unwrap();
            let failed = all.iter().filter(|it| !it.error_message.is_empty()).count();
            let told = (all.len() - failed, failed);
            // What is sent behind the end, or behind an error, may be left out.
            assert!(told.0 <= answers && told.1 == errors, "case {case}, turn {turn}: {told:?}");
            assert!(case == 3 || told.0 == answers, "case {case}, turn {turn}: {told:?}");
        }
        // A client that leaves in the middle.
        grpc.run(async |client| {
            let requests = tokio_stream::iter(vec![floats("confused", &[("x", &[case as f32])])]);
            let _ = client.model_stream_infer(requests).await;
        });
        server.still_serves("a confused model");
    }
    server.is_well();
}
