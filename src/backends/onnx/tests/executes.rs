//! Tensors of every type and shape go in and come out.

use std::thread;

use bytes::Bytes;

use troupe_base::backend::Batch;

use super::*;

const TYPES: [(&str, DataType); 14] = [
    ("bool", DataType::Bool),
    ("uint8", DataType::Uint8),
    ("uint16", DataType::Uint16),
    ("uint32", DataType::Uint32),
    ("uint64", DataType::Uint64),
    ("int8", DataType::Int8),
    ("int16", DataType::Int16),
    ("int32", DataType::Int32),
    ("int64", DataType::Int64),
    ("fp16", DataType::Fp16),
    ("bf16", DataType::Bf16),
    ("fp32", DataType::Fp32),
    ("fp64", DataType::Fp64),
    ("string", DataType::Bytes),
];

/// `count` elements that are easily spoiled, starting at an odd address if `odd`.
fn elements(dtype: DataType, count: usize, odd: bool) -> Bytes {
    let texts: [&[u8]; 4] = [b"", b"a\0\xff b", b"\xf0\x28", "é".as_bytes()];
    let element = |index: usize| match dtype.size() {
        Some(_) if dtype == DataType::Bool => vec![(index % 2) as u8],
        Some(size) => (0..size).map(|byte| (index * 37 + byte * 101) as u8).collect(),
        None => {
            let text = texts[index % texts.len()];
            [&(text.len() as u32).to_le_bytes()[..], text].concat()
        }
    };
    let all: Vec<u8> = (0..count).flat_map(element).collect();
    let start = usize::from(odd);
    let shifted = Bytes::from([&[0][..start], &all].concat());
    shifted.slice(start..)
}

#[test]
fn every_type_goes_through_wherever_its_bytes_lie() {
    let (config, mut executor) = opened("every_type", "").unwrap();
    assert_eq!(config.max_batch_size, 4);
    for (rows, columns, odd) in [(2, 3, false), (2, 3, true), (1, 1, true), (4, 0, false)] {
        let count = (rows * columns) as usize;
        let tensors =
            TYPES.map(|(_, dtype)| tensor(dtype, &[rows, columns], elements(dtype, count, odd)));
        let outputs = executor.execute(Batch::of_tensors(tensors.to_vec(), rows as u32)).unwrap();
        for ((name, dtype), (given, output)) in TYPES.iter().zip(tensors.iter().zip(outputs)) {
            let (given, output) = (given.as_ref().unwrap(), output.unwrap());
            assert_eq!(output.dtype(), *dtype, "{name}");
            assert_eq!(output.shape(), [rows, columns], "{name}");
            assert_eq!(output.data(), given.data(), "{name} at {}", given.data().as_ptr() as usize);
        }
    }
}

#[test]
fn whole_shapes_may_have_dims_of_any_size() {
    let mut executor = executor("symbolic", "");
    for width in [1, 5, 0] {
        let values: Vec<f32> = (0..2 * width).map(|it| it as f32).collect();
        let shape = vec![2, width];
        let outputs =
            executor.execute(Batch::of_tensors(vec![floats(&shape, &values)], 0)).unwrap();
        assert_eq!(read(&outputs[0]), (shape, values));
    }
}

#[test]
fn a_tensor_without_dimensions_has_one_for_clients() {
    let mut executor = executor("scalar", "");
    let outputs = executor.execute(Batch::of_tensors(vec![floats(&[1], &[2.5])], 0)).unwrap();
    assert_eq!(read(&outputs[0]), (vec![1], vec![3.5]));
}

#[test]
fn a_model_of_nothing_but_rows_sees_them_reshaped() {
    let mut executor = executor("only_rows", "");
    let outputs =
        executor.execute(Batch::of_tensors(vec![floats(&[3], &[1.0, 2.0, 3.0])], 3)).unwrap();
    assert_eq!(read(&outputs[0]), (vec![3], vec![2.0, 4.0, 6.0]));
}

#[test]
fn a_model_may_give_no_elements() {
    let mut executor = executor("repeat", "max_batch_size: 0");
    for count in [3_i64, 0, 1] {
        let count_tensor = tensor(DataType::Int64, &[1], count.to_le_bytes().to_vec());
        let outputs = executor.execute(Batch::of_tensors(vec![count_tensor], 0)).unwrap();
        assert_eq!(read(&outputs[0]), (vec![count], vec![1.5; count as usize]));
    }
}

#[test]
fn an_input_with_a_value_in_the_file_may_be_left_out() {
    let text = "input { name: 'INPUT0' data_type: TYPE_FP32 dims: [4] }
                input { name: 'scale' data_type: TYPE_FP32 dims: [4] optional: true }
                output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [4] }";
    let mut executor = executor("optional", text);
    let input = floats(&[4], &[1.0, 2.0, 3.0, 4.0]);
    let outputs = executor.execute(Batch::of_tensors(vec![input.clone(), None], 0)).unwrap();
    assert_eq!(read(&outputs[0]).1, [2.0, 4.0, 6.0, 8.0]);
    let scale = floats(&[4], &[0.0, 1.0, 10.0, 100.0]);
    let outputs = executor.execute(Batch::of_tensors(vec![input, scale], 0)).unwrap();
    assert_eq!(read(&outputs[0]).1, [0.0, 2.0, 30.0, 400.0]);
}

#[test]
fn outputs_outlive_the_request_and_the_model() {
    let mut executor = executor("given_back", "max_batch_size: 0");
    let given: Vec<f32> = (0..1000).map(|it| it as f32 - 500.0).collect();
    let outputs = executor.execute(Batch::of_tensors(vec![floats(&[1000], &given)], 0)).unwrap();
    drop(executor);
    // On another thread, as the gateways read them.
    thread::spawn(move || {
        assert_eq!(read(&outputs[0]), (vec![1000], given.clone()));
        let positive: Vec<f32> = given.iter().map(|it| it.max(0.0)).collect();
        assert_eq!(read(&outputs[1]), (vec![1000], positive));
        assert_eq!(read(&outputs[2]), (vec![2], vec![3.0, 4.0]));
    })
    .join()
    .unwrap();
}

#[test]
fn only_the_outputs_of_the_config_are_asked_for() {
    let text = "input { name: 'INPUT0' data_type: TYPE_FP32 dims: [4] }
                output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [4] }";
    let mut executor = executor("sequence", text);
    let outputs = executor.execute(Batch::of_tensors(vec![floats(&[4], &[1.0; 4])], 0)).unwrap();
    assert_eq!(outputs.len(), 1);
    assert_eq!(read(&outputs[0]).1, [1.0; 4]);
}

#[test]
fn a_model_may_be_a_folder_with_weights_beside_it() {
    let mut executor = executor("external", "");
    let outputs =
        executor.execute(Batch::of_tensors(vec![floats(&[1, 64], &[1.0; 64])], 1)).unwrap();
    let expected: Vec<f32> = (1..65).map(|it| it as f32).collect();
    assert_eq!(read(&outputs[0]), (vec![1, 64], expected));
}

#[test]
fn reshapes_of_a_config_are_what_the_model_sees() {
    let text = "input { name: 'INPUT0' data_type: TYPE_FP32 dims: [6] reshape { shape: [2, 3] } }
                output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [2, -1] }";
    let mut executor = executor("symbolic", text);
    let outputs = executor.execute(Batch::of_tensors(vec![floats(&[2, 3], &[1.0; 6])], 0)).unwrap();
    assert_eq!(read(&outputs[0]), (vec![2, 3], vec![1.0; 6]));
}

#[test]
fn options_of_a_session_do_not_change_what_it_computes() {
    let parameters = [
        ("intra_op_thread_count", "2"),
        ("inter_op_thread_count", "2"),
        ("execution_mode", "1"),
        ("enable_mem_arena", "0"),
        ("enable_mem_pattern", "false"),
        ("session.use_device_allocator_for_initializers", "1"),
        ("session.intra_op.allow_spinning", "1"),
    ];
    let parameters = parameters.map(|(key, value)| parameter(key, value)).concat();
    let levels = [-1, 0, 1, 2]
        .map(|level| format!("optimization {{ graph {{ level: {level} }} }}\n{parameters}"));
    let shrinking = parameter("memory.enable_memory_arena_shrinkage", "cpu:0");
    for text in levels.into_iter().chain([shrinking]) {
        let mut executor = executor("add_sub_fp32", &text);
        let (a, b) = (floats(&[1, 16], &[3.0; 16]), floats(&[1, 16], &[1.0; 16]));
        let outputs = executor.execute(Batch::of_tensors(vec![a, b], 1)).unwrap();
        assert_eq!(read(&outputs[0]).1, [4.0; 16], "{text}");
        assert_eq!(read(&outputs[1]).1, [2.0; 16], "{text}");
    }
}

#[test]
fn a_failed_run_is_an_error_and_the_next_one_works() {
    let mut executor = executor("gather", "");
    let index = |it: i64| tensor(DataType::Int64, &[1, 1], it.to_le_bytes().to_vec());
    let text = failure(executor.execute(Batch::of_tensors(vec![index(3)], 1)));
    assert!(text.starts_with("onnx runtime error 2: "), "{text}");
    assert!(text.contains("indices element out of data bounds, idx=3"), "{text}");
    let outputs = executor.execute(Batch::of_tensors(vec![index(2)], 1)).unwrap();
    assert_eq!(read(&outputs[0]), (vec![1, 1], vec![30.0]));
}

#[test]
fn an_output_that_is_not_as_declared_is_an_error() {
    let mut executor = executor("doubles_rows", "");
    let text = failure(executor.execute(Batch::of_tensors(vec![floats(&[2, 4], &[1.0; 8])], 2)));
    assert_eq!(text, "output 'OUTPUT0' of model 'm' has shape [4,4], expected [2,4]");
}
