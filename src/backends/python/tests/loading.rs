//! What may go wrong while a model is loaded, and what it is told.

use super::*;

const ONE: (DataType, &[i64]) = (FP32, &[1]);

fn check(source: &str, expected: &str) {
    let model = model(source, &[ONE], &[ONE]);
    let path = model.files.model_dir.join("1/model.py").display().to_string();
    let expected = expected.replace("{path}", &path);
    let text = model.open_error();
    assert!(text.starts_with(&expected), "got      {text}\nexpected {expected}");
}

#[actix_rt::test]
async fn a_model_that_cannot_be_loaded_says_why() {
    let execute = "        def execute(self, requests):\n            pass\n";
    let cases = [
        (
            "def execute(): pass".to_owned(),
            "AttributeError: module '1.model' has no attribute 'TritonPythonModel'",
        ),
        (
            "class TritonPythonModel: pass".to_owned(),
            "TritonModelException: Python model {path} does not implement `execute` method.",
        ),
        (
            format!(
                "    class TritonPythonModel:\n        def initialize(self, args):\n            \
                 raise KeyError('missing')\n{execute}"
            ),
            "KeyError: 'missing'\n\nAt:\n  {path}(4): initialize\n",
        ),
        ("1 / 0".to_owned(), "ZeroDivisionError: division by zero\n\nAt:\n  {path}(2): <module>\n"),
        ("x = (".to_owned(), "SyntaxError: '(' was never closed"),
        (
            "import os; os._exit(5)".to_owned(),
            "Stub process 'm_0_0' ended while the model was loaded: it exited with status 5",
        ),
        (
            "import no_such_module".to_owned(),
            "ModuleNotFoundError: No module named 'no_such_module'\n\nAt:\n  {path}(2): <module>\n\nlist it in a requirements.txt",
        ),
    ];
    for (source, expected) in cases {
        check(&source, expected);
    }
}

#[actix_rt::test]
async fn a_worker_that_dies_while_loading_says_how() {
    let cases = [
        ("os._exit(9)", "it exited with status 9; it wrote nothing to stderr"),
        (
            "print('last words', file=sys.stderr); os._exit(0)",
            "it exited with status 0; its last lines on stderr:\nlast words",
        ),
        (
            "import ctypes; ctypes.string_at(0)",
            "it was ended by signal 11 (SIGSEGV); its last lines on stderr:\nFatal Python error",
        ),
        (
            "os.kill(os.getpid(), 9)",
            "it was ended by signal 9 (SIGKILL, which is also what ends a process when memory runs \
             out); it wrote nothing to stderr",
        ),
        // Alive long after its socket closed: a core dump on a busy machine, say.
        ("os.closerange(3, 64); time.sleep(1); os._exit(4)", "it exited with status 4; "),
    ];
    for (body, expected) in cases {
        let source = format!(
            "import os, sys, time\nclass TritonPythonModel:\n    def initialize(self, args):\n        \
             {body}\n    def execute(self, requests):\n        return []\n"
        );
        check(
            &source,
            &format!("Stub process 'm_0_0' ended while the model was loaded: {expected}"),
        );
    }
}

#[actix_rt::test]
async fn the_file_must_be_there_and_be_python() {
    let mut model = model("", &[ONE], &[ONE]);
    model.config.default_model_filename = "model.txt".into();
    let text = "Model name must end with '.py'. Model name is \"model.txt\".";
    assert_eq!(model.open_error(), text);
    model.config.default_model_filename = "other.py".into();
    let path = model.files.model_dir.join("1/other.py").display().to_string();
    let found = format!("Python model file not found in '{path}': '");
    let error = model.open_error();
    assert!(error.starts_with(&found), "{error}");
    assert!(error.ends_with("/1' has 'model.py', expected 'other.py'"), "{error}");
}

#[actix_rt::test]
async fn initialize_is_told_everything_as_text_and_siblings_can_be_imported() {
    let source = "
        import json
        import numpy as np
        import shared
        from . import beside
        from .beside import WORD
        class TritonPythonModel:
            def initialize(self, args):
                assert all(type(it) is str for it in args.values())
                config = json.loads(args.pop('model_config'))
                folder = args.pop('model_repository')
                told = [args, config['name'], config['input'][0]['dims'],
                        pb_utils.get_input_config_by_name(config, 'IN0')['data_type'],
                        pb_utils.get_output_config_by_name(config, 'nope'),
                        pb_utils.using_decoupled_model_transaction_policy(config),
                        pb_utils.get_model_dir() == folder + '/1', WORD, shared.WORD, __name__]
                self.told = json.dumps(told)
            def execute(self, requests):
                out = pb_utils.Tensor('OUT0', np.array([self.told], dtype=np.bytes_))
                return [pb_utils.InferenceResponse([out])]
        ";
    let model = model(source, &[ONE], &[(DataType::Bytes, &[1])]);
    model.file("1/beside.py", "WORD = 'beside'\n");
    model.file("shared.py", "WORD = 'shared'\n");
    let mut remote = model.open();
    let tensor = output(&mut *remote, request(vec![fp32(&[1], &[1.0])])).await;
    let told = String::from_utf8(tensor.strings().next().unwrap().to_vec()).unwrap();
    let expected = concat!(
        r#"[{"model_instance_device_id": "0", "model_instance_kind": "CPU", "#,
        r#""model_instance_name": "m_0_0", "model_name": "m", "model_version": "1"}, "m", [1], "#,
        r#""TYPE_FP32", null, false, true, "beside", "shared", "1.model"]"#
    );
    assert_eq!(told, expected);
}

fn completed(config: &str, body: &str) -> Result<Option<String>> {
    let source = format!(
        "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n        {}\n",
        body.replace('\n', "\n        ")
    );
    let model = model(&source, &[ONE], &[ONE]);
    complete(runtime(), &model.settings, &model.files, config)
}

#[actix_rt::test]
async fn auto_complete_config_fills_in_what_is_missing() {
    let body = "config.set_max_batch_size(8)
config.set_dynamic_batching()
config.add_input({'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [4], 'optional': True})
config.add_output({'name': 'b', 'data_type': 'TYPE_FP32', 'dims': [-1]})
config.set_model_transaction_policy({'decoupled': False})
return config";
    let json = completed(r#"{"name": "m", "input": [{"name": "a"}]}"#, body).unwrap().unwrap();
    let got: serde_json::Value = serde_json::from_str(&json).unwrap();
    let expected = serde_json::json!({
        "name": "m", "max_batch_size": 8, "dynamic_batching": {},
        "input": [{"name": "a", "data_type": "TYPE_FP32", "dims": [4], "optional": true}],
        "output": [{"name": "b", "data_type": "TYPE_FP32", "dims": [-1]}],
        "model_transaction_policy": {"decoupled": false},
    });
    assert_eq!(got, expected);
    let plain = model(IDENTITY, &[ONE], &[ONE]);
    assert_eq!(
        complete(runtime(), &plain.settings, &plain.files, r#"{"name": "m"}"#).unwrap(),
        None
    );
}

#[actix_rt::test]
async fn auto_complete_config_must_not_contradict_the_configuration() {
    let config = r#"{"name": "m", "max_batch_size": 6, "sequence_batching": {},
        "input": [{"name": "x", "data_type": "TYPE_INT32", "dims": [16], "optional": false}],
        "model_transaction_policy": {"decoupled": false}}"#;
    let place = "in auto-complete-config function for model 'm'";
    let cases = [
        ("return 7", "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object.".into()),
        ("config.set_max_batch_size(4)", format!("ValueError: configuration specified max_batch_size 6, but {place} specified max_batch_size 4")),
        ("config.set_dynamic_batching()", format!("ValueError: Configuration specified scheduling_choice as 'sequence_batching', but {place} tries to set scheduling_choice as 'dynamic_batching'")),
        ("config.add_input({'name': 'x', 'kind': 1})", format!("ValueError: input 'x' {place} contains property other than 'name', 'data_type', 'dims' and 'optional'.")),
        ("config.add_output({'name': 'x', 'optional': 1})", format!("ValueError: output 'x' {place} contains property other than 'name', 'data_type' and 'dims'.")),
        ("config.add_input({'dims': [1]})", format!("ValueError: input {place} is missing 'name' property.")),
        ("config.add_input({'name': 'x', 'dims': [1]})", format!("ValueError: input 'x' {place} is missing 'data_type' property.")),
        ("config.add_output({'name': 'x', 'data_type': 'TYPE_FP32'})", format!("ValueError: output 'x' {place} is missing 'dims' property.")),
        ("config.add_input({'name': 'x', 'dims': [1], 'data_type': 'TYPE_FP32'})", "ValueError: unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'x', model provides TYPE_FP32".into()),
        ("config.add_input({'name': 'x', 'dims': [4], 'data_type': 'TYPE_INT32'})", "ValueError: model 'm', tensor 'x': the model expects dims [4] but the model configuration specifies dims [16]".into()),
        ("config.add_input({'name': 'x', 'dims': [16], 'data_type': 'TYPE_INT32', 'optional': True})", "ValueError: model 'm', tensor 'x': the model expects optional True but the model configuration specifies optional False".into()),
        ("config.set_model_transaction_policy({'x': 1})", format!("ValueError: model transaction property {place} contains property other than 'decoupled'")),
        ("config.set_model_transaction_policy({'decoupled': True})", format!("ValueError: trying to change decoupled property {}, which is already set to 'False'", place.replace(" function", ""))),
    ];
    for (body, expected) in cases {
        let error = completed(config, body).expect_err(body).to_string();
        assert!(error.starts_with(&expected), "got      {error}\nexpected {expected}");
    }
}

#[actix_rt::test]
async fn what_is_missing_is_installed_once_or_named() {
    let source = IDENTITY.replace("class", "import troupe_test_package\n    class");
    let mut model = model(&source, &[ONE], &[ONE]);
    let package = model.files.model_dir.join("package");
    fs::create_dir_all(&package).unwrap();
    model.file("requirements.txt", "no-such-package @ file:///nowhere\n");
    model.settings.provision = false;
    let text = model.open_error();
    if text.contains("cannot run models") {
        // This machine's python3 has no numpy: that is said first.
        assert!(text.contains("No module named 'numpy'; run `"), "{text}");
        assert!(text.ends_with("or start without --provision=never"), "{text}");
    } else {
        assert!(text.contains("No module named 'troupe_test_package'"), "{text}");
        assert!(text.contains("-m pip install numpy -r "), "{text}");
    }
    model.settings.provision = true;
    let text = model.open_error();
    assert!(text.contains("pip: Could not install"), "{text}");
}

#[actix_rt::test]
async fn an_interpreter_that_is_not_there_is_named() {
    let mut model = model(IDENTITY, &[ONE], &[ONE]);
    let python = ("python".to_owned(), "python".to_owned());
    model.settings.options.insert(python, "/nowhere/python3".into());
    let expected = "cannot run Python interpreter '/nowhere/python3': ";
    assert!(model.open_error().starts_with(expected), "{}", model.open_error());
    model
        .config
        .parameters
        .insert("EXECUTION_ENV_PATH".into(), "$$TRITON_MODEL_DIRECTORY/env".into());
    let folder = model.files.model_dir.join("env");
    let expected = format!("EXECUTION_ENV_PATH '{}' of model 'm' does not exist", folder.display());
    assert_eq!(model.open_error(), expected);
    fs::create_dir(&folder).unwrap();
    let expected = format!("no bin/python3 or bin/python in '{}'", folder.display());
    assert_eq!(model.open_error(), expected);
}
