//! Models whose instances are served by several engine threads.

use std::thread;

use crate::support::{
    Model, Repository, Server, at_once,
    gate::Gate,
    http::{self, floats},
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// Answers a 0 at once, and others when they are let through.
fn guarded(gate: &Gate) -> Model {
    gate.guard(
        FLOATS,
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        if x[0] != 0:
            pass_gate()
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]",
    )
}

fn is_fast(server: &Server) {
    assert_eq!(server.infer("m", &floats(&[("x", &[0.0])])).ok().numbers("y"), [0.0]);
}

/// What was handed to a worker behind a slow request is taken back by whoever rests.
#[test]
fn fast_requests_get_past_slow_ones_on_any_number_of_threads() {
    for threads in ["1", "2", "8"] {
        let repository = Repository::new();
        let gate = Gate::new(&repository, "gate");
        let model = guarded(&gate).with("instance_group { count: 4 kind: KIND_CPU }");
        let flag = format!("--engine-thread-count={threads}");
        let server = Server::with(repository.with("m", model), &[&flag]);
        // Workers that are known to be quick are handed more than one at a time.
        at_once(16, |_| (0..20).for_each(|_| is_fast(&server)));
        for _ in 0..5 {
            let slow = || server.http.start("m", &floats(&[("x", &[1.0])]));
            let slow = thread::scope(|scope| {
                let fast = scope.spawn(|| at_once(16, |_| (0..20).for_each(|_| is_fast(&server))));
                let slow = [slow(), slow(), slow()];
                // All of them are answered, though nobody lets the slow ones through.
                fast.join().unwrap();
                slow
            });
            (0..3).for_each(|_| gate.is_reached());
            at_once(8, |_| is_fast(&server));
            gate.let_through(3);
            for it in slow {
                assert_eq!(http::finish(it).ok().numbers("y"), [1.0]);
            }
        }
        assert_eq!(server.successes("m"), 320 + 5 * (320 + 3 + 8), "{threads} threads");
        server.is_well();
    }
}
