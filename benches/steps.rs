//! What a step of an ensemble costs, and what whole plans cost.

use std::{fmt::Write, sync::Arc, time::Duration};

use criterion::{BenchmarkId, Criterion, Throughput};
use troupe_base::{model::Model, request::Request};

use crate::bed::{self, Bed, Load};

/// Long and short chains differ by so many steps.
const MORE: u64 = 8;
/// Long and short chains take turns after so many requests, so that slow drifts cancel.
const TURN: u64 = 512;

/// One step more: a chain of nine native identity steps less a chain of one, by eight.
pub(crate) fn hop(criterion: &mut Criterion, bed: &Bed) {
    let identity = bed.native(&native("identity", "identity", (1, 1)));
    let (short, long) = (chain(bed, &identity, 1), chain(bed, &identity, 1 + MORE));
    let request = bed::request(1, &[4]);
    let mut group = criterion.benchmark_group("step hop (target 1.5 µs)");
    for in_flight in [1, 64] {
        group.bench_function(format!("{in_flight} in flight"), |bencher| {
            bencher.iter_custom(|count| {
                difference(bed, (&short, &long), &request, (count, in_flight))
            });
        });
    }
    group.finish();
}

/// Whole requests through ensembles of native ops.
pub(crate) fn plans(criterion: &mut Criterion, bed: &Bed) {
    let identity = bed.native(&native("identity", "identity", (1, 1)));
    let add_sub = bed.native(&native("add_sub", "add_sub", (2, 2)));
    let mul = bed.native(&native("mul", "mul", (2, 1)));
    let chain8 = chain(bed, &identity, 8);
    let diamond = vec![add_sub.clone(), mul.clone(), mul.clone(), add_sub.clone()];
    let diamond = bed.ensemble(DIAMOND, diamond);
    let plans = [("one model", identity, 1), ("chain8", chain8, 1), ("diamond", diamond, 2)];
    let mut group = criterion.benchmark_group("plan");
    group.throughput(Throughput::Elements(1));
    for (name, model, inputs) in plans {
        let request = bed::request(inputs, &[4]);
        for in_flight in [1, 64] {
            let id = BenchmarkId::new(name, format!("{in_flight} in flight"));
            group.bench_function(id, |bencher| {
                bencher.iter_custom(|count| bed.drive(&model, &request, Load { count, in_flight }));
            });
        }
    }
    group.finish();
}

/// The time of one step, `count` times.
fn difference(
    bed: &Bed,
    (short, long): (&Model, &Model),
    request: &Request,
    (count, in_flight): (u64, u64),
) -> Duration {
    let (mut with, mut without) = (Duration::ZERO, Duration::ZERO);
    let mut left = count;
    while 0 < left {
        let load = Load { count: left.min(TURN), in_flight };
        with += bed.drive(long, request, load);
        without += bed.drive(short, request, load);
        left -= load.count;
    }
    // Criterion gives up on a measurement of nothing, which noise may make of very few requests.
    (with.saturating_sub(without) / MORE as u32).max(Duration::from_nanos(1))
}

/// The config of a native model with so many inputs and outputs.
pub(crate) fn native(name: &str, op: &str, (inputs, outputs): (usize, usize)) -> String {
    let mut text = format!("name: \"{name}\" backend: \"native\"\n");
    let kinds = [("input", "INPUT", inputs), ("output", "OUTPUT", outputs)];
    for (field, tensor, count) in kinds {
        for index in 0..count {
            let line = format!("name: \"{tensor}{index}\" data_type: TYPE_FP32 dims: [ 4 ]");
            writeln!(text, "{field} {{ {line} }}").expect("strings take all");
        }
    }
    text + &format!("parameters {{ key: \"op\" value {{ string_value: \"{op}\" }} }}\n")
}

fn chain(bed: &Bed, identity: &Arc<Model>, steps: u64) -> Arc<Model> {
    let mut text = format!("name: \"chain{steps}\" platform: \"ensemble\"\n");
    text += "input { name: \"T0\" data_type: TYPE_FP32 dims: [ 4 ] }\n";
    text += &format!("output {{ name: \"T{steps}\" data_type: TYPE_FP32 dims: [ 4 ] }}\n");
    text += "ensemble_scheduling {\n";
    for step in 0..steps {
        let reads = format!("input_map {{ key: \"INPUT0\" value: \"T{step}\" }}");
        let writes = format!("output_map {{ key: \"OUTPUT0\" value: \"T{}\" }}", step + 1);
        writeln!(text, "step {{ model_name: \"identity\" {reads} {writes} }}")
            .expect("strings take all");
    }
    bed.ensemble(&(text + "}\n"), vec![identity.clone(); steps as usize])
}

const DIAMOND: &str = r#"
name: "diamond" platform: "ensemble"
input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }
input { name: "B" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "DIFF" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling {
  step {
    model_name: "add_sub"
    input_map { key: "INPUT0" value: "A" } input_map { key: "INPUT1" value: "B" }
    output_map { key: "OUTPUT0" value: "s" } output_map { key: "OUTPUT1" value: "d" }
  }
  step {
    model_name: "mul"
    input_map { key: "INPUT0" value: "s" } input_map { key: "INPUT1" value: "s" }
    output_map { key: "OUTPUT0" value: "ss" }
  }
  step {
    model_name: "mul"
    input_map { key: "INPUT0" value: "d" } input_map { key: "INPUT1" value: "d" }
    output_map { key: "OUTPUT0" value: "dd" }
  }
  step {
    model_name: "add_sub"
    input_map { key: "INPUT0" value: "ss" } input_map { key: "INPUT1" value: "dd" }
    output_map { key: "OUTPUT0" value: "SUM" } output_map { key: "OUTPUT1" value: "DIFF" }
  }
}
"#;
