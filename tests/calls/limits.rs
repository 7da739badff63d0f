//! How many calls a model may have open at a time.

use crate::support::{Repository, Server, gate::Gate, native, script};

#[test]
fn a_model_has_no_end_of_open_calls_and_goes_on_when_they_are_answered() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let repository = repository
        .with("held", gate.model("FP32[-1]"))
        .with("free", native("identity", "x:FP32[-1] -> y:FP32[-1]"))
        .with("coroutines", script::coroutines());
    let server = Server::start(repository);
    let said = server.run(
        "coroutines",
        "
        calls = [asyncio.ensure_future(make('held').async_exec()) for _ in range(10_003)]
        refused = []
        while len(refused) < 3:
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            refused += [y(it.result()) for it in calls if it.done()]
            calls = [it for it in calls if not it.done()]
        open = len(calls)
        [it.cancel() for it in calls]
        await asyncio.wait(calls)
        return [open, *refused, y(await make('free').async_exec())]",
    );
    assert_eq!(said[0], "10000");
    for text in &said[1..4] {
        let limit = "calls of other models that are not answered, at most 10000 are allowed";
        assert!(text.contains(limit), "{text}");
    }
    assert_eq!(said[4], "[1.0]");
    gate.let_through(1);
    server.is_well();
}
