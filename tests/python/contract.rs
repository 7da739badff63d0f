//! Python models that do as they should: types, the contract, `pb_utils`, workers that come back.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::support::{
    Repository, Server,
    http::{floats, input, rows},
    models::{TYPES, execute},
    process::{self},
    python, until,
};

const FLOATS: &str = "x:FP32[-1] -> y:FP32[-1]";

/// A pipe for JSON: what the test sends as text is put into `said`, what it says comes back.
const SAY: &str = "x:BYTES[-1] -> y:BYTES[-1]";

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let identity = "
        get = pb_utils.get_input_tensor_by_name
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor('y', get(it, 'x').as_numpy())])
            for it in requests
        ]";
    let mut repository = Repository::new();
    let types = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BYTES";
    for dtype in types.split(' ') {
        let signature = format!("x:{dtype}[-1,2] -> y:{dtype}[-1,2]");
        repository.write(&format!("id_{dtype}"), &execute(&signature, identity));
    }
    repository.write(
        "id_BF16",
        &execute(
            "x:BF16[-1,2] -> y:BF16[-1,2]",
            "
            x = pb_utils.get_input_tensor_by_name(requests[0], 'x')
            assert x.triton_dtype() == 'BF16' or 'BF16' in str(x.triton_dtype()), x.triton_dtype()
            y = pb_utils.Tensor.from_dlpack('y', x.to_dlpack())
            return [pb_utils.InferenceResponse([y])]",
        ),
    );
    repository.write("tells", &telling());
    repository.write("one_bad", &one_bad().batch(8).with("dynamic_batching {}"));
    repository.write("completes", &completing());
    Server::start(repository)
});

/// Answers with what it was told in `initialize` and what `pb_utils` says.
fn telling() -> crate::support::Model {
    python(
        SAY,
        "
        class TritonPythonModel:
            def initialize(self, args):
                self.args = args
                config = json.loads(args['model_config'])
                output = pb_utils.get_output_config_by_name(config, 'y')
                self.facts = {
                    'all_strings': all(type(it) is str for it in args.values()),
                    'parameter': config['parameters']['mine']['string_value'],
                    'input': pb_utils.get_input_config_by_name(config, 'x')['data_type'],
                    'no_input': pb_utils.get_input_config_by_name(config, 'z'),
                    'output_type': np.dtype(pb_utils.triton_string_to_numpy(output['data_type'])).name,
                    'decoupled': pb_utils.using_decoupled_model_transaction_policy(config),
                }

            def execute(self, requests):
                it = requests[0]
                x = pb_utils.get_input_tensor_by_name(it, 'x')
                facts = dict(self.facts, args=sorted(self.args))
                for key in ('model_name', 'model_version', 'model_instance_name',
                            'model_instance_kind', 'model_instance_device_id'):
                    facts[key] = self.args[key]
                facts['inputs'] = [one.name() for one in it.inputs()]
                facts['shape'] = list(x.shape())
                facts['bytes'] = [one.decode() for one in x.as_numpy().reshape(-1)]
                facts['is_cpu'] = x.is_cpu()
                facts['missing'] = pb_utils.get_input_tensor_by_name(it, 'z') is None
                facts['id'] = it.request_id()
                facts['cancelled'] = it.is_cancelled()
                facts['relative'] = os.path.basename(self.args['model_repository'])
                pb_utils.Logger.log_info('an info of the model')
                pb_utils.Logger.log_warn('a warning of the model')
                pb_utils.Logger.log_error('an error of the model')
                print('printed by the model', flush=True)
                try:
                    pb_utils.Tensor('', np.zeros(1))
                    facts['empty_name'] = 'taken'
                except pb_utils.TritonModelException as error:
                    facts['empty_name'] = str(error)
                y = np.array([json.dumps(facts).encode()], dtype=np.object_)
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', y)])]
        ",
    )
    .parameter("mine", "a value")
}

/// Fails only the requests whose value is negative.
fn one_bad() -> crate::support::Model {
    execute(
        "x:FP32[1] -> y:FP32[1]",
        "
        answers = []
        for it in requests:
            x = pb_utils.get_input_tensor_by_name(it, 'x').as_numpy()
            if x.min() < 0:
                error = pb_utils.TritonError('negative', pb_utils.TritonError.INVALID_ARG)
                answers.append(pb_utils.InferenceResponse(error=error))
            else:
                y = pb_utils.Tensor('y', x * len(requests) / len(requests))
                answers.append(pb_utils.InferenceResponse([y]))
        return answers",
    )
}

/// Has no tensors in its config, and no config at all.
fn completing() -> crate::support::Model {
    let mut model = python(
        "->",
        "
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.add_input({'name': 'x', 'data_type': 'TYPE_FP32', 'dims': [1]})
                config.add_output({'name': 'y', 'data_type': 'TYPE_FP32', 'dims': [1]})
                config.set_max_batch_size(4)
                config.set_dynamic_batching()
                return config

            def execute(self, requests):
                get = pb_utils.get_input_tensor_by_name
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor('y', get(it, 'x').as_numpy() + 1)])
                    for it in requests
                ]
        ",
    );
    model.config.clear();
    model
}

#[test]
fn every_type_goes_through_numpy_and_back() {
    for (dtype, bytes) in TYPES {
        // Small ones travel in the frame, large ones in shared memory, empty ones nowhere.
        for times in [1, 0, 40_000] {
            let data = bytes.repeat(times);
            let request = json!({
                "inputs": [{"name": "x", "datatype": dtype, "shape": [times, 2],
                            "parameters": {"binary_data_size": data.len()}}],
                "parameters": {"binary_data_output": true},
            });
            let answer = SERVER.http.infer_binary(&format!("id_{dtype}"), &request, &[&data]);
            let length = answer.ok().header("inference-header-content-length").unwrap();
            let (json, back) = answer.body.split_at(length.parse().unwrap());
            assert!(back == data, "{dtype}, {times} times");
            let json: Value = serde_json::from_slice(json).unwrap();
            assert_eq!(json["outputs"][0]["shape"], json!([times, 2]), "{dtype}");
            assert_eq!(json["outputs"][0]["datatype"], *dtype);
        }
    }
    SERVER.is_well();
}

#[test]
fn a_model_is_told_what_triton_tells() {
    let request = json!({"id": "seven", "inputs": [input("x", "BYTES", &[2], vec!["a", "b"])]});
    let said = SERVER.infer("tells", &request).output("y");
    let said: Value = serde_json::from_str(said[0].as_str().unwrap()).unwrap();
    for (key, expected) in [
        ("all_strings", json!(true)),
        ("parameter", json!("a value")),
        ("input", json!("TYPE_STRING")),
        ("no_input", json!(null)),
        ("output_type", json!("object")),
        ("decoupled", json!(false)),
        ("model_name", json!("tells")),
        ("model_version", json!("1")),
        ("model_instance_name", json!("tells_0")),
        ("model_instance_kind", json!("CPU")),
        ("model_instance_device_id", json!("0")),
        ("inputs", json!(["x"])),
        ("shape", json!([2])),
        ("bytes", json!(["a", "b"])),
        ("is_cpu", json!(true)),
        ("missing", json!(true)),
        ("id", json!("seven")),
        ("cancelled", json!(false)),
        ("relative", json!("tells")),
        ("empty_name", json!("Tensor name cannot be an empty string.")),
    ] {
        assert_eq!(said[key], expected, "{key} in {said}");
    }
    assert_eq!(
        said["args"],
        json!([
            "model_config",
            "model_instance_device_id",
            "model_instance_kind",
            "model_instance_name",
            "model_name",
            "model_repository",
            "model_version"
        ])
    );
    for (text, level) in [
        ("an info of the model", 'I'),
        ("a warning of the model", 'W'),
        ("an error of the model", 'E'),
        ("printed by the model", 'I'),
    ] {
        let line = SERVER.logged(text);
        assert!(line.starts_with(level), "{line}");
        assert!(line.contains("tells"), "the line does not name its model: {line}");
    }
}

#[test]
fn one_bad_request_of_a_batch_fails_alone() {
    let values: Vec<f32> = (0..32).map(|it| if it % 3 == 0 { -1.0 } else { it as f32 }).collect();
    let answers = crate::support::at_once(16, |caller| {
        [values[caller * 2], values[caller * 2 + 1]]
            .map(|it| (it, SERVER.infer("one_bad", &rows(&[("x", &[it])]))))
    });
    for (value, answer) in answers.into_iter().flatten() {
        if value < 0.0 {
            answer.refuses(400, "negative");
        } else {
            assert_eq!(answer.numbers("y"), [f64::from(value)]);
        }
    }
}

#[test]
fn a_model_without_a_config_completes_it() {
    let config = SERVER.http.get("/v2/models/completes/config").ok().json();
    assert_eq!(config["backend"], "python");
    assert_eq!(config["max_batch_size"], 4);
    assert_eq!(config["dynamic_batching"]["preferred_batch_size"], json!([4]));
    assert_eq!(config["input"][0]["name"], "x");
    let answer = SERVER.infer("completes", &rows(&[("x", &[1.0, 2.0])]));
    assert_eq!(answer.numbers("y"), [2.0, 3.0]);
}

#[test]
fn configs_are_not_completed_when_that_is_turned_off() {
    let repository = Repository::of([("completes", completing())]);
    let flags = ["--disable-auto-complete-config", "--exit-on-error=false"];
    let server = Server::with(repository, &flags);
    let state = server.state("completes");
    assert!(state.contains("model configuration is not provided for model 'completes'"), "{state}");
}

#[test]
fn only_requested_outputs_come_back() {
    let model = execute(
        "x:FP32[-1] -> y:FP32[-1] z:FP32[-1]",
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        both = [pb_utils.Tensor('y', x), pb_utils.Tensor('z', x)]
        return [pb_utils.InferenceResponse(both)]",
    );
    let server = Server::start(Repository::of([("m", model)]));
    let mut request = floats(&[("x", &[1.0])]);
    assert_eq!(server.infer("m", &request).outputs(), ["y", "z"]);
    request["outputs"] = json!([{"name": "z"}]);
    assert_eq!(server.infer("m", &request).outputs(), ["z"]);
}

#[test]
fn a_model_imports_what_lies_beside_it_and_is_finalized() {
    let repository = Repository::new();
    let (ready, ended) = (repository.beside("ready"), repository.beside("ended"));
    let source = format!(
        "
        from . import beside
        import lonely

        class TritonPythonModel:
            def initialize(self, args):
                open('{}', 'w').close()

            def execute(self, requests):
                y = np.array([beside.VALUE + lonely.VALUE], dtype=np.float32)
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', y)]) for _ in requests]

            def finalize(self):
                open('{}', 'w').close()
        ",
        ready.display(),
        ended.display()
    );
    let repository = repository.with("m", python(FLOATS, &source));
    repository.write_file("m/1/beside.py", "VALUE = 2\n");
    repository.write_file("m/1/lonely.py", "VALUE = 40\n");
    let server = Server::with(repository, &["--model-control-mode=explicit", "--load-model=m"]);
    assert!(ready.exists());
    assert_eq!(server.infer("m", &floats(&[("x", &[1.0])])).numbers("y"), [42.0]);
    assert!(!ended.exists());
    server.unload("m").ok();
    until("finalize to be called", || ended.exists());
    until("the worker to end", || process::descendants(server.pid).len() <= 1);
}

#[test]
fn async_execute_is_awaited() {
    let model = python(
        FLOATS,
        "
        import asyncio

        class TritonPythonModel:
            async def execute(self, requests):
                await asyncio.sleep(0)
                x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
                return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x + 1)])]
        ",
    );
    let server = Server::start(Repository::of([("m", model)]));
    assert_eq!(server.infer("m", &floats(&[("x", &[1.0])])).numbers("y"), [2.0]);
}

#[test]
fn response_parameters_reach_the_client() {
    let model = execute(
        FLOATS,
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        parameters = {'word': 'hello', 'number': 7, 'yes': True}
        y = pb_utils.Tensor('y', x)
        return [pb_utils.InferenceResponse([y], parameters=parameters)]",
    );
    let server = Server::start(Repository::of([("m", model)]));
    let body = server.infer("m", &floats(&[("x", &[1.0])])).ok().json();
    assert_eq!(body["parameters"], json!({"word": "hello", "number": 7, "yes": true}));
}
