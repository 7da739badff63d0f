//! Priority levels and queue policies: who is served first, who waits too long, and whom there is no
//! room for. A gate holds the only instance, so nothing depends on speed.

use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::{
    Model, Repository, Server, ensemble,
    gate::Gate,
    http::{Answer, finish, rows},
    until,
};

const ROW: &str = "x:FP32[1] -> y:FP32[1]";

/// Three levels, of which the second is the default.
const LEVELS: &str = "priority_levels: 3 default_priority_level: 2";

/// Answers the how manieth request it executes each one is, and waits at the gate before it does.
fn counting(gate: &Gate, dynamic: &str) -> Model {
    let body = "
        pass_gate()
        answers = []
        for it in requests:
            self.count = getattr(self, 'count', -1) + 1
            y = np.full((1, 1), self.count, np.float32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', y)]))
        return answers";
    gate.guard(ROW, body).batch(1).with(format!("dynamic_batching {{ {dynamic} }}"))
}

/// A server whose only instance executes a first request, until it is let through.
struct HeldServer {
    gate: Gate,
    server: Server,
    first: Option<TcpStream>,
    queued: usize,
}

impl HeldServer {
    fn new(dynamic: &str) -> HeldServer {
        let repository = Repository::new();
        let gate = Gate::new(&repository, "gate");
        let steps = ["m: x=A -> y=Z"];
        let repository = repository
            .with("m", counting(&gate, dynamic))
            .with("e", ensemble("A:FP32[1] -> Z:FP32[1]", &steps).batch(1));
        let server = Server::start(repository);
        let first = Some(server.http.start("m", &request("x", json!({}))));
        gate.is_reached();
        HeldServer { gate, server, first, queued: 0 }
    }

    fn pending(&self) -> f64 {
        self.server.metric("nv_inference_pending_request_count", &["model=\"m\""]).unwrap()
    }

    /// Sends a request that waits behind the others.
    fn queue(&mut self, parameters: Value) -> TcpStream {
        let stream = self.server.http.start("m", &request("x", parameters));
        self.is_queued();
        stream
    }

    /// The same through the ensemble.
    fn queue_step(&mut self, parameters: Value) -> TcpStream {
        let stream = self.server.http.start("e", &request("A", parameters));
        self.is_queued();
        stream
    }

    fn is_queued(&mut self) {
        self.queued += 1;
        until("the request to queue", || self.pending() == self.queued as f64);
    }

    fn refused(&self, parameters: Value) -> Answer {
        self.server.infer("m", &request("x", parameters))
    }

    /// Lets all through; the first one was executed first.
    fn go_on(&mut self) {
        self.gate.let_through(16);
        assert_eq!(finish(self.first.take().unwrap()).numbers("y"), [0.0]);
    }
}

fn request(input: &str, parameters: Value) -> Value {
    let mut request = rows(&[(input, &[1.0])]);
    request["parameters"] = parameters;
    request
}

/// The turns in which these were executed.
fn turns(streams: Vec<TcpStream>, output: &str) -> Vec<f64> {
    streams.into_iter().map(|it| finish(it).numbers(output)[0]).collect()
}

#[test]
fn the_highest_level_is_served_first_also_as_a_step() {
    let mut held = HeldServer::new(LEVELS);
    let priorities = [0, 3, 1, 9, 2, 1];
    let asked = priorities.map(|it| held.queue(json!({ "priority": it })));
    let steps = [3, 1].map(|it| held.queue_step(json!({ "priority": it })));
    held.go_on();
    assert_eq!(turns(asked.into(), "y"), [4.0, 7.0, 1.0, 5.0, 6.0, 2.0]);
    assert_eq!(turns(steps.into(), "Z"), [8.0, 3.0]);
}

#[test]
fn who_waited_too_long_is_refused_although_the_instance_is_busy() {
    let policy = "default_queue_policy { default_timeout_microseconds: 30000 }";
    let mut held = HeldServer::new(policy);
    // Nothing moves before it is answered.
    held.refused(json!({})).refuses(503, "Request timeout expired");
    let step = held.server.infer("e", &request("A", json!({})));
    step.refuses(503, "Request timeout expired");
    assert_eq!(step.provenance()["model"], "m");
    assert_eq!(held.pending(), 0.0);
    let failed = ["model=\"m\"", "reason=\"REJECTED\""];
    assert_eq!(held.server.metric("nv_inference_request_failure", &failed), Some(2.0));
    held.go_on();
    // The instance never saw them.
    assert_eq!(held.server.executions("m"), 1);
    held.server.is_well();
}

#[test]
fn a_request_may_ask_for_less_time_only_where_the_policy_allows_it() {
    let policy = "allow_timeout_override: true default_timeout_microseconds: 3600000000";
    let mut held = HeldServer::new(&format!("default_queue_policy {{ {policy} }}"));
    held.refused(json!({"timeout": 20000})).refuses(503, "Request timeout expired");
    let longer = held.queue(json!({"timeout": 7200000000u64}));
    let none = held.queue(json!({}));
    held.refused(json!({"timeout": 20000})).refuses(503, "Request timeout expired");
    held.go_on();
    assert_eq!(turns(vec![longer, none], "y"), [1.0, 2.0]);
    // As on Triton: where nobody waits too long, a request has nothing to override. It is warned of.
    let mut held = HeldServer::new("default_queue_policy { allow_timeout_override: true }");
    held.server.logged("`default_queue_policy` of 'm' has no effect: it allows an override");
    let waits = held.queue(json!({"timeout": 1}));
    held.go_on();
    assert_eq!(turns(vec![waits], "y"), [1.0]);
}

#[test]
fn who_is_delayed_is_served_behind_its_level_and_before_the_next_one() {
    let delays = "{ timeout_action: DELAY default_timeout_microseconds: 1 }";
    let dynamic = format!("{LEVELS} priority_queue_policy {{ key: 1 value {delays} }}");
    let mut held = HeldServer::new(&dynamic);
    let low = held.queue(json!({"priority": 3}));
    let delayed = held.queue(json!({"priority": 1}));
    let middle = held.queue(json!({"priority": 2}));
    held.go_on();
    assert_eq!(turns(vec![delayed, middle, low], "y"), [1.0, 2.0, 3.0]);
}

#[test]
fn no_more_wait_in_a_level_than_its_policy_says() {
    let text = "[request id: <id_unknown>] Exceeds maximum queue size";
    let dynamic = format!(
        "{LEVELS} default_queue_policy {{ max_queue_size: 1 }}
         priority_queue_policy {{ key: 1 value {{ max_queue_size: 2 }} }}"
    );
    let mut held = HeldServer::new(&dynamic);
    let mut waiting = vec![held.queue(json!({})), held.queue(json!({"priority": 3}))];
    held.refused(json!({})).refuses(503, text);
    held.refused(json!({"priority": 3})).refuses(503, text);
    waiting.extend([1, 1].map(|it| held.queue(json!({ "priority": it }))));
    held.refused(json!({"priority": 1})).refuses(503, text);
    // A step that is refused ends the ensemble's request.
    held.server.infer("e", &request("A", json!({"priority": 1}))).refuses(503, text);
    held.go_on();
    assert_eq!(turns(waiting, "y"), [3.0, 4.0, 1.0, 2.0]);
    assert_eq!(finish(held.server.http.start("m", &request("x", json!({})))).numbers("y"), [5.0]);
}

#[test]
fn who_leaves_the_queue_makes_room() {
    let mut held = HeldServer::new("default_queue_policy { max_queue_size: 1 }");
    drop(held.queue(json!({})));
    until("the request to be given up", || held.pending() == 0.0);
    held.queued = 0;
    let waits = held.queue(json!({}));
    held.go_on();
    assert_eq!(turns(vec![waits], "y"), [1.0]);
}
