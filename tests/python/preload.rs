//! Instances forked from a template: what `preload` made is there once, for all of them.

use std::{collections::BTreeSet, fs};

use rustix::process::Signal;

use crate::support::{Model, Repository, Server, at_once, http::floats, process, python, until};

const SIGNATURE: &str = "x:FP32[-1] -> sum:FP64[1] pid:INT64[1] loads:INT64[1]";

/// Adds up 64 MiB that `preload` made, says which process did it and how often the file was loaded;
/// ends when it is sent a 0.
const WEIGHTS: &str = "
    import random

    marker = os.path.join(os.path.dirname(__file__), 'loads')
    with open(marker, 'a') as file:
        file.write('x')

    class TritonPythonModel:
        @classmethod
        def preload(cls, args):
            assert args['model_name'] == 'm' and 'model_instance_name' not in args, args
            cls.weights = np.ones(8 << 20)

        def initialize(self, args):
            assert args['model_instance_name'].startswith('m_'), args

        def execute(self, requests):
            answers = []
            for it in requests:
                if not pb_utils.get_input_tensor_by_name(it, 'x').as_numpy().any():
                    os._exit(4)
                values = {
                    'sum': np.array([self.weights.sum()]),
                    'pid': np.array([os.getpid()]),
                    'loads': np.array([os.path.getsize(marker)]),
                }
                tensors = [pb_utils.Tensor(name, value) for name, value in values.items()]
                answers.append(pb_utils.InferenceResponse(tensors))
            return answers";

fn preloaded(source: &str) -> Model {
    python(SIGNATURE, source).parameter("PRELOAD", "true").with("instance_group { count: 4 }")
}

/// The processes of all instances, the weights' sum and the count of loads being right.
fn instances(server: &Server) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    until("all instances to answer", || {
        for answer in at_once(8, |_| server.infer("m", &floats(&[("x", &[1.0])]))) {
            if answer.status == 200 {
                assert_eq!(answer.numbers("sum"), [f64::from(8 << 20)]);
                found.insert(answer.numbers("pid")[0] as u32);
            }
        }
        found.retain(|it| process::is_alive(*it));
        found.len() == 4
    });
    found
}

fn loads(server: &Server) -> f64 {
    server.infer("m", &floats(&[("x", &[1.0])])).numbers("loads")[0]
}

/// Its share of memory in MiB: what n processes share counts as an n-th for each.
fn share_mib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|it| it.strip_prefix("Pss:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() / 1024
}

#[test]
fn what_preload_makes_is_in_memory_once() {
    let server = Server::start(Repository::of([("m", preloaded(WEIGHTS))]));
    let workers = instances(&server);
    let all: u64 = workers.iter().map(|it| share_mib(*it)).sum();
    assert!((1..128).contains(&all), "four instances with 64 MiB in common have {all} MiB");
    assert_eq!(loads(&server), 1.0);
    server.is_well();
}

#[test]
fn an_instance_that_ends_is_forked_again_without_another_load() {
    let files = process::shared_memory_files();
    let server = Server::with(
        Repository::of([("m", preloaded(WEIGHTS))]),
        &["--model-control-mode=explicit", "--load-model=*"],
    );
    let before = instances(&server);
    let answer = server.infer("m", &floats(&[("x", &[0.0])]));
    answer.refuses(503, "it exited with status 4; ");
    let after = instances(&server);
    assert_eq!(after.intersection(&before).count(), 3, "{before:?} {after:?}");
    assert_eq!(loads(&server), 1.0);
    server.unload("m").ok();
    // The fork server of the interpreter stays for a while.
    until("all processes of the model to end", || process::descendants(server.pid).len() <= 1);
    process::no_file_is_left(&files);
    server.is_well();
}

#[test]
fn a_template_that_ends_takes_its_instances_along_and_all_come_back() {
    let server = Server::start(Repository::of([("m", preloaded(WEIGHTS))]));
    let before = instances(&server);
    let is_parent = |it: &u32| {
        let children = process::descendants(*it);
        children.iter().any(|it| before.contains(it)) && children.len() == before.len()
    };
    let template = process::descendants(server.pid).into_iter().find(is_parent).unwrap();
    process::signal(template, Signal::KILL);
    until("the old instances to end", || !before.iter().any(|it| process::is_alive(*it)));
    let after = instances(&server);
    assert_eq!(after.intersection(&before).count(), 0);
    assert_eq!(loads(&server), 2.0);
    until("the server to be ready", || server.http.get("/v2/health/ready").status == 200);
    server.is_well();
}

#[test]
fn what_forbids_a_fork_is_said_at_load() {
    let execute = "        def execute(self, requests):\n            return []\n";
    let with = |preload: &str| {
        let method = "        @staticmethod\n        def preload(args):\n";
        let body = format!("            {preload}\n");
        preloaded(&format!(
            "    import ctypes, threading\n\n    class TritonPythonModel:\n{method}{body}{execute}"
        ))
    };
    let thread =
        "threading.Thread(target=threading.Event().wait, name='loader', daemon=True).start()";
    let rows = [
        ("thread", thread, "left threads behind: 'loader'."),
        (
            "hidden",
            "import _thread; _thread.start_new_thread(threading.Event().wait, ())",
            " of a library). Start threads in `initialize`, or end them in `preload`.",
        ),
        ("raises", "raise ValueError('no weights')", "ValueError: no weights"),
        ("exits", "os._exit(3)", "ended while the model was loaded: it exited with status 3"),
        ("imports", "import nothing_of_this_name", "nothing_of_this_name"),
    ];
    // What a library starts and ends before a fork by itself is no harm.
    let harmless = "np.dot(np.ones((512, 512)), np.ones((512, 512)))";
    let repository = Repository::of(rows.map(|(name, preload, _)| (name, with(preload))));
    let server = Server::explicit(repository.with("harmless", with(harmless)));
    for (name, preload, text) in rows {
        let answer = server.load(name);
        assert_eq!(answer.status, 400, "{preload}: {}", answer.text());
        answer.refuses(400, text);
    }
    server.load("harmless").ok();
    // A fork server, a template and four instances.
    until("nothing of the others to be left", || process::descendants(server.pid).len() == 6);
    assert_eq!(server.http.get("/v2/health/live").status, 200);
}
