//! A config that is not of its model is refused, in Triton's words and with its line.

use super::{
    super::{graph, graph::DeclaredTensor, library, session},
    *,
};

const WHOLE: &str = "input { name: 'INPUT0' data_type: TYPE_FP32 dims: [16] }
input { name: 'INPUT1' data_type: TYPE_FP32 dims: [16] }
output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [16] }
output { name: 'OUTPUT1' data_type: TYPE_FP32 dims: [16] }
max_batch_size: 4";

/// Loads `add_sub_fp32` with its config changed.
fn changed(from: &str, to: &str, expected: &[&str]) {
    assert!(WHOLE.contains(from), "{from}");
    assert_eq!(load_error("add_sub_fp32", &WHOLE.replacen(from, to, 1)), expected.join("; "));
}

#[test]
fn a_config_of_the_model_loads() {
    executor("add_sub_fp32", WHOLE);
    executor(
        "add_sub_fp32",
        &WHOLE.replacen("max_batch_size: 4", "", 1).replace("[16]", "[-1, 16]"),
    );
}

#[test]
fn names_must_be_those_of_the_model() {
    changed(
        "'INPUT1'",
        "'X'",
        &[
            "unable to load model 'm', the model needs input 'INPUT1', which the configuration does not have (config.pbtxt:2:1)",
            "unexpected inference input 'X', allowed inputs are: INPUT0, INPUT1 (config.pbtxt:3:9)",
        ],
    );
    changed(
        "'OUTPUT0'",
        "'Z'",
        &[
            "unexpected inference output 'Z', allowed outputs are: OUTPUT0, OUTPUT1 (config.pbtxt:4:10)",
        ],
    );
}

#[test]
fn inputs_must_be_as_many_as_the_model_has() {
    changed(
        "input { name: 'INPUT1' data_type: TYPE_FP32 dims: [16] }",
        "",
        &[
            "unable to load model 'm', configuration expects 1 inputs, model provides 2 (config.pbtxt:2:1)",
            "unable to load model 'm', the model needs input 'INPUT1', which the configuration does not have (config.pbtxt:2:1)",
        ],
    );
    let third = "input { name: 'INPUT2' data_type: TYPE_FP32 dims: [1] } max_batch_size: 4";
    changed(
        "max_batch_size: 4",
        third,
        &[
            "unable to load model 'm', configuration expects 3 inputs, model provides 2 (config.pbtxt:2:1)",
            "unexpected inference input 'INPUT2', allowed inputs are: INPUT0, INPUT1 (config.pbtxt:6:9)",
        ],
    );
}

#[test]
fn types_must_be_those_of_the_model() {
    changed(
        "FP32",
        "INT32",
        &[
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'INPUT0', \
         model provides TYPE_FP32 (config.pbtxt:2:24)",
        ],
    );
    changed(
        "'OUTPUT1' data_type: TYPE_FP32",
        "'OUTPUT1' data_type: TYPE_STRING",
        &["unable to load model 'm', configuration expects datatype TYPE_STRING for output \
         'OUTPUT1', model provides TYPE_FP32 (config.pbtxt:5:26)"],
    );
}

#[test]
fn dims_must_be_those_of_the_model() {
    changed(
        "[16]",
        "[8]",
        &[
            "model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,16]) but the model \
         configuration specifies 2 dimensions (an initial batch dimension because max_batch_size \
         > 0 followed by the explicit tensor shape, making complete shape [-1,8]): dimension 1 \
         (from 0) is 16 in the model and 8 in the configuration (config.pbtxt:2:45)",
        ],
    );
    changed(
        "'OUTPUT0' data_type: TYPE_FP32 dims: [16]",
        "'OUTPUT0' data_type: TYPE_FP32 dims: [-1]",
        &[
            "model 'm', tensor 'OUTPUT0': the model expects 2 dimensions (shape [-1,16]) but the model \
         configuration specifies 2 dimensions (an initial batch dimension because max_batch_size \
         > 0 followed by the explicit tensor shape, making complete shape [-1,-1]): dimension 1 \
         (from 0) is 16 in the model and -1 in the configuration (config.pbtxt:4:47)",
        ],
    );
    let whole = "input { name: 'INPUT0' data_type: TYPE_FP32 dims: [3] }
                 output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [2, -1] }";
    assert_eq!(
        load_error("symbolic", whole),
        "model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [2,-1]) but the model \
         configuration specifies 1 dimensions (shape [3]) (config.pbtxt:2:45)"
    );
    let reshaped =
        "input { name: 'INPUT0' data_type: TYPE_FP32 dims: [6] reshape { shape: [3, 2] } }
                    output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [2, -1] }";
    assert!(load_error("symbolic", reshaped).contains("2 dimensions (shape [3,2])"));
}

#[test]
fn a_model_of_whole_shapes_does_not_batch() {
    let text = "max_batch_size: 4
                input { name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }
                output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }";
    let batching = |tensor: &str, shape: &str| {
        format!(
            "model 'm', tensor '{tensor}': for the model to support batching the shape should have \
             at least 1 dimension and the first dimension must be -1; but shape expected by the \
             model is {shape}"
        )
    };
    for (model, shape) in [("symbolic", "[2,-1]"), ("scalar", "[]")] {
        let error = load_error(model, text);
        for tensor in ["INPUT0", "OUTPUT0"] {
            assert!(error.contains(&batching(tensor, shape)), "{error}");
        }
    }
}

#[test]
fn a_scalar_is_written_as_ones() {
    let text = "input { name: 'INPUT0' data_type: TYPE_FP32 dims: [2] }
                output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [1, 1] }";
    assert_eq!(
        load_error("scalar", text),
        "unable to load model 'm', scalar tensor 'INPUT0', should only provide 1 in the model \
         configuration when the model doesn't support batching. Model configuration provided: [2]. \
         (config.pbtxt:2:45)"
    );
}

#[test]
fn an_optional_input_needs_a_value_in_the_file_and_no_batch() {
    let text = |scale: &str| {
        format!(
            "input {{ name: 'INPUT0' data_type: TYPE_FP32 dims: [4] }}
             input {{ name: 'scale' data_type: TYPE_FP32 dims: [4] {scale} }}
             output {{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [4] }}"
        )
    };
    executor("optional", &text("optional: true"));
    assert_eq!(
        load_error("optional", &text("")),
        "unable to load model 'm', configuration expects 2 inputs, model provides 1 (config.pbtxt:2:1)"
    );
    changed(
        "[16]",
        "[16] optional: true",
        &[
            "unable to load model 'm', configuration expects 1 inputs, model provides 2 (config.pbtxt:2:1)",
            "unable to load model 'm', optional input 'INPUT0' is not supported for models that support \
         batching (config.pbtxt:2:56)",
        ],
    );
}

#[test]
fn what_requests_cannot_carry_is_refused_when_it_is_asked_for() {
    let text = "input { name: 'INPUT0' data_type: TYPE_FP32 dims: [4] }
                output { name: 'pair' data_type: TYPE_FP32 dims: [4] }";
    let expected =
        "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'pair', expected 'ONNX_TYPE_TENSOR'.";
    assert!(load_error("sequence", text).starts_with(expected));
    let text = text.replace("pair", "OUTPUT0");
    assert_eq!(
        load_error("float8", &text),
        "unable to load model 'm', configuration expects datatype TYPE_FP32 for output 'OUTPUT0', \
         model provides TYPE_F8_E4M3FN (config.pbtxt:3:42)"
    );
}

#[test]
fn the_file_alone_tells_what_the_library_tells() {
    let told = |all: &[DeclaredTensor]| -> Vec<String> {
        all.iter().map(|it| format!("{} {:?}", it.name, it.kind)).collect()
    };
    let mut compared = 0;
    for entry in fs::read_dir(place("").model_dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Ok(file) = session::find(&place(&name), "") else { continue };
        let environment = library::environment(&settings(), &name).unwrap();
        let (Ok(loaded), Ok(Some(read))) = (file.look(environment), file.declared()) else {
            continue;
        };
        let loaded = graph::read(&loaded);
        assert_eq!(told(&read.inputs), told(&loaded.inputs), "{name}");
        assert_eq!(told(&read.initializers), told(&loaded.initializers), "{name}");
        assert_eq!(told(&read.outputs), told(&loaded.outputs), "{name}");
        compared += 1;
    }
    assert!(10 <= compared, "{compared}");
}

#[test]
fn a_batch_input_that_says_how_much_there_is_to_do_makes_it_unpredictable() {
    let of = |count: &str| {
        let text = "max_batch_size: 4
            input { name: 'x' data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }
            batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_INT32 source_input: 'x'
                target_name: 'NAME' }
            output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }";
        let config = finish(draft(&text.replace("NAME", count)));
        match prepare(&settings(), &place("repeat"), config).unwrap() {
            Backend::Local(opener) => opener.is_predictable(),
            Backend::Remote(_) => panic!("an ONNX model runs in this process"),
        }
    };
    assert!(!of("count"));
    // Which is none of the model's.
    assert!(of("other"));
}
