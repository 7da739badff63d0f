//! Business logic calls: models that call models.

use std::sync::LazyLock;

use serde_json::json;

use crate::support::{
    Model, Repository, Server, at_once, ensemble, http,
    models::{execute, native, python},
    script::{coroutines, scripts},
};

pub(crate) const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

pub(crate) const DOUBLES: &str = "
    answers = []
    for it in requests:
        x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
        answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', x * 2)]))
    return answers";

/// Says what it was asked for.
const MIRROR: &str = "
    answers = []
    for it in requests:
        said = [it.request_id(), it.correlation_id(), it.flags(), it.timeout(), it.parameters(),
                it.requested_output_names(), it.trace().get_context(), it.model_version()]
        y = pb_utils.Tensor('y', it.inputs()[0].as_numpy())
        z = pb_utils.Tensor('z', it.inputs()[0].as_numpy())
        parameters = {'said': json.dumps(said), 'one': 1, 'yes': True}
        answers.append(pb_utils.InferenceResponse([y, z], parameters=parameters))
    return answers";

const REFUSES: &str = "
    code = int(requests[0].inputs()[0].as_numpy()[0])
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError('refused', code))]";

/// Passes its request on, and the answer back, without a look at the tensors.
fn passes_on_to(model: &str) -> Model {
    execute(
        FLOATS,
        &format!(
            "
            request = lambda it: pb_utils.InferenceRequest(
                model_name='{model}', inputs=it.inputs(), requested_output_names=['y'])
            return [request(it).exec() for it in requests]"
        ),
    )
}

/// Calls before it can be called itself.
const TOO_EARLY: &str = "
    def call(model):
        try:
            return pb_utils.InferenceRequest(
                model_name=model, inputs=[pb_utils.Tensor('x', np.zeros(1, np.float32))],
                requested_output_names=['y']).exec()
        except pb_utils.TritonModelException as error:
            return error

    said = [call('identity')]

    class TritonPythonModel:
        def initialize(self, args):
            said.append(call('identity'))

        def execute(self, requests):
            y = np.array([str(it).encode() for it in said], dtype=np.object_)
            return [pb_utils.InferenceResponse([pb_utils.Tensor('y', y)]) for it in requests]";

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let steps = ["doubles: x=x -> y=between", "passes: x=between -> y=y"];
    let repository = Repository::new()
        .with("scripts", scripts())
        .with("coroutines", coroutines())
        .with("doubles", execute(FLOATS, DOUBLES))
        .with("identity", native("identity", FLOATS))
        .with("chain", ensemble(FLOATS, &steps))
        .with("passes", passes_on_to("passes_too"))
        .with("passes_too", passes_on_to("doubles"))
        .with("mirror", execute("x:FP32[-1] -> y:FP32[-1] z:FP32[-1]", MIRROR))
        .with("refuses", execute(FLOATS, REFUSES))
        .with("passes_refusals", passes_on_to("refuses"))
        .with("raises", execute(FLOATS, "raise ValueError('no')"))
        .with("batches", native("identity", "x:FP32[2] -> y:FP32[2]").batch(4))
        .with("optional", native("identity", "x?:FP32[-1] -> y:FP32[-1]"))
        .with("too_early", python("x:FP32[-1] -> y:BYTES[-1]", TOO_EARLY))
        .with("calls_itself", passes_on_to("calls_itself"))
        .with("a", passes_on_to("b"))
        .with("b", passes_on_to("a"))
        .with("c", passes_on_to("around_c"))
        .with("around_c", ensemble(FLOATS, &["identity: x=x -> y=i", "c: x=i -> y=y"]));
    Server::start(repository)
});

#[track_caller]
fn check(body: &str, expected: &[&str]) {
    assert_eq!(SERVER.run("scripts", body), expected);
}

#[test]
fn any_kind_of_model_can_be_called() {
    check(
        "return [y(make(it, [1, 2]).exec())
                for it in ('doubles', 'identity', 'passes', 'chain')]",
        &["[2.0, 4.0]", "[1.0, 2.0]", "[2.0, 4.0]", "[4.0, 8.0]"],
    );
    let request = http::floats(&[("x", &[1.0, 2.0])]);
    assert_eq!(SERVER.infer("chain", &request).numbers("y"), [4.0, 8.0]);
}

#[test]
fn what_a_request_says_of_itself_arrives_and_response_parameters_come_back() {
    check(
        "
        plain = make('mirror')
        full = make('mirror', request_id='7', correlation_id=9, flags=3, timeout=5000,
                    parameters={'a': 'b', 'n': 1, 'yes': False}, model_version=1,
                    preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0),
                    trace=request.trace())
        text = make('mirror', correlation_id='sequence', requested_output_names=['z', 'y'])
        full.set_flags(full.flags() & 1)
        said = []
        for it in (plain, full, text):
            parameters = json.loads(it.exec().parameters())
            said += [parameters.pop('said'), json.dumps(parameters)]
        return said",
        &[
            r#"["", 0, 0, 0, "{}", ["y"], null, 1]"#,
            r#"{"one": 1, "yes": true}"#,
            r#"["7", 9, 1, 5000, "{\"a\":\"b\",\"n\":1,\"yes\":false}", ["y"], null, 1]"#,
            r#"{"one": 1, "yes": true}"#,
            r#"["", "sequence", 0, 0, "{}", ["y", "z"], null, 1]"#,
            r#"{"one": 1, "yes": true}"#,
        ],
    );
}

#[test]
fn only_the_requested_outputs_come_and_all_without_a_request() {
    check(
        "
        names = lambda it: [it.name() for it in make('mirror', requested_output_names=it).exec().output_tensors()]
        return [names(it) for it in (['z'], ['y', 'z'], [], None)]",
        &["['z']", "['y', 'z']", "['y', 'z']", "['y', 'z']"],
    );
}

#[test]
fn tensors_of_all_types_arrive() {
    let mut repository = Repository::new().with("scripts", scripts());
    let mut expected = Vec::new();
    for dtype in ["BOOL", "UINT8", "UINT64", "INT16", "FP16", "FP64", "BYTES"] {
        let signature = format!("x:{dtype}[-1] -> y:{dtype}[-1]");
        repository = repository.with(format!("of_{dtype}"), native("identity", &signature));
        expected.push(format!("{dtype} [2] True"));
    }
    let server = Server::start(repository);
    let body = "
        said = []
        for dtype in ('BOOL', 'UINT8', 'UINT64', 'INT16', 'FP16', 'FP64', 'BYTES'):
            kind = pb_utils.triton_string_to_numpy(dtype)
            x = np.array([b'one', b''] if dtype == 'BYTES' else [1, 0]).astype(kind)
            it = make('of_' + dtype)
            it._inputs = [pb_utils.Tensor('x', x)]
            y = pb_utils.get_output_tensor_by_name(it.exec(), 'y')
            said.append(f'{y.triton_dtype()} {y.shape()} {(y.as_numpy() == x).all()}')
        return said";
    for _ in 0..2 {
        assert_eq!(server.run("scripts", body), expected);
    }
}

#[test]
fn why_a_model_was_not_asked_is_in_the_response() {
    check(
        "
        wrong = lambda tensor: pb_utils.InferenceRequest(
            model_name='doubles', inputs=tensor, requested_output_names=['y']).exec()
        tensor = lambda name, array: [pb_utils.Tensor(name, np.array(array))]
        return [y(it) for it in (
            make('nobody').exec(),
            make('doubles', model_version=7).exec(),
            make('doubles', requested_output_names=['q']).exec(),
            make('doubles', requested_output_names=['y', 'y'], request_id='me').exec(),
            wrong(tensor('q', [1.0])),
            wrong(tensor('x', [1])),
            wrong(tensor('x', np.zeros((1, 1), np.float32))),
            wrong([]),
            make('batches', np.zeros((5, 2))).exec(),
        )]",
        &[
            "2: Failed for execute the inference request. Model 'nobody' is not ready.",
            "2: Failed for execute the inference request. Model 'doubles' is not ready.",
            "3: Model doubles - Error when running inference: [request id: <id_unknown>] \
             unexpected inference output 'q' for model 'doubles' (its outputs: y)",
            "3: Model doubles - Error when running inference: [request id: me] output 'y' already \
             exists in request",
            "3: Model doubles - Error when running inference: [request id: <id_unknown>] \
             unexpected inference input 'q' for model 'doubles' (its inputs: x)",
            "3: Model doubles - Error when running inference: [request id: <id_unknown>] inference \
             input 'x' data-type is 'INT64', but model 'doubles' expects 'FP32'",
            "3: Model doubles - Error when running inference: [request id: <id_unknown>] unexpected \
             shape for input 'x' for model 'doubles'. Expected [-1], got [1,1].",
            "3: Model doubles - Error when running inference: [request id: <id_unknown>] expected 1 \
             inputs but got 0 inputs for model 'doubles'. Got input(s) [], but missing required \
             input(s) ['x']. Please provide all required input(s).",
            "3: Model batches - Error when running inference: [request id: <id_unknown>] inference \
             request batch-size must be <= 4 for 'batches', got 5",
        ],
    );
}

#[test]
fn what_a_model_says_itself_comes_as_it_is() {
    check(
        "return [y(make('refuses', [code]).exec()) for code in range(8)]",
        &[
            "0: refused",
            "1: refused",
            "2: refused",
            "3: refused",
            "4: refused",
            "5: refused",
            "6: refused",
            "7: refused",
        ],
    );
    check("return [y(make('passes_refusals', [3]).exec())]", &["3: refused"]);
    let [raised] = &SERVER.run("scripts", "return [y(make('raises').exec())]")[..] else {
        panic!()
    };
    let start = "1: Failed to process the request(s) for model instance 'raises_0', message: \
                 ValueError: no\n\nAt:\n  ";
    assert!(raised.starts_with(start), "{raised}");
    let answer = SERVER.infer("passes_refusals", &http::floats(&[("x", &[2.0])]));
    answer.refuses(404, "refused");
}

#[test]
fn a_request_that_makes_no_sense_is_not_sent() {
    check(
        "
        x = [pb_utils.Tensor('x', np.zeros(1, np.float32))]
        new = pb_utils.InferenceRequest
        return [raised(it) for it in (
            lambda: new('7', inputs=[None], model_name='m'),
            lambda: new('7', inputs=[1], model_name='m'),
            lambda: new('7', inputs=x, model_name='m', requested_output_names=['']),
            lambda: new(correlation_id=1.5),
            lambda: new(trace=3),
            lambda: new(preferred_memory=3),
            lambda: make('doubles', correlation_id=-1).exec(),
            lambda: make('doubles', flags=1 << 32).exec(),
            lambda: make('doubles', timeout='long').exec(),
            lambda: make('doubles', model_version='1').exec(),
            lambda: make('doubles', x=['z' * 3]).exec(),
            lambda: make('d' * 70000).exec(),
            lambda: make('doubles').async_exec(),
        )]",
        &[
            "TritonModelException: Input tensor for request with id '7' and model name 'm' should \
             not be empty.",
            "TypeError: Input tensors must be pb_utils.Tensor, found type '<class 'int'>'.",
            "TritonModelException: Requested output name for request with id '7' and model name \
             'm' should not be empty.",
            "TritonModelException: Correlation ID must be integer or string",
            "TypeError: trace must be a pb_utils.InferenceTrace, found type '<class 'int'>'.",
            "TypeError: preferred_memory must be a pb_utils.PreferredMemory, found type '<class \
             'int'>'.",
            "TritonModelException: The correlation_id of a request must be a number from 0 to \
             18446744073709551615, got -1.",
            "TritonModelException: The flags of a request must be a number from 0 to 4294967295, \
             got 4294967296.",
            "TritonModelException: The timeout of a request must be a number from 0 to \
             18446744073709551615, got 'long'.",
            "TritonModelException: The model version must be an integer, found type '<class \
             'str'>'.",
            "ValueError: could not convert string to float: 'zzz'",
            "TritonModelException: The request has too long a name or too many outputs.",
            "RuntimeError: no running event loop",
        ],
    );
    let said = SERVER.infer("too_early", &http::floats(&[("x", &[1.0])])).output("y");
    let too_early = "BLS is only supported during the 'execute' function.";
    assert_eq!(said, json!([too_early, too_early]));
}

#[test]
fn optional_inputs_may_be_left_out() {
    check(
        "
        it = pb_utils.InferenceRequest(model_name='optional', requested_output_names=['y'])
        return [it.exec().has_error(), len(it.exec().output_tensors())]",
        &["False", "0"],
    );
}

#[test]
fn a_model_that_would_wait_for_itself_is_told_so() {
    for (model, expected) in [
        (
            "calls_itself",
            "Model calls_itself - Error when running inference: model 'calls_itself' would wait for \
             itself: 'calls_itself' calls 'calls_itself'",
        ),
        (
            "a",
            "Model a - Error when running inference: model 'a' would wait for itself: 'a' calls \
             'b', which calls 'a'",
        ),
        (
            "c",
            "in ensemble 'around_c', step 1 (model 'c' version 1): model 'c' would wait for itself: \
             'c' calls 'around_c', which runs 'c'",
        ),
    ] {
        let answer = SERVER.infer(model, &http::floats(&[("x", &[1.0])]));
        answer.refuses(501, expected);
        assert_eq!(answer.error(), expected);
    }
}

#[test]
fn called_models_count_their_requests() {
    let steps = ["counted: x=x -> y=y"];
    let repository = Repository::new()
        .with("scripts", scripts())
        .with("counted", execute(FLOATS, DOUBLES))
        .with("around", ensemble(FLOATS, &steps));
    let server = Server::start(repository);
    let body = "
        for _ in range(3):
            make('counted').exec(), make('around').exec()
        return [make('counted', [[1]]).exec().has_error()]";
    assert_eq!(server.run("scripts", body), ["True"]);
    let count = |model: &str| (server.successes(model), server.executions(model));
    assert_eq!((count("counted"), count("around")), ((6, 6), (3, 3)));
    assert_eq!(server.stats("counted")["inference_stats"]["fail"]["count"], 1);
    let labels = ["model=\"counted\"", "version=\"1\""];
    assert_eq!(server.metric("nv_inference_request_success", &labels), Some(6.0));
}

#[test]
fn clients_that_come_at_once_meet_in_the_model_that_is_called() {
    let repository = Repository::new()
        .with("passes", passes_on_to("doubles").with("instance_group { count: 3 }"))
        .with("doubles", execute(FLOATS, DOUBLES));
    let server = Server::start(repository);
    let answers = at_once(12, |caller| {
        let ask = |turn: usize| {
            let x = (caller * 100 + turn) as f32;
            let answer = server.infer("passes", &http::floats(&[("x", &[x])]));
            answer.numbers("y") == [f64::from(2.0 * x)]
        };
        (0..20).all(ask)
    });
    assert!(answers.into_iter().all(|it| it));
    assert_eq!(server.successes("doubles"), 240);
}
