//! Models that call models.

use std::sync::LazyLock;

use crate::support::{
    Repository, Server, ensemble,
    models::{execute, native},
    script::{coroutines, scripts},
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

const DOUBLES: &str = "
    answers = []
    for it in requests:
        x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
        answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('y', x * 2)]))
    return answers";

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let steps = ["doubles: x=x -> y=between", "identity: x=between -> y=y"];
    let repository = Repository::new()
        .with("scripts", scripts())
        .with("coroutines", coroutines())
        .with("doubles", execute(FLOATS, DOUBLES))
        .with("identity", native("identity", FLOATS))
        .with("chain", ensemble(FLOATS, &steps));
    Server::start(repository)
});

#[track_caller]
fn check(model: &str, body: &str, expected: &[&str]) {
    assert_eq!(SERVER.run(model, body), expected);
}

#[test]
fn any_kind_of_model_can_be_called() {
    let body = "return [y(make(it, [1, 2]).exec()) for it in ('doubles', 'identity', 'chain')]";
    check("scripts", body, &["[2.0, 4.0]", "[1.0, 2.0]", "[2.0, 4.0]"]);
}
