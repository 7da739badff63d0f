//! What many instances and many models take of the server: descriptors.

use std::{
    collections::BTreeSet,
    fs, mem,
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{
    Repository, Server,
    http::{floats, input},
    models::{native, python, same},
    process, until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";
/// The most that an instance may hold: of Python, its socket, the one that passes segments, and two
/// pipes; of ONNX, the runtime of its thread.
const PER_INSTANCE: usize = 4;
const FEW: usize = 2;
const MANY: usize = 10;

/// Many instances of a model take no more descriptors than they may.
#[track_caller]
fn check(request: &Value, repository: impl Fn(&str) -> Repository) {
    let start = |count: usize| {
        let group = format!("instance_group {{ kind: KIND_CPU count: {count} }}");
        let server = Server::start(repository(&group));
        server.infer("m", request).ok();
        server
    };
    let count = |server: &Server| process::descriptors(server.pid).len();
    let few = start(FEW);
    // Connections and what loading took go when they like.
    let mut last = 0;
    until("the descriptors to stay as they are", || {
        let now = count(&few);
        mem::replace(&mut last, now) == now
    });
    let most = last + PER_INSTANCE * (MANY - FEW);
    let many = start(MANY);
    until(&format!("no more than {most} descriptors"), || count(&many) <= most);
}

#[test]
fn an_instance_of_a_python_model_holds_four_descriptors() {
    check(&floats(&[("x", &[1.0])]), |group| Repository::of([("m", same(FLOATS).with(group))]));
}

#[test]
fn an_instance_of_an_onnx_model_holds_four_descriptors() {
    let sixteen = vec![1.0; 16];
    let request = json!({ "inputs": [input("INPUT0", "FP32", &[1, 16], sixteen)] });
    check(&request, |group| {
        let config = format!("backend: \"onnxruntime\"\nmax_batch_size: 8\n{group}");
        Repository::new().with_onnx_as("m", "identity_fp32", &config)
    });
}

/// Tensors of 40 MiB, in and out: their memory is used again, and goes back once nobody asks.
#[test]
fn large_tensors_use_the_same_segments_again() {
    const COUNT: usize = 10 << 20;
    // Nobody asks for 5 s also where a machine is that slow.
    const PROMPT: Duration = Duration::from_secs(3);
    let adds = same(FLOATS).source.unwrap().replace(".as_numpy())", ".as_numpy() + 1)");
    assert!(adds.contains("+ 1"), "{adds}");
    let server = Server::start(Repository::of([("m", python(FLOATS, &adds))]));
    let request = json!({
        "inputs": [{
            "name": "x", "datatype": "FP32", "shape": [COUNT],
            "parameters": { "binary_data_size": 4 * COUNT },
        }],
        "parameters": { "binary_data_output": true },
    });
    let tensor = vec![0_u8; 4 * COUNT];
    let (mut seen, mut made) = (BTreeSet::new(), 0);
    for _ in 0..20 {
        let begin = Instant::now();
        let answer = server.http.infer_binary("m", &request, &[&tensor]);
        assert!(answer.status == 200 && 4 * COUNT < answer.body.len());
        let new: Vec<u64> = segments(server.pid).difference(&seen).copied().collect();
        made += if begin.elapsed() < PROMPT { new.len() } else { 0 };
        seen.extend(new);
    }
    assert!(made <= 4 && 2 <= seen.len(), "{made} of {} segments for 20 requests", seen.len());
    until("the memory to go back", || segments(server.pid).is_empty());
}

/// Large segments of shared memory that a process has open, by their numbers.
fn segments(pid: u32) -> BTreeSet<u64> {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let files = all.filter_map(|it| fs::metadata(it.path()).ok());
    files.filter(|it| it.nlink() == 0 && 32 << 20 < it.size()).map(|it| it.ino()).collect()
}

#[test]
fn models_with_a_queue_delay_share_the_timer_of_their_thread() {
    let delayed = || {
        native("identity", FLOATS)
            .batch(4)
            .with("dynamic_batching { max_queue_delay_microseconds: 200 }")
    };
    let models = (0..20).map(|it| (format!("m{it}"), delayed()));
    let repository = models.fold(Repository::new(), |it, (name, model)| it.with(&name, model));
    let server = Server::with(repository, &["--http-thread-count=2"]);
    server.ready();
    let timers = process::descriptors(server.pid);
    let timers = timers.iter().filter(|it| it.to_string_lossy().contains("[timerfd]")).count();
    assert!((1..=2).contains(&timers), "{timers} timers on 2 engine threads");
    for number in 0..20 {
        let request = json!({ "inputs": [input("x", "FP32", &[1, 1], vec![7.0])] });
        server.infer(&format!("m{number}"), &request).ok();
    }
}
