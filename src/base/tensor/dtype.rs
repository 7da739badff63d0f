//! The element types of tensors, under each of their three names.

use troupe_proto::inference;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// KServe name, configuration name and number, bytes per element (none: elements vary).
type Row = (DataType, &'static str, inference::DataType, Option<usize>);

/// In the order of the variants, so that `self as usize` is an index.
const ROWS: [Row; 14] = [
    (DataType::Bool, "BOOL", inference::DataType::TypeBool, Some(1)),
    (DataType::Uint8, "UINT8", inference::DataType::TypeUint8, Some(1)),
    (DataType::Uint16, "UINT16", inference::DataType::TypeUint16, Some(2)),
    (DataType::Uint32, "UINT32", inference::DataType::TypeUint32, Some(4)),
    (DataType::Uint64, "UINT64", inference::DataType::TypeUint64, Some(8)),
    (DataType::Int8, "INT8", inference::DataType::TypeInt8, Some(1)),
    (DataType::Int16, "INT16", inference::DataType::TypeInt16, Some(2)),
    (DataType::Int32, "INT32", inference::DataType::TypeInt32, Some(4)),
    (DataType::Int64, "INT64", inference::DataType::TypeInt64, Some(8)),
    (DataType::Fp16, "FP16", inference::DataType::TypeFp16, Some(2)),
    (DataType::Fp32, "FP32", inference::DataType::TypeFp32, Some(4)),
    (DataType::Fp64, "FP64", inference::DataType::TypeFp64, Some(8)),
    (DataType::Bytes, "BYTES", inference::DataType::TypeString, None),
    (DataType::Bf16, "BF16", inference::DataType::TypeBf16, Some(2)),
];

/// What numpy, Python and others call them, in upper case.
const FOREIGN_NAMES: [(&str, DataType); 22] = [
    ("BOOL_", DataType::Bool),
    ("BOOLEAN", DataType::Bool),
    ("STRING", DataType::Bytes),
    ("STR", DataType::Bytes),
    ("TEXT", DataType::Bytes),
    ("OBJECT", DataType::Bytes),
    ("OBJECT_", DataType::Bytes),
    ("STR_", DataType::Bytes),
    ("BYTES_", DataType::Bytes),
    ("FLOAT16", DataType::Fp16),
    ("HALF", DataType::Fp16),
    ("F16", DataType::Fp16),
    ("BFLOAT16", DataType::Bf16),
    ("FLOAT32", DataType::Fp32),
    ("FLOAT", DataType::Fp32),
    ("F32", DataType::Fp32),
    ("FLOAT64", DataType::Fp64),
    ("DOUBLE", DataType::Fp64),
    ("F64", DataType::Fp64),
    ("INT", DataType::Int64),
    ("INTEGER", DataType::Int64),
    ("LONG", DataType::Int64),
];

impl DataType {
    /// Bytes of one element; `None` when elements vary in length.
    pub fn size(self) -> Option<usize> {
        self.row().3
    }

    /// The name requests use: `FP32`, `BYTES`.
    pub fn as_str(self) -> &'static str {
        self.row().1
    }

    /// Reads the name requests use.
    pub fn parse(name: &str) -> Option<DataType> {
        ROWS.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The type that another name probably means: numpy's, Python's, that of configurations, or
    /// one in lower case.
    pub fn meant_by(name: &str) -> Option<DataType> {
        let name = name.rsplit('.').next()?;
        let upper = name.to_ascii_uppercase();
        let upper = upper.strip_prefix("TYPE_").unwrap_or(&upper);
        let parsed = DataType::parse(upper);
        parsed.or_else(|| FOREIGN_NAMES.iter().find(|it| it.0 == upper).map(|it| it.1))
    }

    /// The name configurations use: `TYPE_FP32`, `TYPE_STRING`.
    pub fn config_name(self) -> &'static str {
        self.row().2.as_str_name()
    }

    /// Reads the number configurations carry; `None` for `TYPE_INVALID` and unknown ones.
    pub fn from_proto(number: i32) -> Option<DataType> {
        ROWS.iter().find(|row| row.2 as i32 == number).map(|row| row.0)
    }

    /// The number configurations carry.
    pub fn to_proto(self) -> i32 {
        self.row().2 as i32
    }

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_number_leads_back_to_its_type() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!(row.0 as usize, index);
            assert_eq!(DataType::parse(row.0.as_str()), Some(row.0));
            assert_eq!(DataType::from_proto(row.0.to_proto()), Some(row.0));
        }
    }

    #[test]
    fn strings_have_two_names_and_no_size() {
        assert_eq!(DataType::Bytes.as_str(), "BYTES");
        assert_eq!(DataType::Bytes.config_name(), "TYPE_STRING");
        assert_eq!(DataType::Bytes.size(), None);
        assert_eq!(DataType::parse("TYPE_STRING"), None);
        assert_eq!(DataType::from_proto(0), None);
    }

    #[test]
    fn names_of_others_mean_a_type() {
        for (name, expected) in [
            ("fp32", Some(DataType::Fp32)),
            ("np.float32", Some(DataType::Fp32)),
            ("TYPE_INT64", Some(DataType::Int64)),
            ("TYPE_STRING", Some(DataType::Bytes)),
            ("str", Some(DataType::Bytes)),
            ("torch.bfloat16", Some(DataType::Bf16)),
            ("complex64", None),
            ("", None),
        ] {
            assert_eq!(DataType::meant_by(name), expected, "{name}");
        }
    }
}
