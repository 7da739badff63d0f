//! Sequences through ensembles: each step has the id and the flags.

use serde_json::json;

use super::models::{direct, oldest, request};
use crate::support::{Repository, Server, at_once, ensemble, native};

#[test]
fn each_step_keeps_its_own_state() {
    let steps =
        ["first: INPUT=IN -> OUTPUT=a", "plain: x=a -> y=b", "second: INPUT=b -> OUTPUT=OUT"];
    let repository = Repository::of([("first", direct(4)), ("second", oldest(4, "UINT64"))])
        .with("plain", native("identity", "x:INT32[1] -> y:INT32[1]").batch(4))
        .with("e", ensemble("IN:INT32[1] -> OUT:INT32[1]", &steps).batch(4));
    let server = Server::start(repository);
    let sums = at_once(6, |caller| {
        let ask = |flags, number| {
            let mut asked = request(caller as i64 + 1, flags, number);
            asked["inputs"][0]["name"] = "IN".into();
            let answer = server.infer("e", &asked);
            let parameters = answer.ok().json()["parameters"].clone();
            (answer.numbers("OUT")[0], parameters)
        };
        [ask("+", 1), ask("", 2), ask("!", 3)]
    });
    for (caller, [first, second, last]) in sums.into_iter().enumerate() {
        let id = caller + 1;
        // Sums of sums; the second model adds the id to the last.
        assert_eq!((first.0, second.0, last.0), (1., 4., 10. + id as f64));
        let parameters =
            |start, end| json!({"sequence_id": id, "sequence_start": start, "sequence_end": end});
        assert_eq!(first.1, parameters(true, false));
        assert_eq!(last.1, parameters(false, true));
    }
    server.is_well();
}
