//! Clients that go away in the middle of a sequence.

use super::models::{ask, direct_with, request, sum};
use crate::support::{Repository, Server, gate::Gate, http::finish, until};

#[test]
fn who_goes_away_leaves_the_slot_and_the_backlog() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let more = "max_sequence_idle_microseconds: 60000000";
    let mut model = direct_with(1, more);
    // It waits for the gate with what is 100 or more.
    let reads = "number = get('INPUT').as_numpy().item()";
    let source = model.source.take().unwrap();
    let waits = format!("{reads}; 100 <= number and pass_gate()");
    model.source = Some(source.replace(reads, &waits));
    let server = Server::start(repository.with("m", gate.passed_by(model)));
    let pending = || server.metric("nv_inference_pending_request_count", &["model=\"m\""]).unwrap();
    let first = server.http.start("m", &request(1, "+", 100));
    gate.is_reached();
    // One waits in the slot behind it, two wait in the backlog.
    let second = server.http.start("m", &request(1, "", 1));
    until("the request to queue", || pending() == 1.);
    let gone = server.http.start("m", &request(2, "+", 5));
    until("the request to queue", || pending() == 2.);
    let waits = server.http.start("m", &request(3, "+", 7));
    until("the request to queue", || pending() == 3.);
    drop(gone);
    until("the request to be given up", || pending() == 2.);
    drop(second);
    until("the request to be given up", || pending() == 1.);
    gate.let_through(1);
    assert_eq!(finish(first).numbers("OUTPUT"), [100.]);
    // The slot is free, and the third sequence has it.
    assert_eq!(finish(waits).numbers("OUTPUT"), [7.]);
    assert_eq!(sum(&server, "m", 3, ("!", 1)), 8.);
    for id in [1, 2] {
        let text = format!("inference request for sequence {id} to model 'm' must specify");
        ask(&server, "m", id, ("", 1)).refuses(400, &text);
    }
    server.is_well();
}
