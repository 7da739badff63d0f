//! Models are kept apart: none reads what is sent to others, none changes what others read.

use serde_json::{Value, json};

use crate::support::{
    Repository, Server,
    models::{ensemble, execute, python},
};

/// Enough to travel in shared memory.
const COUNT: usize = 25_000;

/// Remembers where its last large input lay, and answers small requests with what is there now; a
/// negative number is written there first.
const SPY: &str = r#"
import ctypes


class TritonPythonModel:
    place = None

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            if 1000 < x.size:
                self.place = x.__array_interface__["data"][0]
                y = np.zeros(4, np.float32)
            else:
                seen = (ctypes.c_float * 4).from_address(self.place)
                if x[0] < 0:
                    seen[0] = x[0]
                y = np.array(seen, np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
"#;

fn server() -> Server {
    let signature = "x:FP32[-1] -> y:FP32[-1]";
    let answer = "
        get = pb_utils.get_input_tensor_by_name
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor('y', CHANGE(get(it, 'x').as_numpy()))])
            for it in requests
        ]";
    let through = execute(signature, &answer.replace("CHANGE", ""));
    let doubles = execute(signature, &answer.replace("CHANGE", "2 * "));
    let watched = ensemble("x:FP32[-1] -> y:FP32[-1]", &["doubles: x=x -> y=t", "spy: x=t -> y=y"]);
    Server::start(
        Repository::of([("spy", python(signature, SPY)), ("through", through)])
            .with("doubles", doubles)
            .with("watched", watched),
    )
}

/// A large request whose elements are all `value`; its first and last element of the answer.
fn send(server: &Server, model: &str, value: f32) -> [f32; 2] {
    let data: Vec<u8> = value.to_le_bytes().repeat(COUNT);
    let request = json!({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [COUNT],
                    "parameters": {"binary_data_size": data.len()}}],
        "parameters": {"binary_data_output": true},
    });
    let answer = server.http.infer_binary(model, &request, &[&data]);
    let length = answer.ok().header("inference-header-content-length").unwrap();
    let output = &answer.body[length.parse().unwrap()..];
    let element = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    [element(&output[..4]), element(&output[output.len() - 4..])]
}

/// What the spy sees where its last large input lay.
fn look(server: &Server, value: f32) -> Value {
    let request =
        json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [value]}]});
    server.http.infer("spy", &request).json()["outputs"][0]["data"].clone()
}

#[test]
fn a_model_does_not_see_what_is_sent_to_another_later() {
    let server = server();
    send(&server, "spy", 1.0);
    for _ in 0..3 {
        assert_eq!(send(&server, "through", 42.5), [42.5, 42.5]);
        assert_eq!(look(&server, 0.0), json!([1.0, 1.0, 1.0, 1.0]));
    }
}

#[test]
fn a_model_does_not_see_what_an_earlier_step_answers_to_others_later() {
    let server = server();
    send(&server, "watched", 1.0);
    assert_eq!(look(&server, 0.0), json!([2.0, 2.0, 2.0, 2.0]));
    for _ in 0..3 {
        assert_eq!(send(&server, "doubles", 42.5), [85.0, 85.0]);
        assert_eq!(look(&server, 0.0), json!([2.0, 2.0, 2.0, 2.0]));
    }
}

#[test]
fn a_model_that_writes_where_its_input_lay_changes_nobody_elses() {
    let server = server();
    send(&server, "spy", 1.0);
    assert_eq!(look(&server, -7.0), json!([-7.0, 1.0, 1.0, 1.0]));
    assert_eq!(send(&server, "through", 42.5), [42.5, 42.5]);
    // Nor the memory of the step that made it.
    send(&server, "watched", 1.0);
    assert_eq!(look(&server, -7.0), json!([-7.0, 2.0, 2.0, 2.0]));
    assert_eq!(send(&server, "doubles", 1.0), [2.0, 2.0]);
}

#[test]
fn a_model_may_write_to_its_input_and_answers_with_what_it_wrote() {
    let writes = execute(
        "x:FP32[-1] -> y:FP32[-1]",
        "
        x = pb_utils.get_input_tensor_by_name(requests[0], 'x').as_numpy()
        x[0] += 1
        return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x)])]",
    );
    let twice = ensemble("x:FP32[-1] -> y:FP32[-1]", &["writes: x=x -> y=t", "writes: x=t -> y=y"]);
    let server = Server::start(Repository::of([("writes", writes), ("twice", twice)]));
    // The memory is the same every time, and what was written last time is gone.
    for value in [1.0, 2.0, 3.0] {
        assert_eq!(send(&server, "writes", value), [value + 1.0, value]);
        assert_eq!(send(&server, "twice", value), [value + 2.0, value]);
    }
}
