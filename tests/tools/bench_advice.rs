//! What `troupe bench` says of bottlenecks, on graphs whose steps take known times.

use std::ops::RangeInclusive;

use serde_json::Value;

use crate::{
    support::{
        Model, Repository, Server, ensemble,
        models::{delay, execute},
        native,
    },
    tools::bench::{TENSORS, measured},
};

/// Model, milliseconds, instances.
type Step = (&'static str, u32, u32);

/// One after the other, as `all`; nobody else asks these models.
fn chain(steps: &[Step]) -> Server {
    let last = steps.len() - 1;
    let tensor = |index: usize| if index == last { "out".to_owned() } else { format!("t{index}") };
    let maps = |index: usize| {
        let input = index.checked_sub(1).map_or("in".to_owned(), tensor);
        format!("{}: x={input} -> y={}", steps[index].0, tensor(index))
    };
    let maps: Vec<String> = (0..steps.len()).map(maps).collect();
    let maps: Vec<&str> = maps.iter().map(String::as_str).collect();
    serve(steps, ensemble("in:FP32[4] -> out:FP32[4]", &maps), Repository::new())
}

fn serve(steps: &[Step], all: Model, repository: Repository) -> Server {
    let step = |ms, count: u32| {
        delay(ms, TENSORS).with(format!("instance_group {{ count: {count} kind: KIND_CPU }}"))
    };
    let repository =
        steps.iter().fold(repository, |it, (name, ms, count)| it.with(name, step(*ms, *count)));
    Server::start(repository.with("all", all))
}

const FULL: &[&str] = &["--concurrency=1,12", "--seconds=1.5", "--warmup=0.4"];

/// The advice names this step, and suggests so many instances of it.
#[track_caller]
fn check(server: &Server, step: &str, instances: RangeInclusive<u64>) -> Value {
    let (report, output) = measured(server, "all", FULL);
    let advice = &report["advice"];
    assert_eq!((&advice["limited_by"], &advice["slowest_step"]), (&"step".into(), &step.into()));
    let utilisation = advice["utilisation"].as_f64().unwrap();
    assert!((0.5..1.1).contains(&utilisation), "{advice:#}");
    let of_step = |it: &&Value| it["model"] == step;
    let suggested = advice["suggestions"].as_array().unwrap().iter().find(of_step).unwrap();
    assert!(instances.contains(&suggested["suggested"].as_u64().unwrap()), "{advice:#}");
    assert!(output.contains(&format!("`{step}` is the bottleneck")), "{output}");
    report
}

#[test]
fn the_bottleneck_of_a_chain_is_its_slowest_step() {
    let server = chain(&[("first", 10, 1), ("second", 40, 1), ("third", 5, 1)]);
    let report = check(&server, "second", 3..=5);
    let steps = report["levels"][1]["steps"].as_array().unwrap();
    let demand = |model: &str| {
        let step = steps.iter().find(|it| it["model"] == model).unwrap();
        step["demand_us"].as_f64().unwrap()
    };
    let ratio = demand("second") / demand("first");
    assert!((2.0..5.0).contains(&ratio), "{report:#}");
    assert_eq!(steps.len(), 3, "{report:#}");
}

#[test]
fn a_step_with_instances_enough_is_no_bottleneck() {
    check(&chain(&[("first", 10, 1), ("second", 40, 6), ("third", 5, 1)]), "first", 2..=2);
}

#[test]
fn branches_are_judged_by_their_own_work() {
    let maps = [
        "quick: x=in -> y=left",
        "slow: x=in -> y=right",
        "add: a=left b=right -> sum=whole",
        "last: x=whole -> y=out",
    ];
    let add = native("add_sub", "a:FP32[4] b:FP32[4] -> sum:FP32[4] difference:FP32[4]");
    let all = ensemble("in:FP32[4] -> out:FP32[4]", &maps);
    let steps = [("quick", 10, 1), ("slow", 40, 2), ("last", 5, 1)];
    check(&serve(&steps, all, Repository::new().with("add", add)), "slow", 3..=5);
}

#[test]
fn steps_of_nested_ensembles_count() {
    let inner = ["quick: x=a -> y=b", "slow: x=b -> y=c"];
    let inner = ensemble("a:FP32[4] -> c:FP32[4]", &inner);
    let all = ensemble("in:FP32[4] -> out:FP32[4]", &["inner: a=in -> c=out"]);
    let repository = Repository::new().with("inner", inner);
    check(&serve(&[("quick", 10, 1), ("slow", 40, 1)], all, repository), "slow", 3..=5);
}

#[test]
fn a_low_load_tells_nothing_but_is_enough_for_a_target() {
    let server = chain(&[("first", 30, 2), ("second", 40, 2), ("third", 30, 2)]);
    let once = &["--concurrency=1", "--seconds=1", "--warmup=0"];
    let (report, output) = measured(&server, "all", once);
    assert_eq!(report["advice"]["limited_by"], "load", "{report:#}");
    assert!(output.contains("The load is too low to tell"), "{output}");
    assert_eq!(report["advice"]["suggestions"], Value::Array(Vec::new()));
    let (report, _) = measured(&server, "all", &[once, &["--target", "200"][..]].concat());
    let suggestions = report["advice"]["suggestions"].as_array().unwrap();
    assert_eq!(suggestions.len(), 3, "{report:#}");
}

/// A Python model that takes as long as `duration` says in Python, of `rows` in all its `requests`.
fn sleeping(duration: &str) -> Model {
    let body = format!(
        "
        import time
        get = pb_utils.get_input_tensor_by_name
        tensors = [get(it, 'x').as_numpy() for it in requests]
        rows = sum(len(it) for it in tensors)
        time.sleep({duration})
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', it)]) for it in tensors]"
    );
    execute(TENSORS, &body).batch(8)
}

#[test]
fn batching_is_advised_by_what_larger_batches_cost() {
    let joins = "`dynamic_batching { }` in its config would join the requests that wait";
    let lines = "np.concatenate(parts)";
    let repository = Repository::new()
        .with("apart", sleeping("0.03 * len(requests)").with("dynamic_batching { }"))
        .with("shared", sleeping("0.03"))
        .with("linear", sleeping("0.03 * rows"));
    let server = Server::start(repository);
    let flags = ["--concurrency=1,16", "--seconds=2", "--warmup=0.4"];
    let joined = "times as long as one: `execute` does not join its requests";
    let nothing = "times as long as one: joining requests would bring nothing";
    for (model, told, untold) in [
        ("apart", [joined, lines], "too low"),
        ("shared", [joins, lines], nothing),
        ("linear", [nothing, "It takes 8 rows at once"], joins),
    ] {
        // A machine that others keep busy stretches short executions more than long ones.
        let mut last = String::new();
        let is_so = (0..4).any(|_| {
            last = measured(&server, model, &flags).1;
            told.iter().all(|it| last.contains(it)) && !last.contains(untold)
        });
        assert!(is_so, "{model}:\n{last}");
    }
}
