//! Ensembles of decoupled models under pressure: limits, slow steps, clients that leave.

use std::{pin::pin, time::Duration};

use tokio::time::timeout;

use crate::{
    decoupled::ensembles::{
        CHAIN, ENSEMBLE, FLOATS, ask, decoupled, limited, repeats, stream, summary,
    },
    support::{
        Model, Repository, Server, ensemble,
        gate::Gate,
        grpc::Grpc,
        models::{delay, execute, python},
        process, until,
    },
};

/// Waits at the gate, six at a time.
fn gated(gate: &Gate) -> Model {
    gate.model("FP32[-1]").with("instance_group { count: 6 }")
}

#[test]
fn a_window_holds_for_all_requests_together() {
    for limit in [1, 4] {
        let repository = Repository::new();
        let gate = Gate::new(&repository, "gate");
        let steps = [CHAIN[0], "gated: x=mid -> y=OUT"];
        let server = Server::start(
            repository
                .with("repeats", repeats())
                .with("gated", gated(&gate))
                .with("e", limited(ensemble(ENSEMBLE, &steps), limit)),
        );
        let text = format!("Ensemble model 'e' configured with max_inflight_requests: {limit}");
        server.logged(&text);
        let in_flight = || {
            let value = server.metric("troupe_ensemble_step_in_flight", &["step=\"1\""]).unwrap();
            assert!(value <= f64::from(limit), "{value} in flight, of {limit}");
            value
        };
        let (rounds, values) = (2, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let answers = std::thread::scope(|scope| {
            let ask = || scope.spawn(|| stream(&server, "e", &values));
            let callers: Vec<_> = (0..rounds).map(|_| ask()).collect();
            (0..limit).for_each(|_| gate.is_reached());
            // Both have told all they will: whoever could run is at the gate.
            until("the producer's end", || server.successes("repeats") == rounds);
            for passed in 0..rounds as u32 * 6 {
                let here = limit.min(rounds as u32 * 6 - passed);
                until("the window to be full", || in_flight() == f64::from(here));
                gate.let_through(1);
                if passed + limit < rounds as u32 * 6 {
                    gate.is_reached();
                }
            }
            callers.into_iter().map(|it| it.join().unwrap()).collect::<Vec<_>>()
        });
        for answer in answers {
            assert_eq!(answer, ["1", "2", "3", "4", "5", "6", "."]);
        }
        assert_eq!(in_flight(), 0.0);
    }
}

#[test]
fn whatever_is_slow_at_first_keeps_the_others_waiting() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let slow = gate.guard(
        FLOATS,
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        if x[0] == 0:
            pass_gate()
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]",
    );
    let steps = [CHAIN[0], "slow: x=mid -> y=OUT"];
    let server = Server::start(
        repository
            .with("repeats", repeats())
            .with("slow", slow.with("instance_group { count: 2 }"))
            .with("e", ensemble(ENSEMBLE, &steps)),
    );
    let answer = std::thread::scope(|scope| {
        let caller = scope.spawn(|| stream(&server, "e", &[0.0, 1.0, 2.0, 3.0, 4.0]));
        until("the others to be through", || server.successes("slow") == 4);
        gate.let_through(1);
        caller.join().unwrap()
    });
    assert_eq!(answer, ["0", "1", "2", "3", "4", "."]);
}

#[test]
fn a_client_that_leaves_frees_the_producer_and_the_window() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let endless = python(
        FLOATS,
        "
        class TritonPythonModel:
            def execute(self, requests):
                for it in requests:
                    sender = it.get_response_sender()
                    x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
                    y = pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])
                    while not sender.is_cancelled():
                        sender.send(y)
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    print('heard that the client has gone', flush=True)",
    );
    let server = Server::start(
        repository
            .with("endless", decoupled(endless))
            .with("repeats", repeats())
            .with("gated", gated(&gate))
            .with(
                "e",
                limited(
                    ensemble(ENSEMBLE, &{ ["endless: x=IN -> y=mid", "gated: x=mid -> y=OUT"] }),
                    2,
                ),
            ),
    );
    for _ in 0..2 {
        let mut grpc = Grpc::connect(server.grpc);
        // Both that the window has room for.
        gate.let_through(2);
        let gone = || server.log().matches("heard that the client has gone").count();
        let before = gone();
        let first = grpc.call(async |client| {
            let first = async {
                let requests = tokio_stream::iter(vec![ask("e", &[5.0])]);
                let mut stream = client.model_stream_infer(requests).await?.into_inner();
                Ok(tonic::Response::new(stream.message().await?.unwrap()))
            };
            let mut first = pin!(first);
            loop {
                match timeout(Duration::from_millis(500), &mut first).await {
                    Ok(answer) => return answer,
                    // The second went first, and a third that took its room went through before
                    // the first came to the gate.
                    Err(_) => gate.let_through(1),
                }
            }
        });
        assert_eq!(summary(&first.unwrap()), "5");
        // Two stand at the gate, and behind them all that the producer may have on its way.
        (0..4).for_each(|_| gate.is_reached());
        drop(grpc);
        until("the producer to hear of it", || before < gone());
        gate.let_through(2);
        let labels = ["ensemble=\"e\"", "step=\"1\""];
        let in_flight = || server.metric("troupe_ensemble_step_in_flight", &labels);
        until("the window to be free", || in_flight() == Some(0.0));
    }
    server.is_well();
}

/// So many responses of one MiB.
const LARGE: &str = "
    count, = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
    sender = requests[0].get_response_sender()
    for number in range(int(count)):
        y = pb_utils.Tensor('y', np.full(1 << 18, number, np.float32))
        sender.send(pb_utils.InferenceResponse([y]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";

#[test]
fn a_fast_producer_waits_for_a_slow_consumer() {
    let steps = ["large: x=IN -> y=mid", "slow: x=mid -> y=OUT"];
    let server = Server::start(
        Repository::new()
            .with("large", decoupled(execute(FLOATS, LARGE)))
            .with("slow", delay(2, FLOATS))
            .with("e", ensemble(ENSEMBLE, &steps)),
    );
    let mut grpc = Grpc::connect(server.grpc);
    let resident = || {
        let all = process::descendants(server.pid);
        let all = all.into_iter().chain([server.pid]);
        all.map(process::resident_mib).sum::<u64>()
    };
    let before = resident();
    let (count, most) = grpc
        .call(async |client| {
            let requests = tokio_stream::iter(vec![ask("e", &[300.0])]);
            let mut stream = client.model_stream_infer(requests).await?.into_inner();
            let (mut count, mut most) = (0, 0);
            while let Some(answer) = stream.message().await? {
                let response = answer.infer_response.unwrap();
                let Some(data) = response.raw_output_contents.first() else { break };
                assert_eq!(data.len(), 1 << 20);
                assert_eq!(data[..4], f32::to_le_bytes(count as f32));
                count += 1;
                most = most.max(resident());
            }
            Ok(tonic::Response::new((count, most)))
        })
        .unwrap();
    assert_eq!(count, 300);
    assert!(most < before + 128, "{before} MiB at first, then {most} MiB");
}
