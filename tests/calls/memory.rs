//! Large tensors of calls: where they go, and that they come back.

use std::{fs, sync::LazyLock};

use crate::{
    calls::basics::{DOUBLES, FLOATS},
    support::{
        Repository, Server, ensemble,
        models::{execute, native},
        script::{coroutines, scripts},
    },
};

static SERVER: LazyLock<Server> = LazyLock::new(server);

fn server() -> Server {
    let steps = ["doubles: x=x -> y=between", "identity: x=between -> y=y"];
    let repository = Repository::new()
        .with("scripts", scripts())
        .with("coroutines", coroutines())
        .with("doubles", execute(FLOATS, DOUBLES))
        .with("identity", native("identity", FLOATS))
        .with("chain", ensemble(FLOATS, &steps));
    Server::start(repository)
}

/// Segments a server has mapped.
fn mapped(server: &Server) -> usize {
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid)).unwrap();
    maps.lines().filter(|it| it.contains("memfd:troupe")).count()
}

#[test]
fn a_hundred_large_calls_need_no_more_memory_than_a_few() {
    let server = server();
    let body = "
        memory = pb_utils._requests.worker.segments
        x = np.arange(4 << 20, dtype=np.float32)
        for turn in range(TURNS):
            for model in ('doubles', 'identity', 'chain'):
                got = pb_utils.get_output_tensor_by_name(make(model, x).exec(), 'y').as_numpy()
                assert got[-1] == x[-1] * (1 if model == 'identity' else 2), (model, got)
                assert not got.flags.owndata
                del got
        # One for each model that is called: none is shown what is sent to another.
        return [len(memory.own) <= 3, len(memory.theirs) <= 8]";
    let run = |turns: &str| server.run("scripts", &body.replace("TURNS", turns));
    assert_eq!(run("3"), ["True", "True"]);
    let few = mapped(&server);
    assert_eq!(run("33"), ["True", "True"]);
    let many = mapped(&server);
    assert!(many <= few + 2, "{few} segments became {many}");
}

#[test]
fn many_large_calls_at_once_arrive() {
    let body = "
        xs = [np.full(1 << 18, it, np.float32) for it in range(40)]
        got = await asyncio.gather(*[make('doubles', it).async_exec() for it in xs])
        arrays = [pb_utils.get_output_tensor_by_name(it, 'y').as_numpy() for it in got]
        return [all((y == 2 * x).all() for x, y in zip(xs, arrays))]";
    for _ in 0..3 {
        assert_eq!(SERVER.run("coroutines", body), ["True"]);
    }
}

#[test]
fn what_was_answered_may_be_written_to_and_passed_on() {
    let body = "
        x = np.zeros(1 << 18, np.float32)
        for turn in range(20):
            x = pb_utils.get_output_tensor_by_name(make('identity', x).exec(), 'y').as_numpy()
            x += 1
        every_other = pb_utils.get_output_tensor_by_name(make('doubles', x[::2]).exec(), 'y')
        return [x[0], x[-1], x.size, every_other.as_numpy().sum() / (1 << 17)]";
    assert_eq!(SERVER.run("scripts", body), ["20.0", "20.0", "262144", "40.0"]);
}

#[test]
fn what_is_written_to_while_a_coroutine_waits_stays_out_of_the_request() {
    let body = "
        x = np.ones(1 << 18, np.float32)
        call = make('doubles', x).async_exec()
        x[:] = 5
        y = pb_utils.get_output_tensor_by_name(await call, 'y').as_numpy()
        again = make('doubles', y).async_exec()
        y[:] = 7
        z = pb_utils.get_output_tensor_by_name(await again, 'y').as_numpy()
        return [set(z.tolist()), set(y.tolist())]";
    assert_eq!(SERVER.run("coroutines", body), ["{4.0}", "{7.0}"]);
}
