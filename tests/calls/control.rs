//! Models that load and unload others.

use std::fs;

use serde_json::json;

use crate::{
    calls::basics::{DOUBLES, FLOATS},
    support::{
        Model, Repository, Server, ensemble, eventually, http,
        models::{execute, native, python},
        script::scripts,
    },
};

/// Loads another model before it can be called itself.
fn needs(model: &str) -> Model {
    python(
        FLOATS,
        &format!(
            "
    class TritonPythonModel:
        def initialize(self, args):
            self.was_ready = pb_utils.is_model_ready('{model}')
            pb_utils.load_model('{model}')
            assert pb_utils.is_model_ready('{model}', '1')

        def execute(self, requests):
            request = lambda it: pb_utils.InferenceRequest(
                model_name='{model}', inputs=it.inputs(), requested_output_names=['y'])
            return [request(it).exec() for it in requests]

        def finalize(self):
            try:
                pb_utils.unload_model('{model}')
            except pb_utils.TritonModelException as error:
                said = os.path.dirname(__file__) + '/said'
                open(said + '.new', 'w').write(str(error))
                os.rename(said + '.new', said)"
        ),
    )
}

fn repository() -> Repository {
    Repository::new()
        .with("scripts", scripts())
        .with("doubles", execute(FLOATS, DOUBLES))
        .with("identity", native("identity", FLOATS))
        .with("around", ensemble(FLOATS, &["identity: x=x -> y=y"]))
}

#[test]
fn models_are_loaded_called_and_unloaded() {
    let server = Server::explicit(repository());
    server.load("scripts").ok();
    let said = server.run(
        "scripts",
        "
        ready = lambda: pb_utils.is_model_ready('doubles')
        said = [ready(), pb_utils.load_model('doubles'), ready(), y(make('doubles').exec())]
        said += [pb_utils.is_model_ready('doubles', it) for it in ('1', '2')]
        said += [pb_utils.unload_model('doubles'), ready(), y(make('doubles').exec())]
        return said",
    );
    let not_ready = "2: Failed for execute the inference request. Model 'doubles' is not ready.";
    let expected = ["False", "None", "True", "[2.0]", "True", "False", "None", "False", not_ready];
    assert_eq!(said, expected);

    let said = server.run(
        "scripts",
        "
        ready = lambda: [pb_utils.is_model_ready(it) for it in ('around', 'identity')]
        pb_utils.load_model('around')
        said = [ready()]
        pb_utils.unload_model('around', unload_dependents=True)
        return said + [ready()]",
    );
    assert_eq!(said, ["[True, True]", "[False, False]"]);
}

#[test]
fn a_load_brings_its_own_config_and_files() {
    let server = Server::explicit(repository());
    server.load("scripts").ok();
    let said = server.run(
        "scripts",
        r#"
        config = {
            'backend': 'python',
            'input': [{'name': 'x', 'data_type': 'TYPE_FP32', 'dims': [-1]}],
            'output': [{'name': 'y', 'data_type': 'TYPE_FP32', 'dims': [-1]}],
        }
        source = '''
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            def execute(self, requests):
                y = lambda it: pb_utils.Tensor('y', it.inputs()[0].as_numpy() + 100)
                return [pb_utils.InferenceResponse([y(it)]) for it in requests]
        '''
        import textwrap
        source = textwrap.dedent(source).encode()
        pb_utils.load_model('doubles', config=json.dumps(config), files={'file:1/model.py': source})
        said = [y(make('doubles').exec())]
        pb_utils.load_model('doubles')
        said.append(y(make('doubles').exec()))
        pb_utils.load_model('scripts')
        return said + [pb_utils.is_model_ready('scripts')]"#,
    );
    assert_eq!(said, ["[101.0]", "[2.0]", "True"]);
    assert_eq!(server.run("scripts", "return ['and on']"), ["and on"]);
}

#[test]
fn what_cannot_be_loaded_or_unloaded_is_told() {
    let broken = native("no_such_op", FLOATS);
    let server = Server::explicit(repository().with("broken", broken));
    server.load("scripts").ok();
    let said = server.run(
        "scripts",
        "
        return [raised(it) for it in (
            lambda: pb_utils.load_model('nobody'),
            lambda: pb_utils.load_model('../nobody'),
            lambda: pb_utils.load_model('doubles', config='{'),
            lambda: pb_utils.load_model('doubles', files={'file:1/model.py': b''}),
            lambda: pb_utils.load_model('broken'),
            lambda: pb_utils.is_model_ready('doubles', '0'),
        )]",
    );
    for (said, expected) in said.iter().zip([
        "Failed to load model: failed to load 'nobody', failed to poll from model repository",
        "Failed to load model: ",
        "Failed to load model: ",
        "Failed to load model: ",
        "Failed to load model: load failed for model 'broken': version 1 is at UNAVAILABLE state: ",
        "invalid model version specified '0' , version should be an integral value > 0",
    ]) {
        assert!(said.starts_with(&format!("TritonModelException: {expected}")), "{said}");
    }
}

#[test]
fn without_explicit_mode_models_stay_as_they_are() {
    let server = Server::start(repository());
    let said = server.run(
        "scripts",
        "
        return [raised(pb_utils.load_model, 'doubles'), raised(pb_utils.unload_model, 'doubles'),
                pb_utils.is_model_ready('doubles')]",
    );
    let not_allowed = "explicit model load / unload is not allowed if polling is enabled; start \
         the server with --model-control-mode=explicit to allow it";
    let expected = [
        format!("TritonModelException: Failed to load model: {not_allowed}"),
        format!("TritonModelException: Failed to unload model: {not_allowed}"),
        "True".to_owned(),
    ];
    assert_eq!(said, expected);
}

#[test]
fn a_model_loads_what_it_needs_before_it_is_ready() {
    // One version is loaded at a time, and that is the one that waits.
    let flags = ["--model-control-mode=explicit", "--model-load-thread-count=1"];
    let repository = repository().with("a", needs("b")).with("b", needs("doubles"));
    let server = Server::with(repository, &flags);
    server.load("a").ok();
    let answer = server.infer("a", &http::floats(&[("x", &[4.0])]));
    assert_eq!(answer.output("y"), json!([8.0]));
    assert_eq!(server.state("doubles"), "READY");
    server.unload("a").ok();
    let said = server.repository.models().join("a/1/said");
    let said = eventually("the end of `a`", || fs::read_to_string(&said).ok());
    let expected = "Failed to unload model: Models cannot be loaded, unloaded or asked for during \
                    'finalize'.";
    assert_eq!(said, expected);
    server.load("scripts").ok();
    server.load("identity").ok();
}

#[test]
fn models_that_need_each_other_before_they_are_ready_are_not_waited_for() {
    let repository = repository().with("a", needs("b")).with("b", needs("a"));
    let server = Server::explicit(repository);
    let circle = "a model that is being loaded cannot wait for a model that is loaded with it or \
                  waits for it";
    for _ in 0..2 {
        server.load("a").refuses(400, circle);
    }
    server.load("scripts").ok();

    let repository =
        Repository::new().with("a", needs("doubles")).with("doubles", execute(FLOATS, DOUBLES));
    let flags = ["--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false"];
    let server = Server::with(repository, &flags);
    assert!(server.state("a").contains(circle), "{}", server.state("a"));
    assert_eq!(server.state("doubles"), "READY");
    server.load("a").ok();
}
