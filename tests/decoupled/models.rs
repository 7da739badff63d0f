//! Models that answer any number of times, at any time, from any thread.

use std::{collections::HashMap, sync::LazyLock};

use troupe_proto::inference::{
    InferParameter, ModelInferRequest, ModelStreamInferResponse, infer_parameter::ParameterChoice,
};

use crate::support::{
    Model, Repository, Server,
    grpc::{Grpc, floats, floats_of},
    http,
    models::{execute, python},
};

pub(crate) const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// A model that may give any number of responses.
pub(crate) fn decoupled(model: Model) -> Model {
    model.with("model_transaction_policy { decoupled: true }")
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let repository = Repository::new()
        .with("repeats", decoupled(execute(FLOATS, REPEATS)))
        .with("ends_with_last", decoupled(execute(FLOATS, ENDS_WITH_LAST)))
        .with("threads", decoupled(python(FLOATS, THREADS)))
        .with("coroutine", decoupled(python(FLOATS, COROUTINE)))
        .with("silent", decoupled(execute(FLOATS, "return None")))
        .with("stumbles", decoupled(execute(FLOATS, STUMBLES)))
        .with("raises", decoupled(execute(FLOATS, "raise ValueError('no')")))
        .with("returns", decoupled(execute(FLOATS, "return []")))
        .with("sends_once", execute(FLOATS, SENDS_ONCE))
        .with("forgets", execute(FLOATS, "requests[0].get_response_sender()\nreturn [None]"))
        .with("again", python(FLOATS, AGAIN));
    Server::start(repository)
});

/// One response per element, then the end.
pub(crate) const REPEATS: &str = "
    for it in requests:
        sender = it.get_response_sender()
        for value in pb_utils.get_input_tensor_by_name(it, 'x').as_numpy():
            y = pb_utils.Tensor('y', np.array([value], np.float32))
            sender.send(pb_utils.InferenceResponse([y]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";

pub(crate) const ENDS_WITH_LAST: &str = "
    for it in requests:
        sender = it.get_response_sender()
        values = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
        for index, value in enumerate(values):
            y = pb_utils.Tensor('y', np.array([value], np.float32))
            sender.send(pb_utils.InferenceResponse([y]), int(index + 1 == len(values)))";

/// Two threads answer after `execute` has returned.
const THREADS: &str = "
    import threading

    class TritonPythonModel:
        def execute(self, requests):
            for it in requests:
                threading.Thread(target=self.answer, args=(it, it.get_response_sender())).start()

        def answer(self, request, sender):
            def send(value):
                y = pb_utils.Tensor('y', np.array([value], np.float32))
                sender.send(pb_utils.InferenceResponse([y]))

            values = pb_utils.get_input_tensor_by_name(request, 'x').as_numpy()
            threads = [threading.Thread(target=send, args=(value,)) for value in values]
            [it.start() for it in threads]
            [it.join() for it in threads]
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";

/// Sends `x[0]` responses of `x[1]` elements each, once eight requests are in work.
const COROUTINE: &str = "
    import asyncio

    class TritonPythonModel:
        def initialize(self, args):
            self.inside = 0
            self.all_are_here = asyncio.Event()

        async def execute(self, requests):
            for it in requests:
                await self.answer(it, it.get_response_sender())

        async def answer(self, request, sender):
            x = pb_utils.get_input_tensor_by_name(request, 'x').as_numpy()
            def send(value):
                y = pb_utils.Tensor('y', np.full(int(x[1]), value, np.float32))
                sender.send(pb_utils.InferenceResponse([y]))
            self.inside += 1
            if self.inside == 8:
                self.all_are_here.set()
            if x[0] < 0:
                raise ValueError('below zero')
            await self.all_are_here.wait()
            for value in range(int(x[0])):
                send(value)
                if value % 3 == 0:
                    await asyncio.sleep(0)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";

pub(crate) const STUMBLES: &str = "
    for it in requests:
        sender = it.get_response_sender()
        y = pb_utils.Tensor('y', np.array([1], np.float32))
        sender.send(pb_utils.InferenceResponse([y]))
        error = pb_utils.TritonError('stumbled', pb_utils.TritonError.INVALID_ARG)
        sender.send(pb_utils.InferenceResponse(error=error))
        sender.send(pb_utils.InferenceResponse([y]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)";

const SENDS_ONCE: &str = "
    answers = []
    for it in requests:
        sender = it.get_response_sender()
        x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
        y = pb_utils.InferenceResponse([pb_utils.Tensor('y', x * 2)])
        sender.send(y, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        try:
            sender.send(y, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except pb_utils.TritonModelException as error:
            assert 'cannot send more than one response' in str(error), error
        answers.append(None)
    return answers";

/// Executed three times before it answers.
const AGAIN: &str = "
    class TritonPythonModel:
        def initialize(self, args):
            self.turn = 0

        def execute(self, requests):
            self.turn += 1
            if self.turn % 3:
                for it in requests:
                    it.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None for _ in requests]
            y = pb_utils.Tensor('y', np.array([self.turn], np.float32))
            return [pb_utils.InferenceResponse([y]) for _ in requests]";

fn ask(model: &str, values: &[f32], wants_empty_final: bool) -> ModelInferRequest {
    let mut request = floats(model, &[("x", values)]);
    request.id = format!("to {model}");
    if wants_empty_final {
        let choice = Some(ParameterChoice::BoolParam(true));
        let wish = InferParameter { parameter_choice: choice };
        let name = "triton_enable_empty_final_response".to_owned();
        request.parameters = HashMap::from([(name, wish)]);
    }
    request
}

/// What came: a value, an error or nothing, and whether it was the last.
fn summary(answer: &ModelStreamInferResponse) -> (String, bool) {
    let response = answer.infer_response.as_ref().unwrap();
    let last = &response.parameters["triton_final_response"].parameter_choice;
    let is_last = *last == Some(ParameterChoice::BoolParam(true));
    if !answer.error_message.is_empty() {
        return (answer.error_message.clone(), is_last);
    }
    let values = response.raw_output_contents.iter().flat_map(|it| floats_of(it));
    (values.map(|it| it.to_string()).collect::<Vec<_>>().join(" "), is_last)
}

fn stream(requests: Vec<ModelInferRequest>) -> Vec<(String, bool)> {
    let mut grpc = Grpc::connect(SERVER.grpc);
    grpc.stream(requests).unwrap().iter().map(summary).collect()
}

fn expect(got: Vec<(String, bool)>, expected: &[(&str, bool)]) {
    let got: Vec<(&str, bool)> = got.iter().map(|it| (it.0.as_str(), it.1)).collect();
    assert_eq!(got, expected);
}

#[test]
fn responses_come_in_their_order_and_the_end_is_told_if_asked_for() {
    let parts = [("1", false), ("2", false), ("3", false)];
    expect(stream(vec![ask("repeats", &[1.0, 2.0, 3.0], false)]), &parts);
    let with_end = [&parts[..], &[("", true)]].concat();
    expect(stream(vec![ask("repeats", &[1.0, 2.0, 3.0], true)]), &with_end);
}

#[test]
fn the_last_response_may_carry_the_end() {
    let parts = [("1", false), ("2", true)];
    expect(stream(vec![ask("ends_with_last", &[1.0, 2.0], true)]), &parts);
}

#[test]
fn threads_answer_after_execute_has_returned() {
    let values: Vec<f32> = (0..20).map(|it| it as f32).collect();
    let requests = (0..5).map(|_| ask("threads", &values, true)).collect();
    let got = stream(requests);
    assert_eq!(got.iter().filter(|it| it.1).count(), 5);
    for value in &values {
        let text = value.to_string();
        assert_eq!(got.iter().filter(|it| it.0 == text).count(), 5, "{got:?}");
    }
}

#[test]
fn a_request_nobody_can_answer_any_more_has_ended() {
    expect(stream(vec![ask("silent", &[1.0], false)]), &[]);
    expect(stream(vec![ask("silent", &[1.0], true)]), &[("", true)]);
}

#[test]
fn an_error_is_one_of_the_responses() {
    let expected = [("1", false), ("stumbled", false), ("1", false), ("", true)];
    expect(stream(vec![ask("stumbles", &[1.0], true)]), &expected);
}

#[test]
fn what_execute_raises_or_returns_ends_the_request() {
    let [(raised, true)] = &stream(vec![ask("raises", &[1.0], true)])[..] else { panic!() };
    assert!(raised.contains("ValueError: no"), "{raised}");
    let [(returned, true)] = &stream(vec![ask("returns", &[1.0], true)])[..] else { panic!() };
    let text = "Python model 'returns' is using the decoupled mode and the execute function must \
                return None.";
    assert!(returned.contains(text), "{returned}");
}

#[test]
fn single_calls_are_refused() {
    let mut grpc = Grpc::connect(SERVER.grpc);
    let refused = grpc.infer(ask("repeats", &[1.0], false)).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
    let text = "ModelInfer RPC doesn't support models with decoupled transaction policy";
    let hint = "model 'repeats' answers any number of times; use ModelStreamInfer";
    let told = refused.message();
    assert!(told.starts_with(&format!("{text}: {hint}")), "{told}");
    let answer = SERVER.infer("repeats", &http::floats(&[("x", &[1.0])]));
    assert_eq!(answer.status, 501, "{}", answer.text());
}

#[test]
fn a_model_that_is_not_decoupled_may_use_its_sender_once() {
    let answer = SERVER.infer("sends_once", &http::floats(&[("x", &[1.0, 2.0])]));
    assert_eq!(answer.ok().numbers("y"), [2.0, 4.0]);
    let forgotten = SERVER.infer("forgets", &http::floats(&[("x", &[1.0])]));
    forgotten.refuses(500, "The response sender of the request was dropped without a response.");
}

#[test]
fn a_rescheduled_request_is_executed_anew() {
    let answer = SERVER.infer("again", &http::floats(&[("x", &[1.0])]));
    assert_eq!(answer.ok().numbers("y"), [3.0]);
    assert_eq!(SERVER.executions("again"), 3);
}

fn values(answers: &[ModelStreamInferResponse], id: &str) -> Vec<(usize, f32)> {
    let of = |it: &&ModelStreamInferResponse| it.infer_response.as_ref().unwrap().id == id;
    let tensors = answers.iter().filter(of).map(|it| {
        assert_eq!(it.error_message, "");
        floats_of(&it.infer_response.as_ref().unwrap().raw_output_contents[0])
    });
    tensors.map(|it| (it.len(), it[0])).collect()
}

/// None of them ends before all have begun; of the last two one says nothing, and one sends far
/// more than a sender may have on its way.
#[test]
fn decoupled_requests_overlap_and_wait_for_slow_clients() {
    let asked = [(4, 1), (5, 2), (6, 3), (7, 1), (8, 20_000), (9, 1), (0, 1), (200, 100_000)];
    let requests = asked.iter().map(|(count, size)| {
        let mut it = floats("coroutine", &[("x", &[*count as f32, *size as f32])]);
        it.id = count.to_string();
        it
    });
    let answers = Grpc::connect(SERVER.grpc).stream(requests.collect()).unwrap();
    for (count, size) in asked {
        let expected: Vec<_> = (0..count).map(|it| (size, it as f32)).collect();
        assert!(values(&answers, &count.to_string()) == expected, "{count} of {size}");
    }
    // Company is there by now; one that raises ends alone.
    let mut requests = [[-1.0, 1.0], [2.0, 1.0]].map(|it| floats("coroutine", &[("x", &it)]));
    requests[1].id = "good".to_owned();
    let answers = Grpc::connect(SERVER.grpc).stream(requests.to_vec()).unwrap();
    let errors: Vec<_> = answers.iter().filter(|it| !it.error_message.is_empty()).collect();
    assert!(errors[0].error_message.contains("ValueError: below zero"), "{errors:?}");
    assert_eq!((errors.len(), values(&answers, "good").len()), (1, 2));
    SERVER.is_well();
}
