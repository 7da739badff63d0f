//! Regions of shared memory as a client makes and uses them.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

use serde_json::{Value, json};
use troupe_proto::inference::{
    InferParameter, ModelInferRequest,
    infer_parameter::ParameterChoice::{Int64Param, StringParam},
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
};

use super::{Answer, Server};

/// An object of so many bytes, all of them `byte`; it is removed when this is dropped.
pub(crate) struct Object {
    pub(crate) key: String,
    file: fs::File,
}

impl Object {
    pub(crate) fn new(size: usize, byte: u8) -> Object {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let key = format!("troupe_test_{}_{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
        fs::write(path(&key), vec![byte; size]).unwrap();
        let file = fs::OpenOptions::new().read(true).write(true).open(path(&key)).unwrap();
        Object { key, file }
    }

    pub(crate) fn resize(&self, size: u64) {
        self.file.set_len(size).unwrap();
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(path(&self.key)).unwrap()
    }

    pub(crate) fn put(&self, bytes: &[u8]) {
        self.file.write_all_at(bytes, 0).unwrap();
    }

    pub(crate) fn remove(&self) {
        fs::remove_file(path(&self.key)).unwrap();
    }

    /// Registers all of it under its key.
    #[track_caller]
    pub(crate) fn registered(self, server: &Server) -> Object {
        let size = self.file.metadata().unwrap().len();
        register(server, &self.key, &json!({"key": self.key, "byte_size": size})).ok();
        self
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = fs::remove_file(path(&self.key));
    }
}

pub(crate) fn path(key: &str) -> PathBuf {
    PathBuf::from("/dev/shm").join(key)
}

pub(crate) fn register(server: &Server, name: &str, body: &Value) -> Answer {
    server.http.post(&format!("/v2/systemsharedmemory/region/{name}/register"), body)
}

pub(crate) fn unregister(server: &Server, name: &str) {
    server.http.post(&format!("/v2/systemsharedmemory/region/{name}/unregister"), "").ok();
}

pub(crate) fn place(region: &str, offset: u64, size: u64) -> Value {
    json!({
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": size,
    })
}

/// Bytes `x` of a region to `y` in another.
pub(crate) fn request(shape: u64, input: Value, output: Value) -> Value {
    json!({
        "inputs": [{"name": "x", "datatype": "UINT8", "shape": [shape], "parameters": input}],
        "outputs": [{"name": "y", "parameters": output}],
    })
}

/// The same over gRPC; places are an offset and a size.
pub(crate) fn over_grpc(region: &str, input: [u64; 2], output: [u64; 2]) -> ModelInferRequest {
    let parameters = |place: [u64; 2]| {
        let values = [
            ("shared_memory_region", StringParam(region.to_owned())),
            ("shared_memory_offset", Int64Param(place[0] as i64)),
            ("shared_memory_byte_size", Int64Param(place[1] as i64)),
        ];
        let value = |choice| InferParameter { parameter_choice: Some(choice) };
        values.into_iter().map(|(name, choice)| (name.to_owned(), value(choice))).collect()
    };
    ModelInferRequest {
        model_name: "native".to_owned(),
        inputs: vec![InferInputTensor {
            name: "x".to_owned(),
            datatype: "UINT8".to_owned(),
            shape: vec![4],
            parameters: parameters(input),
            contents: None,
        }],
        outputs: vec![InferRequestedOutputTensor {
            name: "y".to_owned(),
            parameters: parameters(output),
        }],
        ..ModelInferRequest::default()
    }
}
