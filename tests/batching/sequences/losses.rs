//! Instances that end, and models that are reloaded, while they hold sequences.

use super::models::{PATIENT, ask, direct_with, oldest_with, request, sum};
use crate::support::{Repository, Server, ensemble, http::finish, models::delay};

const NO_START: &str = "must specify the START flag on the first request of the sequence";

#[test]
fn sequences_of_a_process_that_ends_are_forgotten_and_leave_their_slots() {
    let server = Server::start(Repository::of([("m", direct_with(2, PATIENT))]));
    assert_eq!(sum(&server, "m", 1, ("+", 1)), 1.);
    assert_eq!(sum(&server, "m", 2, ("+", 2)), 2.);
    ask(&server, "m", 1, ("", 1000)).refuses(503, "it was ended by signal 9");
    let lost = "is lost: the instance that it was told to has ended. Begin it anew";
    for id in [1, 2] {
        // Once is enough.
        ask(&server, "m", id, ("", 1)).refuses(503, lost);
        ask(&server, "m", id, ("", 1)).refuses(400, NO_START);
    }
    server.logged("an instance of 'm' has ended with 2 sequences, which are lost");
    // Both slots are free: nobody waits for a minute.
    for id in [3, 4] {
        assert_eq!(sum(&server, "m", id, ("+", 7)), 7.);
    }
    assert_eq!(sum(&server, "m", 3, ("!", 1)), 8.);
    assert_eq!(sum(&server, "m", 4, ("!", 1)), 8.);
}

#[test]
fn clients_of_ensembles_are_told_of_sequences_that_are_lost() {
    let all = ensemble("IN:INT32[1] -> OUT:INT32[1]", &["m: INPUT=IN -> OUTPUT=OUT"]).batch(4);
    let repository = Repository::of([("m", direct_with(4, PATIENT)), ("e", all)]);
    let server = Server::start(repository);
    let ask = |id: i32, flags, number| {
        let mut asked = request(id, flags, number);
        asked["inputs"][0]["name"] = "IN".into();
        server.infer("e", &asked)
    };
    assert_eq!(ask(1, "+", 1).numbers("OUT"), [1.]);
    assert_eq!(ask(2, "+", 2).numbers("OUT"), [2.]);
    ask(2, "", 1000).refuses(503, "it was ended by signal 9");
    ask(1, "", 1).refuses(503, "sequence 1 of model 'm' is lost");
    // Who begins it anew need not be told.
    assert_eq!(ask(2, "+", 5).numbers("OUT"), [5.]);
    assert_eq!(ask(2, "!", 5).numbers("OUT"), [10.]);
    ask(2, "", 1).refuses(400, NO_START);
}

#[test]
fn a_load_whose_config_means_the_same_leaves_sequences_where_they_are() {
    let model = direct_with(4, PATIENT);
    let server = Server::explicit(Repository::of([("m", model.clone())]));
    server.load("m").ok();
    assert_eq!(sum(&server, "m", 5, ("+", 1)), 1.);
    let same = format!("# The same.\n{}instance_group {{ count: 0 }}\n", model.config);
    server.repository.write_file("m/config.pbtxt", same);
    server.load("m").ok();
    assert_eq!(sum(&server, "m", 5, ("!", 1)), 2.);
    assert_eq!(server.executions("m"), 2);
}

#[test]
fn a_sequence_goes_on_where_it_has_begun_when_its_model_is_reloaded() {
    let direct = || direct_with(4, PATIENT);
    let oldest = || oldest_with(4, "UINT64", PATIENT);
    let server = Server::explicit(Repository::of([("m", direct()), ("o", oldest())]));
    for (model, id_is_added) in [("m", 0.), ("o", 5.)] {
        server.load(model).ok();
        assert_eq!(sum(&server, model, 5, ("+", 1)), 1.);
        for more in 0..2 {
            // Another config is another model.
            let changed = if model == "m" { direct() } else { oldest() };
            let changed = changed.parameter("reload", &more.to_string());
            let path = format!("{model}/config.pbtxt");
            server.repository.write_file(&path, &changed.config);
            server.load(model).ok();
            // One that begins now meets the new one, whose rows are all free.
            assert_eq!(sum(&server, model, 9, ("+!", 3)), 3. + if model == "m" { 0. } else { 9. });
            assert_eq!(sum(&server, model, 5, ("", 1)), 2. + f64::from(more));
            ask(&server, model, 8, ("", 1)).refuses(400, NO_START);
        }
        assert_eq!(sum(&server, model, 5, ("!", 1)), 4. + id_is_added);
        ask(&server, model, 5, ("", 1)).refuses(400, NO_START);
        let text = format!("all sequences of '{model}' that began before its reload have ended");
        server.logged(&text);
    }
    server.is_well();
}

#[test]
fn models_before_many_reloads_are_let_go_once_their_sequences_have_ended() {
    let model = || direct_with(4, PATIENT);
    let server = Server::explicit(Repository::of([("m", model())]));
    for id in 1..=11 {
        let changed = model().parameter("reload", &id.to_string());
        server.repository.write_file("m/config.pbtxt", &changed.config);
        server.load("m").ok();
        assert_eq!(sum(&server, "m", id, ("+", 1)), 1.);
    }
    // Eight of those before the last one go on; those before them ended with their sequences.
    for id in [1, 2] {
        ask(&server, "m", id, ("", 1)).refuses(400, NO_START);
    }
    for id in 3..=11 {
        assert_eq!(sum(&server, "m", id, ("!", 1)), 2.);
    }
    server.logged("all sequences of 'm' that began before its reload have ended");
    server.is_well();
}

#[test]
fn a_sequence_that_is_on_its_way_to_a_model_that_is_reloaded_begins_and_goes_on_there() {
    let steps = ["slow: x=IN -> y=a", "m: INPUT=a -> OUTPUT=OUT"];
    let model = || direct_with(4, PATIENT);
    let repository = Repository::of([("m", model())])
        .with("slow", delay(2500, "x:INT32[1] -> y:INT32[1]").batch(4))
        .with("e", ensemble("IN:INT32[1] -> OUT:INT32[1]", &steps).batch(4));
    let server = Server::explicit(repository);
    server.load("e").ok();
    let mut begins = request(5, "+", 1);
    begins["inputs"][0]["name"] = "IN".into();
    let begun = server.http.start("e", &begins);
    let changed = model().parameter("reload", "1");
    server.repository.write_file("m/config.pbtxt", &changed.config);
    server.load("m").ok();
    // The model before the reload has no sequence until now.
    assert_eq!(finish(begun).numbers("OUT"), [1.]);
    assert_eq!(sum(&server, "m", 5, ("", 1)), 2.);
    assert_eq!(sum(&server, "m", 5, ("!", 1)), 3.);
    server.logged("all sequences of 'm' that began before its reload have ended");
    server.is_well();
}
