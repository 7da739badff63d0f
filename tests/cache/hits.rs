//! Requests that were answered before: which are the same, and what is counted.

use serde_json::json;

use super::{
    LOCAL, cached, counting, execution, gauge, hits_and_misses, parameters, request, with,
};
use crate::observe::traces::{COLLECTOR, send};
use crate::support::{
    Repository, Server, at_once, collector::new_trace, ensemble, http::rows, models::delay, until,
};

#[test]
fn a_request_that_was_answered_before_is_not_executed_again() {
    let repository = Repository::new().with("m", cached("")).with("plain", counting());
    let server = Server::with(repository, &[LOCAL]);
    for (id, expected) in [("a", 1.0), ("b", 1.0), ("c", 1.0)] {
        let answer = server.infer("m", &with(request(&[5.0]), "id", json!(id)));
        assert_eq!(answer.json()["id"], id, "each has its own");
        assert_eq!(answer.numbers("y"), [expected]);
        assert_eq!(answer.shape("y"), json!([1, 1]));
    }
    assert_eq!(execution(&server, "m", &request(&[6.0])), 2.0);
    // What does not ask for it is executed each time.
    assert_eq!([1, 2].map(|_| execution(&server, "plain", &request(&[5.0]))), [1.0, 2.0]);
    assert_eq!(hits_and_misses(&server, "plain"), (0, 0));
    assert_eq!(server.executions("m"), 2);
    assert_eq!((server.successes("m"), hits_and_misses(&server, "m")), (4, (2, 2)));
    for (name, value) in [
        ("nv_cache_num_hits_per_model", Some(2.0)),
        ("nv_cache_num_misses_per_model", Some(2.0)),
        ("troupe_cache_coalesced_total", Some(0.0)),
        ("nv_inference_request_success", Some(4.0)),
        ("nv_inference_count", Some(2.0)),
    ] {
        assert_eq!(server.metric(name, &["model=\"m\""]), value, "{name}");
    }
    assert_eq!(server.metric("nv_cache_num_hits_per_model", &["model=\"plain\""]), None);
    for (name, value) in [
        ("nv_cache_num_lookups", 4.0),
        ("nv_cache_num_hits", 2.0),
        ("nv_cache_num_misses", 2.0),
        ("nv_cache_num_entries", 2.0),
        ("nv_cache_num_evictions", 0.0),
    ] {
        assert_eq!(gauge(&server, name), Some(value), "{name}");
    }
    assert!(gauge(&server, "nv_cache_util").is_some_and(|it| 0.0 < it && it < 1.0));
    server.logged("cache_enabled");
    server.is_well();
}

#[test]
fn requests_that_differ_in_anything_have_answers_of_their_own() {
    let server = Server::with(Repository::new().with("m", cached("")), &[LOCAL]);
    let plain = request(&[1.0]);
    let all = [
        plain.clone(),
        request(&[2.0]),
        // Two rows of one instead of one of two.
        json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}),
        with(plain.clone(), "parameters", parameters(1)),
        with(plain.clone(), "parameters", parameters(2)),
        with(plain.clone(), "outputs", json!([{"name": "y"}])),
    ];
    for _ in 0..2 {
        let turns: Vec<f64> = all.iter().map(|it| execution(&server, "m", it)).collect();
        assert_eq!(turns, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }
    let answer = server.infer("m", &all[4]);
    assert_eq!(answer.numbers("z"), [2.0], "of its own parameters");
    assert_eq!(server.infer("m", &all[5]).outputs(), ["y"]);
    let both = json!([{"name": "z"}, {"name": "y"}]);
    assert_eq!(execution(&server, "m", &with(plain, "outputs", both)), 1.0, "the same");
}

#[test]
fn an_ensemble_that_was_answered_before_runs_no_step_and_steps_are_shared() {
    let steps = ["m: x=A -> y=Y z=Z"];
    let of = |more: &str| ensemble("A:FP32[-1] -> Y:FP32[1] Z:FP32[1]", &steps).batch(4).with(more);
    let repository = Repository::new()
        .with("m", cached(""))
        .with("kept", of("response_cache { enable: true }"))
        .with("one", of(""))
        .with("two", of(""));
    let server = Server::with(repository, &[LOCAL]);
    let ask = |model: &str| server.infer(model, &rows(&[("A", &[3.0])])).numbers("Y")[0];
    assert_eq!([ask("kept"), ask("kept"), ask("one"), ask("two")], [1.0; 4]);
    // The second request ended at the top; the other ensembles found what the step had kept.
    assert_eq!((server.successes("kept"), hits_and_misses(&server, "kept")), (2, (1, 1)));
    assert_eq!((server.successes("m"), hits_and_misses(&server, "m")), (3, (2, 1)));
    assert_eq!(server.executions("m"), 1);
}

#[test]
fn a_hundred_equal_requests_at_once_are_executed_once() {
    let model =
        delay(300, "x:FP32[1] -> y:FP32[1]").batch(8).with("response_cache { enable: true }");
    let server = Server::with(Repository::new().with("m", model), &[LOCAL]);
    let answers = at_once(100, |it| {
        let id = it.to_string();
        let answer = server.infer("m", &with(request(&[4.0]), "id", json!(id)));
        (answer.json()["id"] == id, answer.numbers("y"))
    });
    assert!(answers.iter().all(|it| *it == (true, vec![4.0])), "{answers:?}");
    assert_eq!((server.executions("m"), server.successes("m")), (1, 100));
    assert_eq!(hits_and_misses(&server, "m"), (99, 1));
    server.is_well();
}

#[test]
fn a_model_that_is_loaded_again_answers_anew_and_one_that_goes_takes_its_answers() {
    let repository = Repository::new().with("m", cached(""));
    let mut server = Server::with(repository, &["--model-control-mode=explicit", LOCAL]);
    server.load("m").ok();
    let ask = |server: &Server| execution(server, "m", &request(&[1.0]));
    assert_eq!([1, 2].map(|_| ask(&server)), [1.0, 1.0]);
    server.load("m").ok();
    // Nothing has changed: it was not loaded.
    assert_eq!(ask(&server), 1.0);
    let other = cached("").with("parameters { key: 'other' value { string_value: '1' } }");
    server.repository.write("m", &other);
    server.load("m").ok();
    let entries = |server: &Server| gauge(server, "nv_cache_num_entries").unwrap();
    assert_eq!((ask(&server), server.executions("m")), (1.0, 1), "the new one counts from 1");
    until("the old answer to go", || entries(&server) == 1.0);
    server.unload("m").ok();
    until("the new answer to go", || entries(&server) == 0.0);
    server.is_well();
}

#[test]
fn a_trace_says_that_nothing_was_executed() {
    let flags = COLLECTOR.flags(&[]);
    let flags: Vec<&str> = flags.iter().map(|it| &**it).chain([LOCAL]).collect();
    let server = Server::with(Repository::new().with("m", cached("")), &flags);
    let events = ["REQUEST_START", "QUEUE_START", "CACHE_HIT", "REQUEST_END"];
    for (times, expected) in [(1, None), (2, Some("hit"))] {
        let (id, parent) = new_trace();
        send(&server, "m", &[("traceparent", &parent)], &request(&[1.0])).ok();
        let tree = COLLECTOR.tree(id);
        let model = tree.one("m");
        assert_eq!(model.attribute("troupe.cache").as_deref(), expected, "{times}");
        assert_eq!(tree.named("compute").len(), usize::from(expected.is_none()));
        assert!(expected.is_none() || model.events() == events, "{:?}", model.events());
    }
}
