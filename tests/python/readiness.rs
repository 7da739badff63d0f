//! `is_ready` of Python models: asked by whoever asks whether a model, or the server, is ready.

use std::fs;

use troupe_proto::inference::{ModelReadyRequest, ServerReadyRequest};

use crate::support::{
    Model, Repository, Server, at_once, ensemble,
    gate::Gate,
    grpc::Grpc,
    http::{self, floats},
    python, until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// An identity with this `is_ready`; its `execute` is a coroutine if that is wanted.
fn checked(execute: &str, is_ready: &str) -> Model {
    python(
        FLOATS,
        &format!(
            "
            class TritonPythonModel:
                {execute}(self, requests):
                    get = pb_utils.get_input_tensor_by_name
                    return [
                        pb_utils.InferenceResponse([pb_utils.Tensor('y', get(it, 'x').as_numpy())])
                        for it in requests
                    ]

                {is_ready}
            "
        ),
    )
}

fn is_model_ready(server: &Server, model: &str) -> bool {
    let answer = server.http.get(&format!("/v2/models/{model}/ready"));
    let is_ready = Grpc::connect(server.grpc).call(async |it| {
        let name = model.to_owned();
        it.model_ready(ModelReadyRequest { name, version: "1".to_owned() }).await
    });
    if answer.status != 200 {
        assert_eq!((answer.status, answer.error().as_str()), (400, "Model version not ready"));
    }
    assert_eq!(is_ready.unwrap().ready, answer.status == 200, "{model}");
    answer.status == 200
}

fn is_server_ready(server: &Server) -> bool {
    let status = server.http.get("/v2/health/ready").status;
    let mut grpc = Grpc::connect(server.grpc);
    let is_ready = grpc.call(async |it| it.server_ready(ServerReadyRequest {}).await);
    assert_eq!(is_ready.unwrap().ready, status == 200);
    status == 200
}

#[test]
fn a_model_is_ready_if_it_says_so() {
    let mut repository = Repository::new();
    let returns = [
        ("yes", "return True", "", true),
        ("no", "return False", " (user-defined check failed).", false),
        ("raises", "raise ValueError('not now')", ": ValueError: not now, at ", false),
        ("word", "return 'yes'", ": is_ready() must return a boolean value", false),
        ("none", "pass", ": is_ready() must return a boolean value", false),
    ];
    let kinds = [("", "def", "def"), ("c_", "async def", "def"), ("cc_", "async def", "async def")];
    for (kind, execute, check) in kinds.iter().chain(&[("sc_", "def", "async def")]) {
        for (name, body, ..) in returns {
            let is_ready = format!("{check} is_ready(self):\n                    {body}");
            let model = checked(&format!("{execute} execute"), &is_ready);
            repository.write(&format!("{kind}{name}"), &model);
        }
    }
    let steps =
        |model: &str| ensemble("A:FP32[-1] -> Z:FP32[-1]", &[&format!("{model}: x=A -> y=Z")]);
    let repository = repository.with("e_yes", steps("yes")).with("e_no", steps("no"));
    let server = Server::lenient(repository);
    for kind in ["", "c_", "cc_", "sc_"] {
        for (name, _, reason, expected) in returns {
            let model = format!("{kind}{name}");
            for _ in 0..2 {
                assert_eq!(is_model_ready(&server, &model), expected, "{model}");
            }
            if !expected {
                let text = format!("Model '{model}_0' is not ready{reason}");
                assert!(server.logged(&text).starts_with('W'));
            }
            // Whatever it says, it can be asked.
            assert_eq!(server.infer(&model, &floats(&[("x", &[3.0])])).numbers("y"), [3.0]);
        }
    }
    assert!(is_model_ready(&server, "e_yes"));
    assert!(!is_model_ready(&server, "e_no"));
    assert!(!is_server_ready(&server));
    assert_eq!(server.state("no"), "READY", "the index does not ask");
}

#[test]
fn the_server_is_ready_while_all_models_say_so() {
    let repository = Repository::new();
    let busy = repository.beside("busy");
    let is_ready = format!(
        "def is_ready(self):\n                    return not os.path.exists('{}')",
        busy.display()
    );
    let model =
        checked("def execute", &is_ready).with("instance_group { count: 2 kind: KIND_CPU }");
    let server =
        Server::start(repository.with("m", model).with("other", checked("def execute", "")));
    for _ in 0..2 {
        assert!(is_server_ready(&server) && is_model_ready(&server, "m"));
        fs::write(&busy, "").unwrap();
        assert!(!is_server_ready(&server) && !is_model_ready(&server, "m"));
        assert!(is_model_ready(&server, "other"));
        fs::remove_file(&busy).unwrap();
    }
    assert!(is_server_ready(&server));
    server.logged("is_ready() succeeds again");
}

#[test]
fn checks_at_once_share_one_call_and_give_up_in_the_end() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let calls = repository.beside("calls");
    let is_ready = format!(
        "def is_ready(self):
                    with open('{}', 'a') as calls:
                        calls.write('.')
                    pass_gate()
                    return True",
        calls.display()
    );
    let model = gate.passed_by(checked("def execute", &is_ready));
    let server = Server::with(repository.with("m", model), &["--strict-readiness=false"]);
    let ready = || server.http.get("/v2/models/m/ready").status;
    assert_eq!(at_once(4, |_| ready()), [400; 4]);
    server.logged("Timed out waiting for user-defined is_ready() response");
    // The one call goes on, and whoever asks now waits for it as well.
    assert_eq!(ready(), 400);
    assert_eq!(fs::read_to_string(&calls).unwrap(), ".");
    gate.let_through(1000);
    until("the model to be ready", || ready() == 200);
    assert!(is_model_ready(&server, "m"));
}

#[test]
fn a_model_that_is_executing_is_asked_afterwards() {
    let repository = Repository::new();
    let gate = Gate::new(&repository, "gate");
    let mut model = gate.model("FP32[-1]");
    let source = model.source.take().unwrap();
    let check = "\n    def is_ready(self):\n        return True\n\n\ndef pass_gate";
    model.source = Some(source.replace("\n\ndef pass_gate", check));
    let server = Server::start(repository.with("m", model));
    let answer = server.http.start("m", &floats(&[("x", &[1.0])]));
    gate.is_reached();
    let asked = at_once(2, |caller| match caller {
        0 => server.http.get("/v2/models/m/ready").status,
        _ => {
            gate.let_through(1);
            200
        }
    });
    assert_eq!(asked, [200, 200]);
    assert_eq!(http::finish(answer).numbers("y"), [1.0]);
}

#[test]
fn a_worker_that_dies_of_its_check_is_not_ready() {
    let is_ready = "def is_ready(self):\n                    os._exit(3)";
    let server = Server::with(
        Repository::of([("m", checked("def execute", is_ready))]),
        &["--strict-readiness=false"],
    );
    assert_eq!(server.http.get("/v2/models/m/ready").status, 400);
    server.logged("Stub process 'm_0' is not healthy.");
    until("a new worker", || server.infer("m", &floats(&[("x", &[1.0])])).status == 200);
}
