//! What a model's file adds to a config.

use super::*;
use troupe_base::config::Batching;

/// `name:type[dims]` of both sides and the batch size; `/` before a shape the model sees.
fn completed(model: &str, text: &str, options: &[(&str, &str, &str)]) -> Result<String> {
    let mut settings = settings();
    for (backend, key, value) in options {
        let (backend, key) = ((*backend).to_owned(), (*key).to_owned());
        settings.options.insert((backend, key), (*value).to_owned());
    }
    let mut draft = draft(text);
    let written = config::json::print(&draft.proto);
    if let Some(json) = complete(&settings, &place(model), &written)? {
        draft.proto = config::read_json(&json, "completed").unwrap().proto;
    }
    let config = finish(draft);
    let shape = |dims: &[i64], reshape: &Option<Vec<i64>>| {
        let reshape = reshape.as_ref().map(|it| format!("/{it:?}")).unwrap_or_default();
        format!("{dims:?}{reshape}")
    };
    let inputs = config
        .inputs
        .iter()
        .map(|it| format!("{}:{}{}", it.name, it.dtype.as_str(), shape(&it.dims, &it.reshape)));
    let outputs = config
        .outputs
        .iter()
        .map(|it| format!("{}:{}{}", it.name, it.dtype.as_str(), shape(&it.dims, &it.reshape)));
    let [inputs, outputs] =
        [inputs.collect::<Vec<_>>().join(" "), outputs.collect::<Vec<_>>().join(" ")];
    let batching = match config.batching {
        Batching::Dynamic(_) => " dynamic",
        _ => "",
    };
    Ok(format!("{inputs} -> {outputs} max {}{batching}", config.max_batch_size))
}

#[test]
fn what_is_not_written_is_read_off_the_model() {
    let add_sub = "INPUT0:FP32[16] INPUT1:FP32[16] -> OUTPUT0:FP32[16] OUTPUT1:FP32[16]";
    for (model, text, expected) in [
        ("add_sub_fp32", "", format!("{add_sub} max 4 dynamic")),
        ("add_sub_fp32", "max_batch_size: 8", format!("{add_sub} max 8 dynamic")),
        ("add_sub_fp32", "max_batch_size: 1", format!("{add_sub} max 1")),
        ("simple_identity", "", "INPUT0:BYTES[16] -> OUTPUT0:BYTES[16] max 4 dynamic".into()),
        ("identity_fp32", "", "INPUT0:FP32[-1] -> OUTPUT0:FP32[-1] max 4 dynamic".into()),
        ("symbolic", "", "INPUT0:FP32[2, -1] -> OUTPUT0:FP32[2, -1] max 0".into()),
        ("scalar", "", "INPUT0:FP32[1] -> OUTPUT0:FP32[1] max 0".into()),
        ("only_rows", "", "INPUT0:FP32[1]/[] -> OUTPUT0:FP32[1]/[] max 4 dynamic".into()),
        ("mixed", "", "INPUT0:FP32[-1, 4] INPUT1:FP32[1, 4] -> OUTPUT0:FP32[-1, 4] max 0".into()),
        ("optional", "", "INPUT0:FP32[4] -> OUTPUT0:FP32[4] max 0".into()),
        // Whole dims that are written say that there is no batch.
        (
            "identity_fp32",
            "input { name: 'INPUT0' data_type: TYPE_FP32 dims: [-1, -1] }",
            "INPUT0:FP32[-1, -1] -> OUTPUT0:FP32[-1, -1] max 0".into(),
        ),
        (
            "identity_fp32",
            "output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }",
            "INPUT0:FP32[-1] -> OUTPUT0:FP32[-1] max 4 dynamic".into(),
        ),
        // Both sides are there: only the gaps are filled.
        (
            "add_sub_fp32",
            "max_batch_size: 2 input { name: 'INPUT1' } input { name: 'INPUT0' } output { name: 'OUTPUT1' }",
            "INPUT1:FP32[16] INPUT0:FP32[16] -> OUTPUT1:FP32[16] max 2".into(),
        ),
        (
            "sequence",
            "output { name: 'OUTPUT0' }",
            "INPUT0:FP32[4] -> OUTPUT0:FP32[4] max 0".into(),
        ),
    ] {
        assert_eq!(completed(model, text, &[]).unwrap(), expected, "{model} {text}");
    }
}

#[test]
fn the_command_line_says_how_large_batches_are() {
    let key = "default-max-batch-size";
    for (options, expected) in [
        (&[("onnxruntime", key, "32")][..], "[16] max 32 dynamic"),
        (&[("", key, "2")], "[16] max 2 dynamic"),
        (&[("", key, "2"), ("onnxruntime", key, "1")], "[16] max 1"),
        (&[("onnxruntime", key, "0")], "[-1, 16] max 0"),
    ] {
        let found = completed("add_sub_fp32", "", options).unwrap();
        assert!(found.ends_with(expected), "{options:?}: {found}");
    }
    let error = completed("add_sub_fp32", "", &[("onnxruntime", key, "many")]).unwrap_err();
    let expected =
        "--backend-config=onnxruntime,default-max-batch-size is 'many', expected a number from 0";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn what_the_model_cannot_do_is_not_filled_in() {
    for (model, text, expected) in [
        (
            "symbolic",
            "max_batch_size: 4",
            "autofill failed for model 'm': model does not support batching while non-zero \
             max_batch_size is specified",
        ),
        (
            "mixed",
            "max_batch_size: 1",
            "autofill failed for model 'm': model does not support batching while non-zero \
             max_batch_size is specified",
        ),
        (
            "add_sub_fp32",
            "input { name: 'INPUT0' dims: [16] } input { name: 'INPUT1' dims: [-1, 16] }",
            "unable to autofill for 'm', model tensor configurations are contradicting each other \
             in terms of whether batching is supported",
        ),
        (
            "sequence",
            "",
            "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'pair', expected 'ONNX_TYPE_TENSOR'.",
        ),
        ("float8", "", "unsupported datatype TYPE_F8_E4M3FN for output 'OUTPUT0' for model 'm'"),
    ] {
        let error = completed(model, text, &[]).unwrap_err();
        assert_eq!(error.to_string(), expected, "{model} {text}");
    }
}

#[test]
fn a_whole_config_is_left_alone() {
    let text = "input { name: 'INPUT0' data_type: TYPE_FP32 dims: [9] }
                output { name: 'Z' data_type: TYPE_INT8 dims: [1] }";
    let written = config::json::print(&draft(text).proto);
    assert_eq!(complete(&settings(), &place("no such model"), &written).unwrap(), None);
}
