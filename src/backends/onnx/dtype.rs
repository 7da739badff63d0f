//! The element types of ONNX Runtime and ours.

use ort::value::TensorElementType as Onnx;

use troupe_base::tensor::DataType;

const ROWS: [(DataType, Onnx); 14] = [
    (DataType::Bool, Onnx::Bool),
    (DataType::Uint8, Onnx::Uint8),
    (DataType::Uint16, Onnx::Uint16),
    (DataType::Uint32, Onnx::Uint32),
    (DataType::Uint64, Onnx::Uint64),
    (DataType::Int8, Onnx::Int8),
    (DataType::Int16, Onnx::Int16),
    (DataType::Int32, Onnx::Int32),
    (DataType::Int64, Onnx::Int64),
    (DataType::Fp16, Onnx::Float16),
    (DataType::Fp32, Onnx::Float32),
    (DataType::Fp64, Onnx::Float64),
    (DataType::Bytes, Onnx::String),
    (DataType::Bf16, Onnx::Bfloat16),
];

/// Every type of ours has one there.
pub(super) fn to_onnx(dtype: DataType) -> Onnx {
    ROWS.iter().find(|row| row.0 == dtype).map_or(Onnx::Undefined, |row| row.1)
}

/// `None` for a type that requests cannot carry.
pub(super) fn from_onnx(element: Onnx) -> Option<DataType> {
    ROWS.iter().find(|row| row.1 == element).map(|row| row.0)
}

/// As in Triton's messages: `FP32`, `BYTES`; ONNX Runtime's own name where requests have none.
pub(super) fn name(element: Onnx) -> String {
    let ours = from_onnx(element).map(|it| it.as_str().to_owned());
    ours.unwrap_or_else(|| element.to_string().to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_leads_there_and_back() {
        for (dtype, _) in ROWS {
            assert_eq!(from_onnx(to_onnx(dtype)), Some(dtype));
        }
        assert_eq!(from_onnx(Onnx::Complex64), None);
        assert_eq!(
            (name(Onnx::String), name(Onnx::Float8E5M2)),
            ("BYTES".into(), "F8_E5M2".into())
        );
    }
}
