//! Traces at a collector: the tree of a request, its times, links and attributes.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::{
    calls::basics::DOUBLES,
    decoupled::ensembles::{decoupled, repeats},
    observe::trace_calls::{CALLS, CALLS_LATER, SAYS_CONTEXT},
    support::{
        Answer, Repository, Server,
        collector::{Collector, Seen, Tree, new_trace},
        ensemble,
        gate::Gate,
        grpc::{Grpc, floats as grpc_floats},
        http::{self, floats, rows},
        models::{delay, execute, python},
        native, until,
    },
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";
const ENSEMBLE: &str = "IN:FP32[-1] -> OUT:FP32[-1]";

pub(crate) static COLLECTOR: LazyLock<Collector> = LazyLock::new(Collector::start);

fn models() -> Repository {
    let fork =
        ["slow: x=IN -> y=A", "quick: x=IN -> y=B", "mul: X=A Y=B -> XY=C", "quick: x=C -> y=OUT"];
    let nested = ["quick: x=IN -> y=M", "fork: IN=M -> OUT=OUT"];
    let fails = "raise ValueError('no luck today')";
    Repository::new()
        .with("slow", delay(20, FLOATS))
        .with("quick", delay(2, FLOATS))
        .with("mul", native("mul", "X:FP32[-1] Y:FP32[-1] -> XY:FP32[-1]"))
        .with("fork", ensemble(ENSEMBLE, &fork))
        .with("nested", ensemble(ENSEMBLE, &nested))
        .with("fails", execute(FLOATS, fails))
        .with("half_good", ensemble(ENSEMBLE, &["quick: x=IN -> y=M", "fails: x=M -> y=OUT"]))
        .with("called", execute(FLOATS, SAYS_CONTEXT))
        .with("calls", python(FLOATS, CALLS))
        .with("calls_later", decoupled(python(FLOATS, CALLS_LATER)))
        .with("calls_in_it", ensemble(ENSEMBLE, &["calls: x=IN -> y=OUT"]))
        .with("doubles", execute(FLOATS, DOUBLES))
        .with("repeats", repeats())
        .with("many", ensemble(ENSEMBLE, &["repeats: x=IN -> y=M", "doubles: x=M -> y=OUT"]))
}

pub(crate) static SERVER: LazyLock<Server> = LazyLock::new(|| traced(models(), &[]));

pub(crate) fn traced(repository: Repository, more: &[&str]) -> Server {
    let flags = COLLECTOR.flags(more);
    Server::with(repository, &flags.iter().map(String::as_str).collect::<Vec<_>>())
}

pub(crate) fn send(
    server: &Server,
    model: &str,
    headers: &[(&str, &str)],
    request: &Value,
) -> Answer {
    let path = format!("/v2/models/{model}/infer");
    server.http.send("POST", &path, headers, request.to_string().as_bytes())
}

pub(crate) fn request(input: &str) -> Value {
    let mut request = floats(&[(input, &[2.0, 3.0])]);
    request["id"] = "r7".into();
    request
}

/// The trace of one request, and its answer.
pub(crate) fn trace(model: &str, input: &str) -> (Tree, Answer) {
    let (id, parent) = new_trace();
    let answer = send(&SERVER, model, &[("traceparent", &parent)], &request(input));
    (COLLECTOR.tree(id), answer)
}

fn start(seen: &Seen) -> u64 {
    seen.span.start_time_unix_nano
}

fn end(seen: &Seen) -> u64 {
    seen.span.end_time_unix_nano
}

fn milliseconds(seen: &Seen) -> u64 {
    (end(seen) - start(seen)) / 1_000_000
}

/// The parts of a model's span follow each other without a gap.
#[track_caller]
fn has_parts(tree: &Tree, model: &Seen) {
    let (queue, compute) = (tree.child(model, "queue"), tree.child(model, "compute"));
    assert_eq!(start(queue), start(model));
    assert_eq!(end(queue), start(compute));
    assert_eq!(tree.names_below(compute).len(), 3, "{}", tree.text());
    let parts = ["compute-input", "compute-infer", "compute-output"];
    let [input, infer, output] = parts.map(|it| tree.child(compute, it));
    assert_eq!((start(input), end(output)), (start(compute), end(compute)));
    assert_eq!((end(input), end(infer)), (start(infer), start(output)));
    let events = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"];
    assert_eq!(compute.events(), events);
}

#[test]
fn an_ensemble_with_branches_is_a_tree_with_a_span_for_each_step() {
    let (tree, answer) = trace("fork", "IN");
    assert_eq!(answer.numbers("OUT"), [4.0, 9.0]);
    tree.holds_together();
    let root = tree.one("InferRequest");
    assert_eq!(root.span.kind, 2, "a server's span");
    assert_eq!(root.span.parent_span_id, 0xc1u64.to_be_bytes());
    let events = ["HTTP_RECV_START", "HTTP_RECV_END", "INFER_RESPONSE_COMPLETE"];
    assert_eq!(root.events(), [&events[..], &["HTTP_SEND_START", "HTTP_SEND_END"]].concat());
    assert_eq!(
        (root.scope.as_str(), &*root.resource["service.name"]),
        ("triton-server", "triton-inference-server")
    );
    let fork = tree.child(root, "fork");
    assert_eq!(fork.events(), ["REQUEST_START", "QUEUE_START", "REQUEST_END"]);
    assert_eq!(fork.attribute("triton.model_name").unwrap(), "fork");
    assert_eq!(fork.attribute("triton.model_version").unwrap(), "1");
    assert_eq!(fork.attribute("triton.request_id").unwrap(), "r7");
    assert_eq!(fork.attribute("triton.trace_parent_id"), None);
    assert_eq!(fork.attribute("troupe.ensemble"), None);
    let mut names = tree.names_below(fork);
    names.sort_unstable();
    assert_eq!(names, ["mul", "quick", "quick", "slow"]);
    let steps = tree.below(fork);
    let step = |number: &str| {
        let is_it = |it: &&&Seen| it.attribute("troupe.step").unwrap() == number;
        *steps.iter().find(is_it).unwrap()
    };
    for (number, model) in [("0", "slow"), ("1", "quick"), ("2", "mul"), ("3", "quick")] {
        let span = step(number);
        assert_eq!(span.span.name, model);
        has_parts(&tree, span);
        assert_eq!(span.attribute("troupe.ensemble").unwrap(), "fork");
        assert_eq!(span.attribute("troupe.batch.requests").unwrap(), "1");
        assert!(span.attribute("troupe.instance").unwrap().contains(model), "{span:?}");
        assert_eq!(span.attribute("triton.trace_parent_id"), fork.attribute("triton.trace_id"));
        let batch = tree.child(span, "batch");
        assert_eq!(batch.span.links[0].span_id, span.span.span_id);
        let link = &tree.child(span, "compute").span.links[0];
        assert_eq!(link.span_id, batch.span.span_id);
    }
    assert!(20 <= milliseconds(step("0")), "{}", tree.text());
    assert!(start(step("1")) < end(step("0")), "branches overlap: {}", tree.text());
    assert!(end(step("0")) <= start(step("2")) && end(step("2")) <= start(step("3")));
}

#[test]
fn an_ensemble_in_an_ensemble_is_a_step_with_steps() {
    let (tree, answer) = trace("nested", "IN");
    answer.ok();
    tree.holds_together();
    let nested = tree.child(tree.one("InferRequest"), "nested");
    assert_eq!(tree.names_below(nested), ["quick", "fork"]);
    let fork = tree.child(nested, "fork");
    assert_eq!(fork.attribute("troupe.step").unwrap(), "1");
    assert_eq!(tree.below(fork).len(), 4);
    assert_eq!(tree.child(fork, "slow").attribute("troupe.ensemble").unwrap(), "fork");
}

#[test]
fn two_requests_of_one_execution_are_linked_to_it() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let model = gate.model("FP32[1]").batch(8).with("dynamic_batching {}");
    let chain = ensemble("IN:FP32[1] -> OUT:FP32[1]", &["held: x=IN -> y=OUT"]).batch(8);
    let server = traced(repository.with("held", model).with("chain", chain), &[]);
    let send = |values: &[f32]| {
        let (id, parent) = new_trace();
        let (body, path) = (rows(&[("IN", values)]).to_string(), "/v2/models/chain/infer");
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\ntraceparent: {parent}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let stream = server.http.connect();
        std::io::Write::write_all(&mut &stream, head.as_bytes()).unwrap();
        (id, stream)
    };
    let pending =
        || server.metric("nv_inference_pending_request_count", &["model=\"held\""]).unwrap();
    let (_, first) = send(&[1.0]);
    gate.is_reached();
    let (one, first_behind) = send(&[2.0]);
    until("a request to queue", || pending() == 1.0);
    let (two, second_behind) = send(&[3.0, 4.0]);
    until("two requests to queue", || pending() == 2.0);
    gate.let_through(2);
    for stream in [first, first_behind, second_behind] {
        http::finish(stream).ok();
    }
    let (one, two) = (COLLECTOR.tree(one), COLLECTOR.tree(two));
    for tree in [&one, &two] {
        let held = tree.one("held");
        has_parts(tree, held);
        assert_eq!(held.attribute("troupe.batch.requests").unwrap(), "2");
        assert_eq!(held.attribute("troupe.batch.rows").unwrap(), "3");
    }
    // Whichever was told first: the execution is in the trace of its first request.
    let batch = COLLECTOR.tree(u128::from_be_bytes(one.0[0].span.trace_id[..].try_into().unwrap()));
    let batch = batch.one("batch");
    assert_eq!(two.named("batch").len(), 0);
    let linked: Vec<_> =
        batch.span.links.iter().map(|it| (it.trace_id.clone(), it.span_id.clone())).collect();
    let of = |tree: &Tree| {
        let span = &tree.one("held").span;
        (span.trace_id.clone(), span.span_id.clone())
    };
    assert_eq!(linked, [of(&one), of(&two)]);
    for tree in [&one, &two] {
        let link = &tree.one("compute").span.links[0];
        assert_eq!((&link.trace_id, &link.span_id), (&batch.span.trace_id, &batch.span.span_id));
    }
}

#[test]
fn responses_of_a_decoupled_step_are_steps_of_their_own() {
    let mut client = Grpc::connect(SERVER.grpc);
    let (id, parent) = new_trace();
    let request = grpc_floats("many", &[("IN", &[1.0, 2.0, 3.0])]);
    let mut asked = tonic::Request::new(tokio_stream::once(request));
    asked.metadata_mut().insert("traceparent", parent.parse().unwrap());
    let count = client.run(async |it| {
        let mut stream = it.model_stream_infer(asked).await.unwrap().into_inner();
        let mut count = 0;
        while stream.message().await.unwrap().is_some() {
            count += 1;
        }
        count
    });
    assert!(3 <= count);
    let tree = COLLECTOR.tree(id);
    tree.holds_together();
    let many = tree.one("many");
    assert_eq!(tree.names_below(many).len(), 4, "{}", tree.text());
    let repeats = tree.child(many, "repeats");
    assert_eq!(repeats.events().iter().filter(|it| **it == "RESPONSE").count(), 3);
    assert_eq!(repeats.attribute("troupe.step").unwrap(), "0");
    for step in tree.named("doubles") {
        assert_eq!(step.span.parent_span_id, many.span.span_id);
        assert_eq!(step.attribute("troupe.step").unwrap(), "1");
        has_parts(&tree, step);
    }
    let events = tree.one("InferRequest").events().join(" ");
    assert_eq!(events.matches("GRPC_SEND_START").count(), count, "{events}");
    assert_eq!(events.matches("GRPC_SEND_END").count(), count, "{events}");
}

#[test]
fn a_failure_marks_the_spans_it_went_through() {
    let (tree, answer) = trace("half_good", "IN");
    assert_eq!(answer.status, 500);
    tree.holds_together();
    let failed = tree.one("fails");
    let status = failed.span.status.as_ref().unwrap();
    assert!(status.code == 2 && status.message.contains("no luck today"), "{status:?}");
    let text = failed.of_event("exception", "exception.message").unwrap();
    assert!(text.contains("no luck today"), "{text}");
    assert_eq!(failed.of_event("exception", "exception.type").unwrap(), "Internal");
    has_parts(&tree, failed);
    for name in ["half_good", "InferRequest"] {
        let status = tree.one(name).span.status.as_ref().unwrap();
        assert!(status.code == 2 && status.message.contains("in ensemble 'half_good', step 1"));
    }
    assert_eq!(tree.one("quick").span.status.as_ref().map_or(0, |it| it.code), 0);
    let (id, parent) = new_trace();
    let wrong = json!({"inputs": [{"name": "nope"}]});
    send(&SERVER, "quick", &[("traceparent", &parent)], &wrong);
    let tree = COLLECTOR.tree(id);
    assert_eq!(tree.0.len(), 1, "{}", tree.text());
    let status = tree.one("InferRequest").span.status.as_ref().unwrap();
    assert!(status.code == 2 && !status.message.is_empty(), "{status:?}");
}

#[test]
fn a_generated_event_stream_is_one_request() {
    let model = decoupled(execute(
        "x:FP32[1] -> y:FP32[1]",
        "
        for it in requests:
            sender = it.get_response_sender()
            for last in range(2):
                y = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('y', y)]), last)",
    ));
    let server = traced(Repository::new().with("twice", model), &[]);
    let (id, parent) = new_trace();
    let body = json!({"x": 1.5}).to_string();
    let headers = [("traceparent", &*parent)];
    let path = "/v2/models/twice/generate_stream";
    let answer = server.http.send("POST", path, &headers, body.as_bytes());
    assert_eq!(answer.events().len(), 2);
    let tree = COLLECTOR.tree(id);
    tree.holds_together();
    let events = tree.one("InferRequest").events();
    assert_eq!(events.first(), Some(&"HTTP_RECV_START"));
    assert_eq!(events.last(), Some(&"HTTP_SEND_END"));
    assert_eq!(events.iter().filter(|it| **it == "INFER_RESPONSE_COMPLETE").count(), 2);
}
