//! Traces of calls between models, and what models may hand on to others.

use serde_json::{Value, json};

use crate::{
    observe::traces::{COLLECTOR, SERVER, request, send, trace},
    support::{
        collector::new_trace,
        grpc::{Grpc, floats},
    },
};

/// Answers with what it may hand on.
pub(crate) const SAYS_CONTEXT: &str = "
    y = pb_utils.get_input_tensor_by_name(requests[0], 'x')
    parameters = {'context': requests[0].trace().get_context() or 'none'}
    y = pb_utils.Tensor('y', y.as_numpy())
    return [pb_utils.InferenceResponse([y], parameters=parameters)]";

/// Calls `called`, with and without the trace of its request, and answers with what that may hand
/// on.
pub(crate) const CALLS: &str = "
    import threading

    class TritonPythonModel:
        def execute(self, requests):
            x = pb_utils.get_input_tensor_by_name(requests[0], 'x')

            def call(**more):
                asked = pb_utils.InferenceRequest(
                    model_name='called', requested_output_names=['y'], inputs=[x], **more)
                return asked.exec()

            with_trace = call(trace=requests[0].trace(), request_id='with')
            call(request_id='without')
            said = {'context': json.loads(with_trace.parameters())['context']}
            y = pb_utils.Tensor('y', x.as_numpy())
            return [pb_utils.InferenceResponse([y], parameters=said)]";

/// Calls `called` for each of its requests, on a thread that outlives `execute`.
pub(crate) const CALLS_LATER: &str = "
    import threading

    class TritonPythonModel:
        def execute(self, requests):
            for it in requests:
                threading.Thread(target=self.answer, args=(it, it.get_response_sender())).start()

        def answer(self, request, sender):
            x = pb_utils.get_input_tensor_by_name(request, 'x')
            asked = pb_utils.InferenceRequest(
                model_name='called', requested_output_names=['y'], inputs=[x],
                trace=request.trace())
            y = pb_utils.Tensor('y', asked.exec().output_tensors()[0].as_numpy())
            sender.send(pb_utils.InferenceResponse([y]), 1)";

#[test]
fn calls_of_a_model_are_below_its_span_and_know_their_own() {
    let (tree, answer) = trace("calls_in_it", "IN");
    answer.ok();
    tree.holds_together();
    let calls = tree.child(tree.one("calls_in_it"), "calls");
    let called: Vec<_> =
        tree.below(calls).into_iter().filter(|it| it.span.name == "called").collect();
    let ids: Vec<_> = called.iter().map(|it| it.attribute("triton.request_id").unwrap()).collect();
    assert_eq!(ids, ["with", "without"]);
    assert_eq!(called[0].attribute("troupe.caller").unwrap(), "calls");
    assert_eq!(called[0].attribute("troupe.step"), None);
    let (tree, answer) = trace("calls", "x");
    let context = answer.ok().json()["parameters"]["context"].as_str().unwrap().to_owned();
    let context: Value = serde_json::from_str(&context).unwrap();
    let called = tree.named("called")[0];
    let [trace, span] = [&called.span.trace_id, &called.span.span_id]
        .map(|it| it.iter().map(|it| format!("{it:02x}")).collect::<String>());
    assert_eq!(context, json!({"traceparent": format!("00-{trace}-{span}-01")}));
}

#[test]
fn a_call_from_a_thread_that_outlives_execute_is_below_its_request_too() {
    let mut client = Grpc::connect(SERVER.grpc);
    let (id, parent) = new_trace();
    let request = floats("calls_later", &[("x", &[1.0])]);
    let mut asked = tonic::Request::new(tokio_stream::once(request));
    asked.metadata_mut().insert("traceparent", parent.parse().unwrap());
    client.run(async |it| {
        let mut stream = it.model_stream_infer(asked).await.unwrap().into_inner();
        while stream.message().await.unwrap().is_some() {}
    });
    let tree = COLLECTOR.tree(id);
    let called = tree.child(tree.one("calls_later"), "called");
    assert_eq!(called.attribute("troupe.caller").unwrap(), "calls_later");
}

#[test]
fn what_came_with_a_request_is_handed_on_with_the_models_own_span() {
    let (id, parent) = new_trace();
    let headers =
        [("traceparent", &*parent), ("tracestate", "a=1,b=2"), ("baggage", "user=7,team=x")];
    let answer = send(&SERVER, "called", &headers, &request("x"));
    let context = answer.ok().json()["parameters"]["context"].as_str().unwrap().to_owned();
    let context: Value = serde_json::from_str(&context).unwrap();
    assert_eq!(
        (&context["tracestate"], &context["baggage"]),
        (&json!("a=1,b=2"), &json!("user=7,team=x"))
    );
    let tree = COLLECTOR.tree(id);
    assert_eq!(tree.one("called").span.trace_state, "a=1,b=2");
    let mut client = Grpc::connect(SERVER.grpc);
    let (id, parent) = new_trace();
    let mut asked = tonic::Request::new(floats("called", &[("x", &[1.0])]));
    asked.metadata_mut().insert("traceparent", parent.parse().unwrap());
    client.call(async |it| it.model_infer(asked).await).unwrap();
    let tree = COLLECTOR.tree(id);
    tree.holds_together();
    let root = tree.one("InferRequest");
    assert_eq!(root.span.parent_span_id, 0xc1u64.to_be_bytes());
    let events = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "INFER_RESPONSE_COMPLETE"];
    assert_eq!(root.events(), [&events[..], &["GRPC_SEND_START", "GRPC_SEND_END"]].concat());
}
