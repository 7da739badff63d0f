//! Metrics that Python models make: on the page, shared by workers, and gone with their users.

use serde_json::json;

use crate::support::{
    Model, Repository, Server,
    http::{floats, input},
    models::python,
    until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// Runs the Python it is sent, and answers with what that leaves in `said`, or with what it raised.
fn runs() -> Model {
    python(
        "x:BYTES[1] -> y:BYTES[1]",
        "
        import gc, threading

        Family = pb_utils.MetricFamily

        class TritonPythonModel:
            def initialize(self, args):
                self.scope = dict(globals(), name=args['model_instance_name'])

            def execute(self, requests):
                scope = self.scope
                scope['said'] = 'done'
                try:
                    code = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()[0]
                    exec(code.decode(), scope)
                except (pb_utils.TritonModelException, TypeError) as error:
                    scope['said'] = f'{type(error).__name__}: {error}'
                y = np.array([str(scope['said'])], dtype=np.object_)
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', y)])]
        ",
    )
}

/// What the model answers to some Python.
#[track_caller]
fn run(server: &Server, model: &str, code: &str) -> String {
    let request = json!({"inputs": [input("x", "BYTES", &[1], vec![code])]});
    let said = server.infer(model, &request).output("y");
    said[0].as_str().unwrap().to_owned()
}

fn page(server: &Server) -> String {
    server.metrics.get("/metrics").ok().text()
}

fn one(model: Model) -> Server {
    Server::start(Repository::of([("m", model)]))
}

#[test]
fn what_execute_counts_is_on_the_page_when_the_answer_comes() {
    let server = one(runs());
    let made = "
c = Family('calls', 'How often\\nit was called', Family.COUNTER)
g = Family(name='level', description='How full it is', kind=Family.GAUGE)
h = Family('seconds', 'How long it took', Family.HISTOGRAM)
counter = c.Metric(labels={'kind': 'a\"b', 'also': 'x'})
plain = c.Metric()
gauge = g.Metric(labels={})
histogram = h.Metric(labels={}, buckets=[0.1, 1, 2.5])
counter.increment(2023)
counter.increment(0.5)
gauge.set(999.5)
gauge.increment(-0.25)
for seen in [0.05, 1.5, 6]: histogram.observe(seen)
said = [counter.value(), plain.value(), gauge.value()]
";
    assert_eq!(run(&server, "m", made), "[2023.5, 0.0, 999.25]");
    let page = page(&server);
    for expected in [
        "# HELP calls How often\\nit was called\n# TYPE calls counter\ncalls 0\n\
         calls{also=\"x\",kind=\"a\\\"b\"} 2023.5\n",
        "# HELP level How full it is\n# TYPE level gauge\nlevel 999.25\n",
        "# HELP seconds How long it took\n# TYPE seconds histogram\n\
         seconds_bucket{le=\"0.1\"} 1\nseconds_bucket{le=\"1\"} 1\nseconds_bucket{le=\"2.5\"} 2\n\
         seconds_bucket{le=\"+Inf\"} 3\nseconds_sum 7.55\nseconds_count 3\n",
    ] {
        assert!(page.contains(expected), "no\n{expected}in\n{page}");
    }
    // A family is told once, whatever is on the page.
    for kind in ["# HELP ", "# TYPE "] {
        let names = page.lines().filter_map(|it| it.strip_prefix(kind)?.split(' ').next());
        let mut names: Vec<_> = names.collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{page}");
    }
}

/// What a model may do wrong with metrics, and the beginning of what that raises.
const MISTAKES: &[(&str, &str)] = &[
    ("c.Metric(labels=[])", "Failed to create metric. Labels must be a dictionary."),
    ("c.Metric(labels={'a': 1})", "Failed to create metric. Labels must have names and values"),
    ("c.Metric(labels={'a b': ''})", "Error when creating Metric: Invalid label name: 'a b'"),
    ("c.Metric({'a': 'x' * 5000})", "Error when creating Metric: label 'a' has a value of 5000"),
    ("c.Metric(buckets=[1])", "Failed to create metric. Unexpected buckets found."),
    ("h.Metric(labels={})", "Failed to create metric. Missing required buckets."),
    ("h.Metric(buckets=(1, 2))", "Failed to create metric. Buckets must be a list."),
    (
        "h.Metric(buckets=[2.5, 0.1])",
        "Error when creating Metric: Bucket Boundaries must be strictly sorted",
    ),
    (
        "h.Metric(buckets=[float('nan')])",
        "Error when creating Metric: Bucket Boundaries must be strictly sorted",
    ),
    (
        "counter.increment(-0.5)",
        "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be \
         incremented monotonically by non-negative values.",
    ),
    (
        "counter.set(1)",
        "Failed to set metric value: TRITONSERVER_METRIC_KIND_COUNTER does not support Set",
    ),
    (
        "gauge.observe(1)",
        "Failed to observe metric value: TRITONSERVER_METRIC_KIND_GAUGE does not support Observe",
    ),
    (
        "histogram.increment(1)",
        "Failed to increment metric value: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support \
         Increment",
    ),
    (
        "histogram.value()",
        "Failed to get metric value: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value",
    ),
    (
        "Family('c', '', Family.GAUGE)",
        "Error when creating MetricFamily: Family name already exists with different type",
    ),
    ("Family('a-b', '', Family.GAUGE)", "Error when creating MetricFamily: Invalid metric name"),
    (
        "Family('nv_mine', '', Family.GAUGE)",
        "Error when creating MetricFamily: 'nv_mine' cannot be a family of a model",
    ),
    (
        "Family('h_sum', '', Family.GAUGE)",
        "Error when creating MetricFamily: 'h_sum' cannot be a family beside the histogram",
    ),
];

#[test]
fn mistakes_are_told_in_tritons_words_and_do_no_harm() {
    let server = one(runs());
    let made = "
c = Family('c', '', Family.COUNTER)
g = Family('g', '', Family.GAUGE)
h = Family('h', '', Family.HISTOGRAM)
counter, gauge, histogram = c.Metric(), g.Metric(), h.Metric(buckets=[])
";
    assert_eq!(run(&server, "m", made), "done");
    let raised = |text: &str| format!("TritonModelException: {text}");
    for (code, expected) in MISTAKES {
        let said = run(&server, "m", code);
        assert!(said.starts_with(&raised(expected)), "{code}: {said}");
    }
    for code in ["Family('x', '', 0)", "Family(7, '', Family.GAUGE)", "gauge.set('1')"] {
        let said = run(&server, "m", code);
        assert!(said.starts_with("TypeError: "), "{code}: {said}");
    }
    assert_eq!(run(&server, "m", "said = [counter.value(), gauge.value()]"), "[0.0, 0.0]");
    server.is_well();
}

#[test]
fn a_deleted_family_takes_its_metrics_along() {
    let server = one(runs());
    let made = "
family = Family('f', 'first', Family.GAUGE)
metric = family.Metric(labels={'of': 'one'})
metric.set(1)
family.Metric(labels={'of': 'two'}).set(2)
same = Family('f', 'second', Family.GAUGE)
other = same.Metric(labels={'of': 'one'})
";
    run(&server, "m", made);
    assert!(
        page(&server)
            .contains("# HELP f first\n# TYPE f gauge\nf{of=\"one\"} 1\nf{of=\"two\"} 2\n")
    );
    // The other use of the family keeps it, and what it uses of it.
    run(&server, "m", "del family");
    until("one metric to be gone", || !page(&server).contains("of=\"two\""));
    assert_eq!(server.metric("f", &["of=\"one\""]), Some(1.0));
    let gone = "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The \
                'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects \
                have been deleted.";
    for (code, what) in
        [("metric.increment(1)", "increment"), ("metric.set(1)", "set"), ("metric.value()", "get")]
    {
        let expected = format!("TritonModelException: Failed to {what} metric value: {gone}");
        assert_eq!(run(&server, "m", code), expected);
    }
    run(&server, "m", "del same");
    until("the family to be gone", || !page(&server).contains("HELP f "));
    // The name is free for another kind.
    let code = "family = Family('f', '', Family.COUNTER); said = family.Metric().value()";
    assert_eq!(run(&server, "m", code), "0.0");
}

#[test]
fn instances_share_the_metrics_they_make_in_initialize() {
    let model = python(
        FLOATS,
        "
        class TritonPythonModel:
            def initialize(self, args):
                self.family = pb_utils.MetricFamily('rows', 'Rows', pb_utils.MetricFamily.COUNTER)
                self.rows = self.family.Metric(labels={'model': args['model_name']})
                self.starts = self.family.Metric(labels={'what': 'starts'})
                self.starts.increment(1)
                assert self.starts.value() >= 1

            def execute(self, requests):
                answers = []
                for it in requests:
                    x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
                    self.rows.increment(len(x))
                    answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', x)]))
                return answers
        ",
    );
    let repository =
        Repository::of([("m", model.with("instance_group { count: 2 kind: KIND_CPU }"))]);
    let server = Server::with(repository, &["--model-control-mode=explicit", "--load-model=m"]);
    assert_eq!(server.metric("rows", &["starts"]), Some(2.0));
    crate::support::at_once(8, |_| {
        for _ in 0..5 {
            server.infer("m", &floats(&[("x", &[1.0, 2.0, 3.0])])).ok();
        }
    });
    assert_eq!(server.metric("rows", &["model=\"m\""]), Some(120.0));
    // A reload counts on: the new workers come before the old ones go.
    server.load("m").ok();
    server.infer("m", &floats(&[("x", &[1.0])])).ok();
    assert_eq!(server.metric("rows", &["model=\"m\""]), Some(121.0));
    server.unload("m").ok();
    until("the metrics to be gone", || !page(&server).contains("rows"));
}

#[test]
fn a_worker_that_dies_lets_go_of_its_metrics() {
    let repository = Repository::of([("dies", runs()), ("stays", runs())]);
    let server = Server::start(repository);
    let made = "
family = Family('shared', '', Family.COUNTER)
metric = family.Metric()
own = Family(name, '', Family.GAUGE)
own.Metric().set(1)
metric.increment(3)
";
    run(&server, "dies", made);
    run(&server, "stays", made);
    assert!(page(&server).contains("\ndies_0 1\n"));
    let code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)";
    let request = json!({"inputs": [input("x", "BYTES", &[1], vec![code])]});
    server.infer("dies", &request).refuses(503, "is not healthy");
    let page = page(&server);
    assert!(!page.contains("dies_0"), "{page}");
    assert!(page.contains("\nshared 6\n"), "{page}");
}

#[test]
fn threads_count_at_any_time() {
    let server = one(runs());
    let counts = "
family = Family('threads', '', Family.COUNTER)
metric = family.Metric()
def count():
    for _ in range(10_000): metric.increment(1)
threads = [threading.Thread(target=count) for _ in range(8)]
[it.start() for it in threads]
[it.join() for it in threads]
said = metric.value()
";
    assert_eq!(run(&server, "m", counts), "80000.0");
    // Nothing else is sent afterwards: what was counted goes by itself.
    let later = "
def count():
    begun.wait()
    metric.increment(5)
begun = threading.Event()
thread = threading.Thread(target=count)
thread.start()
threading.Timer(0.05, begun.set).start()
";
    run(&server, "m", later);
    until("what a thread counted", || page(&server).contains("\nthreads 80005\n"));
}

#[test]
fn metrics_are_counted_in_finalize_too() {
    let counts = "
        class TritonPythonModel:
            def initialize(self, args):
                self.family = pb_utils.MetricFamily('f', '', pb_utils.MetricFamily.COUNTER)
                self.ends = self.family.Metric(labels={'what': 'ends'})

            def execute(self, requests):
                x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]

            def finalize(self):
                self.ends.increment(1)
                try:
                    self.ends.value()
                except pb_utils.TritonModelException as error:
                    pb_utils.Logger.log_info(str(error))
        ";
    let repository = Repository::of([("a", python(FLOATS, counts)), ("b", python(FLOATS, counts))]);
    let flags = ["--model-control-mode=explicit", "--load-model=a", "--load-model=b"];
    let server = Server::with(repository, &flags);
    server.unload("a").ok();
    until("the last words of a model", || server.metric("f", &["ends"]) == Some(1.0));
    server.logged("Failed to get metric value: the model is being unloaded");
    server.is_well();
}
