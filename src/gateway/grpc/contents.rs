//! Turns the typed lists of `InferTensorContents` into the bytes a tensor holds.

use bytes::Bytes;

use crate::size_error::InputContext;
use troupe_base::{
    error::{Error, Result},
    tensor::DataType,
};
use troupe_proto::inference::InferTensorContents;

/// The one list that is filled, as little-endian elements of type `dtype`.
pub(super) fn pack(
    contents: &InferTensorContents,
    dtype: DataType,
    about: &InputContext,
) -> Result<Bytes> {
    let mut is_found = false;
    for (length, list_type) in lists(contents, dtype) {
        if length == 0 {
            continue;
        }
        if is_found {
            return Err(unexpected(about, ", binary data was already supplied."));
        }
        if list_type != dtype {
            let types = format!(
                " of type '{}', expected datatype '{}'",
                list_type.as_str(),
                dtype.as_str()
            );
            return Err(unexpected(about, &types));
        }
        is_found = true;
    }
    if is_found { elements(contents, dtype, about) } else { Ok(Bytes::new()) }
}

fn unexpected(about: &InputContext, why: &str) -> Error {
    let InputContext { input, model, .. } = about;
    Error::invalid(format!(
        "unexpected explicit tensor data for input tensor '{input}' for model '{model}'{why}"
    ))
}

/// Each list's length, and the type its elements have when the input's is `dtype`.
fn lists(contents: &InferTensorContents, dtype: DataType) -> [(usize, DataType); 8] {
    use DataType::*;
    let narrow = |narrow: &[DataType], wide| if narrow.contains(&dtype) { dtype } else { wide };
    [
        (contents.bool_contents.len(), Bool),
        (contents.int_contents.len(), narrow(&[Int8, Int16], Int32)),
        (contents.int64_contents.len(), Int64),
        (contents.uint_contents.len(), narrow(&[Uint8, Uint16], Uint32)),
        (contents.uint64_contents.len(), Uint64),
        (contents.fp32_contents.len(), Fp32),
        (contents.fp64_contents.len(), Fp64),
        (contents.bytes_contents.len(), Bytes),
    ]
}

fn elements(
    contents: &InferTensorContents,
    dtype: DataType,
    about: &InputContext,
) -> Result<Bytes> {
    let it = contents;
    match dtype {
        DataType::Bool => Ok(it.bool_contents.iter().map(|it| u8::from(*it)).collect()),
        DataType::Int8 => narrowed(&it.int_contents, dtype, about, i8::to_le_bytes),
        DataType::Int16 => narrowed(&it.int_contents, dtype, about, i16::to_le_bytes),
        DataType::Int32 => Ok(packed(&it.int_contents, i32::to_le_bytes)),
        DataType::Int64 => Ok(packed(&it.int64_contents, i64::to_le_bytes)),
        DataType::Uint8 => narrowed(&it.uint_contents, dtype, about, u8::to_le_bytes),
        DataType::Uint16 => narrowed(&it.uint_contents, dtype, about, u16::to_le_bytes),
        DataType::Uint32 => Ok(packed(&it.uint_contents, u32::to_le_bytes)),
        DataType::Uint64 => Ok(packed(&it.uint64_contents, u64::to_le_bytes)),
        DataType::Fp32 => Ok(packed(&it.fp32_contents, f32::to_le_bytes)),
        DataType::Fp64 => Ok(packed(&it.fp64_contents, f64::to_le_bytes)),
        DataType::Bytes => Ok(strings(&it.bytes_contents)),
        // They have no list, so `pack` has refused whatever was filled.
        DataType::Fp16 | DataType::Bf16 => Ok(Bytes::new()),
    }
}

fn packed<T: Copy, const N: usize>(list: &[T], to_bytes: fn(T) -> [u8; N]) -> Bytes {
    let mut packed = Vec::with_capacity(list.len() * N);
    list.iter().for_each(|it| packed.extend_from_slice(&to_bytes(*it)));
    packed.into()
}

/// Elements that travel in 32 bits but have fewer.
fn narrowed<W: Copy + std::fmt::Display, T: TryFrom<W>, const N: usize>(
    list: &[W],
    dtype: DataType,
    about: &InputContext,
    to_bytes: fn(T) -> [u8; N],
) -> Result<Bytes> {
    let mut packed = Vec::with_capacity(list.len() * N);
    for wide in list {
        let narrow = T::try_from(*wide).map_err(|_| {
            let InputContext { input, model, .. } = about;
            Error::invalid(format!(
                "value {wide} of input tensor '{input}' for model '{model}' does not fit {}",
                dtype.as_str()
            ))
        })?;
        packed.extend_from_slice(&to_bytes(narrow));
    }
    Ok(packed.into())
}

fn strings(list: &[Bytes]) -> Bytes {
    let mut packed = Vec::with_capacity(list.iter().map(|it| 4 + it.len()).sum());
    for element in list {
        // No message is longer than 2 GiB, so neither is a string in it.
        packed.extend_from_slice(&(element.len() as u32).to_le_bytes());
        packed.extend_from_slice(element);
    }
    packed.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Contents = InferTensorContents;

    fn check(contents: Contents, dtype: DataType, expected: &[u8]) {
        let about = InputContext { input: "i", model: "m", id: "" };
        assert_eq!(pack(&contents, dtype, &about).unwrap(), expected, "{dtype:?}");
    }

    #[test]
    fn every_type_is_packed_little_endian() {
        use DataType::{
            Bool, Fp32, Fp64, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64,
        };
        let none = Contents::default;
        check(Contents { bool_contents: vec![true, false], ..none() }, Bool, &[1, 0]);
        check(Contents { int_contents: vec![-2, 1], ..none() }, Int8, &[254, 1]);
        check(Contents { int_contents: vec![-2], ..none() }, Int16, &[254, 255]);
        check(Contents { int_contents: vec![-2], ..none() }, Int32, &[254, 255, 255, 255]);
        check(Contents { int64_contents: vec![258], ..none() }, Int64, &[2, 1, 0, 0, 0, 0, 0, 0]);
        check(Contents { uint_contents: vec![255], ..none() }, Uint8, &[255]);
        check(Contents { uint_contents: vec![258], ..none() }, Uint16, &[2, 1]);
        check(Contents { uint_contents: vec![258], ..none() }, Uint32, &[2, 1, 0, 0]);
        check(Contents { uint64_contents: vec![1], ..none() }, Uint64, &[1, 0, 0, 0, 0, 0, 0, 0]);
        check(Contents { fp32_contents: vec![1.0], ..none() }, Fp32, &1f32.to_le_bytes());
        check(Contents { fp64_contents: vec![1.0], ..none() }, Fp64, &1f64.to_le_bytes());
        let texts = vec![bytes::Bytes::from_static(b"a\0"), bytes::Bytes::new()];
        let bytes = Contents { bytes_contents: texts, ..none() };
        check(bytes, DataType::Bytes, b"\x02\0\0\0a\0\0\0\0\0");
        check(none(), Fp32, &[]);
    }

    #[test]
    fn lists_that_do_not_fit_the_input_are_refused() {
        let none = Contents::default;
        let ints = Contents { int_contents: vec![300], ..none() };
        let both = Contents { fp32_contents: vec![1.0], fp64_contents: vec![1.0], ..none() };
        let start = "unexpected explicit tensor data for input tensor 'i' for model 'm'";
        for (contents, dtype, expected) in [
            (&ints, DataType::Fp32, format!("{start} of type 'INT32', expected datatype 'FP32'")),
            (&ints, DataType::Fp16, format!("{start} of type 'INT32', expected datatype 'FP16'")),
            (&both, DataType::Fp32, format!("{start}, binary data was already supplied.")),
            (
                &ints,
                DataType::Int8,
                "value 300 of input tensor 'i' for model 'm' does not fit INT8".to_owned(),
            ),
        ] {
            let error = pack(contents, dtype, &InputContext { input: "i", model: "m", id: "" })
                .unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }
}
