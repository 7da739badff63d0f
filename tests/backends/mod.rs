//! ONNX models, native ops, and devices.

pub(crate) mod gpus;
mod hub_models;
pub(crate) mod ocr;
pub(crate) mod onnx;
pub(crate) mod onnx_library;
pub(crate) mod text_ops;
pub(crate) mod vision;
