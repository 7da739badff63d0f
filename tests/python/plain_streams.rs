//! Plain generators: as steps of ensembles, and when their clients leave.

use std::io::Read;

use serde_json::{Value, json};

use super::plain::plain;
use crate::support::{Repository, Server, models::ensemble};

#[test]
fn a_plain_generator_is_a_step_of_an_ensemble() {
    let words = "
        from typing import Iterator

        def predict(text: str) -> Iterator[str]:
            yield from text.split()";
    let upper = "
        def predict(text: str) -> str:
            return text.upper()";
    let counted = "
        import asyncio
        from typing import AsyncIterator, NamedTuple

        class Tick(NamedTuple):
            text: str
            number: int

        async def predict(text: str) -> AsyncIterator[Tick]:
            for number in range(2):
                await asyncio.sleep(0)
                yield Tick(text, number)";
    let policy = "model_transaction_policy { decoupled: true }";
    let loud = ensemble(
        "text:BYTES[1] -> loud:BYTES[1]",
        &["words: text=text -> output=word", "upper: text=word -> output=loud"],
    );
    let twice = ensemble(
        "text:BYTES[1] -> loud:BYTES[1] number:INT64[1]",
        &[
            "words: text=text -> output=word",
            "counted: text=word -> text=again number=number",
            "upper: text=again -> output=loud",
        ],
    );
    let server = Server::start(Repository::of([
        ("words", plain(words)),
        ("upper", plain(upper)),
        ("counted", plain(counted)),
        ("loud", loud.with(policy)),
        ("twice", twice.with(policy)),
    ]));
    let ask = |model: &str| {
        let path = format!("/v2/models/{model}/generate_stream");
        server.http.post(&path, r#"{"text": "how can you"}"#).events()
    };
    let of = |events: &[Value], key: &str| -> Vec<Value> {
        events.iter().map(|it| it[key].clone()).collect()
    };
    assert_eq!(of(&ask("loud"), "loud"), ["HOW", "CAN", "YOU"]);
    let events = ask("twice");
    assert_eq!(of(&events, "loud"), ["HOW", "HOW", "CAN", "CAN", "YOU", "YOU"]);
    assert_eq!(of(&events, "number"), [0, 1, 0, 1, 0, 1]);
    server.is_well();
}

#[test]
fn generators_end_when_their_client_leaves() {
    let endless = "
        import asyncio
        from typing import AsyncIterator
        from triton_python_backend_utils import Logger

        async def predict(name: str) -> AsyncIterator[str]:
            try:
                while True:
                    await asyncio.sleep(0.01)
                    yield name
            finally:
                Logger.log_info(f'{name} has ended')";
    let blocking = "
        import time
        from typing import Iterator
        from triton_python_backend_utils import Logger

        def predict(name: str) -> Iterator[str]:
            try:
                while True:
                    time.sleep(0.01)
                    yield name
            finally:
                Logger.log_info(f'{name} has ended')";
    let server =
        Server::start(Repository::of([("endless", plain(endless)), ("blocking", plain(blocking))]));
    for (model, name) in [("endless", "left"), ("blocking", "gone")] {
        let path = format!("/v2/models/{model}/generate_stream");
        let mut leaver = server.http.start_at(&path, &json!({"name": name}));
        let mut begun = [0; 64];
        leaver.read_exact(&mut begun).unwrap();
        assert!(begun.starts_with(b"HTTP/1.1 200"));
        drop(leaver);
        server.logged(&format!("{name} has ended"));
    }
    server.is_well();
}
