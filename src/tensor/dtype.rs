//! Element types, in the names of the protocol and of the config.

/// What a tensor's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DataType {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Fp32,
    Fp64,
    Bytes,
    Bf16,
}

impl DataType {
    pub fn size(self) -> Option<usize> {
        use DataType::*;
        match self {
            Bool | Uint8 | Int8 => Some(1),
            Uint16 | Int16 | Fp16 | Bf16 => Some(2),
            Uint32 | Int32 | Fp32 => Some(4),
            Uint64 | Int64 | Fp64 => Some(8),
            Bytes => None,
        }
    }
    pub fn as_str(self) -> &'static str {
        use DataType::*;
        match self {
            Bool => "BOOL",
            Uint8 => "UINT8",
            Uint16 => "UINT16",
            Uint32 => "UINT32",
            Uint64 => "UINT64",
            Int8 => "INT8",
            Int16 => "INT16",
            Int32 => "INT32",
            Int64 => "INT64",
            Fp16 => "FP16",
            Fp32 => "FP32",
            Fp64 => "FP64",
            Bytes => "BYTES",
            Bf16 => "BF16",
        }
    }
}
