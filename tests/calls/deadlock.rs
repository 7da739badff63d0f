//! Deadlocks of business logic calls: models that call each other in a circle.

use std::net::TcpStream;

use crate::{
    calls::basics::FLOATS,
    support::{
        Model, Repository, Server, ensemble,
        gate::Gate,
        http::{self, floats},
    },
};

/// Answers a 0 at once; with anything else it calls `asked` with a 0 once it is let through.
fn calls(gate: &Gate, asked: &str) -> Model {
    gate.guard(
        FLOATS,
        &format!(
            "
            x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
            if x[0] == 0:
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]
            pass_gate()
            return [pb_utils.InferenceRequest(
                model_name='{asked}', inputs=[pb_utils.Tensor('x', x * 0)],
                requested_output_names=['y']).exec()]"
        ),
    )
}

struct World {
    server: Server,
    gates: [Gate; 3],
}

impl World {
    /// `a` calls `first`, `b` calls `second`; `slow` waits at a gate and calls `b`.
    fn new(first: &str, second: &str, change: impl Fn(Model) -> Model) -> World {
        let repository = Repository::new();
        let gates = ["a", "b", "slow"].map(|it| Gate::new(&repository, it));
        let server = Server::start(
            repository
                .with("a", calls(&gates[0], first))
                .with("b", change(calls(&gates[1], second)))
                .with("slow", calls(&gates[2], "patient"))
                .with("patient", gates[2].model("FP32[-1]"))
                .with("around_a", ensemble(FLOATS, &["a: x=x -> y=y"]))
                .with("around_b", ensemble(FLOATS, &["b: x=x -> y=y"])),
        );
        World { server, gates }
    }

    fn start(&self, model: &str, gate: usize) -> TcpStream {
        let running = self.server.http.start(model, &floats(&[("x", &[1.0])]));
        self.gates[gate].is_reached();
        running
    }

    /// What the requests to `a` and `b` are answered, which cross.
    fn cross(&self) -> [http::Answer; 2] {
        let both = [self.start("a", 0), self.start("b", 1)];
        self.gates[..2].iter().for_each(|it| it.let_through(1));
        both.map(http::finish)
    }
}

/// One fails with such a text, so that the other goes on.
#[track_caller]
fn check(answers: &[http::Answer; 2], expected: &[&str]) {
    let (good, bad): (Vec<_>, Vec<_>) = answers.iter().partition(|it| it.status == 200);
    assert_eq!(good.len(), 1, "{:?}", bad.iter().map(|it| it.error()).collect::<Vec<_>>());
    assert_eq!(good[0].numbers("y"), [0.0]);
    assert_eq!(bad[0].status, 503);
    assert!(expected.contains(&&*bad[0].error()), "{}", bad[0].error());
}

#[test]
fn one_of_two_requests_that_wait_for_each_other_fails_and_the_others_do_not() {
    let world = World::new("b", "a", |it| it);
    // Waits for longer than the others, and for nobody's fault.
    let slow = world.start("slow", 2);
    world.gates[2].let_through(1);
    world.gates[2].is_reached();
    for _ in 0..2 {
        check(
            &world.cross(),
            &[
                "Model b - Error when running inference: requests wait for each other: 'b' calls \
                 'a', which calls 'b'",
                "Model a - Error when running inference: requests wait for each other: 'a' calls \
                 'b', which calls 'a'",
            ],
        );
    }
    world.gates[2].let_through(1);
    assert_eq!(http::finish(slow).numbers("y"), [0.0]);
    assert_eq!(world.server.infer("b", &floats(&[("x", &[0.0])])).numbers("y"), [0.0]);
    world.server.is_well();
}

#[test]
fn ensembles_on_the_way_are_named() {
    let world = World::new("around_b", "around_a", |it| it);
    check(
        &world.cross(),
        &[
            "Model around_b - Error when running inference: requests wait for each other: 'b' calls \
             'around_a', which runs 'a', which calls 'around_b', which runs 'b'",
            "Model around_a - Error when running inference: requests wait for each other: 'a' calls \
             'around_b', which runs 'b', which calls 'around_a', which runs 'a'",
        ],
    );
}

#[test]
fn with_an_instance_to_spare_nobody_fails() {
    let world = World::new("b", "a", |it| it.with("instance_group { count: 2 kind: KIND_CPU }"));
    for answer in world.cross() {
        assert_eq!(answer.numbers("y"), [0.0]);
    }
}
