//! Turns the typed lists of `InferTensorContents` into the bytes a tensor holds, straight from the
//! message.

use bytes::Bytes;

use super::message::{Contents, Fields, Malformed, WireValue};
use crate::size_error::InputContext;
use troupe_base::{
    error::{Error, Result},
    tensor::DataType,
};

/// Lists of `InferTensorContents`; the number of a field is one more than its place here.
const LISTS: usize = 8;

/// Smaller elements are copied: a slice would keep all of the message.
const MIN_SLICE_BYTES: usize = 64 << 10;

/// The one list that is filled, as little-endian elements of type `dtype`. `entry` is what the
/// contents are slices of.
pub(super) fn pack(
    contents: &Contents<'_>,
    entry: &Bytes,
    dtype: DataType,
    about: &InputContext,
) -> Result<Bytes> {
    let lengths = lengths(contents)?;
    let mut found = None;
    for (index, (length, list_type)) in lengths.into_iter().zip(list_types(dtype)).enumerate() {
        if length == 0 {
            continue;
        }
        if found.is_some() {
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
        found = Some(TypedList { contents, number: index as u32 + 1, length });
    }
    match found {
        Some(list) => list.pack(entry, dtype, about),
        None => Ok(Bytes::new()),
    }
}

fn unexpected(about: &InputContext, why: &str) -> Error {
    let InputContext { input, model, .. } = about;
    Error::invalid(format!(
        "unexpected explicit tensor data for input tensor '{input}' for model '{model}'{why}"
    ))
}

/// The type that the elements of each list have when the input's is `dtype`.
fn list_types(dtype: DataType) -> [DataType; LISTS] {
    use DataType::*;
    let narrow = |narrow: &[DataType], wide| if narrow.contains(&dtype) { dtype } else { wide };
    [
        Bool,
        narrow(&[Int8, Int16], Int32),
        Int64,
        narrow(&[Uint8, Uint16], Uint32),
        Uint64,
        Fp32,
        Fp64,
        Bytes,
    ]
}

/// Elements of each list.
fn lengths(contents: &Contents<'_>) -> Result<[usize; LISTS], Malformed> {
    let mut lengths = [0; LISTS];
    for part in &contents.0 {
        let mut fields = Fields::of(part);
        while let Some((number, value)) = fields.next()? {
            let Some(length) = lengths.get_mut((number as usize).wrapping_sub(1)) else { continue };
            *length += match (number, value) {
                (8, WireValue::Bytes(_))
                | (6, WireValue::Fixed32(_))
                | (7, WireValue::Fixed64(_)) => 1,
                (6, WireValue::Bytes(packed)) => whole(packed.as_chunks::<4>())?.len(),
                (7, WireValue::Bytes(packed)) => whole(packed.as_chunks::<8>())?.len(),
                (1..=5, WireValue::Varint(_)) => 1,
                // The last byte of each is the only one below 128.
                (1..=5, WireValue::Bytes(packed)) if packed.last().is_none_or(|it| *it < 0x80) => {
                    packed.iter().filter(|it| **it < 0x80).count()
                }
                (1..=5, WireValue::Bytes(_)) => return Err(Malformed("buffer underflow")),
                _ => return Err(Malformed("invalid wire type")),
            };
        }
    }
    Ok(lengths)
}

fn whole<'a, T>(chunks: (&'a [T], &[u8])) -> Result<&'a [T], Malformed> {
    if chunks.1.is_empty() { Ok(chunks.0) } else { Err(Malformed("buffer underflow")) }
}

/// A list of elements, spread over the contents.
struct TypedList<'a> {
    contents: &'a Contents<'a>,
    /// Of its field.
    number: u32,
    /// Elements.
    length: usize,
}

impl<'a> TypedList<'a> {
    fn pack(&self, entry: &Bytes, dtype: DataType, about: &InputContext) -> Result<Bytes> {
        match dtype {
            DataType::Bool => self.varints(|it| Ok([u8::from(it != 0)])),
            DataType::Int8 => self.varints(|it| narrow(it as i32, dtype, about, i8::to_le_bytes)),
            DataType::Int16 => self.varints(|it| narrow(it as i32, dtype, about, i16::to_le_bytes)),
            DataType::Int32 => self.varints(|it| Ok((it as i32).to_le_bytes())),
            DataType::Int64 | DataType::Uint64 => self.varints(|it| Ok(it.to_le_bytes())),
            DataType::Uint8 => self.varints(|it| narrow(it as u32, dtype, about, u8::to_le_bytes)),
            DataType::Uint16 => {
                self.varints(|it| narrow(it as u32, dtype, about, u16::to_le_bytes))
            }
            DataType::Uint32 => self.varints(|it| Ok((it as u32).to_le_bytes())),
            DataType::Fp32 => self.fixed(entry, 4),
            DataType::Fp64 => self.fixed(entry, 8),
            DataType::Bytes => self.strings(),
            // They have no list, so `pack` has refused whatever was filled.
            DataType::Fp16 | DataType::Bf16 => Ok(Bytes::new()),
        }
    }

    /// The values of the list's fields in their order.
    fn each(&self, mut take: impl FnMut(WireValue<'a>) -> Result<()>) -> Result<()> {
        for part in &self.contents.0 {
            let mut fields = Fields::of(part);
            while let Some((number, value)) = fields.next()? {
                if number == self.number {
                    take(value)?;
                }
            }
        }
        Ok(())
    }

    fn varints<const N: usize>(&self, element: impl Fn(u64) -> Result<[u8; N]>) -> Result<Bytes> {
        let mut packed = Vec::with_capacity(self.length * N);
        self.each(|value| {
            match value {
                WireValue::Varint(it) => packed.extend_from_slice(&element(it)?),
                WireValue::Bytes(run) => {
                    let mut run = Fields::of(run);
                    while let Some(it) = run.packed_varint()? {
                        packed.extend_from_slice(&element(it)?);
                    }
                }
                // `lengths` has seen all of them.
                WireValue::Fixed32(_) | WireValue::Fixed64(_) => (),
            }
            Ok(())
        })?;
        Ok(packed.into())
    }

    /// Elements that have the bytes of a tensor's already: all of them in one run need no copy.
    fn fixed(&self, entry: &Bytes, size: usize) -> Result<Bytes> {
        let length = self.length * size;
        let mut packed = Vec::new();
        let mut slice = None;
        self.each(|value| {
            match value {
                WireValue::Bytes(run) if run.len() == length && MIN_SLICE_BYTES <= length => {
                    slice = Some(entry.slice_ref(run));
                }
                WireValue::Bytes(run) => {
                    packed.reserve_exact(length - packed.len());
                    packed.extend_from_slice(run);
                }
                WireValue::Fixed32(it) => packed.extend_from_slice(it),
                WireValue::Fixed64(it) => packed.extend_from_slice(it),
                WireValue::Varint(_) => (),
            }
            Ok(())
        })?;
        Ok(slice.unwrap_or_else(|| packed.into()))
    }

    fn strings(&self) -> Result<Bytes> {
        let mut size = 0;
        self.each(|value| {
            size += 4 + value.bytes()?.len();
            Ok(())
        })?;
        let mut packed = Vec::with_capacity(size);
        self.each(|value| {
            let element = value.bytes()?;
            // No message is longer than 2 GiB, so neither is a string in it.
            packed.extend_from_slice(&(element.len() as u32).to_le_bytes());
            packed.extend_from_slice(element);
            Ok(())
        })?;
        Ok(packed.into())
    }
}

/// An element that travels in 32 bits but has fewer.
fn narrow<W: Copy + std::fmt::Display, T: TryFrom<W>, const N: usize>(
    wide: W,
    dtype: DataType,
    about: &InputContext,
    to_bytes: fn(T) -> [u8; N],
) -> Result<[u8; N]> {
    let narrow = T::try_from(wide).map_err(|_| {
        let InputContext { input, model, .. } = about;
        Error::invalid(format!(
            "value {wide} of input tensor '{input}' for model '{model}' does not fit {}",
            dtype.as_str()
        ))
    })?;
    Ok(to_bytes(narrow))
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use troupe_proto::inference::InferTensorContents;

    use super::*;

    type Typed = InferTensorContents;

    fn pack_typed(contents: &Typed, dtype: DataType) -> Result<Bytes> {
        let about = InputContext { input: "i", model: "m", id: "" };
        let entry = Bytes::from(contents.encode_to_vec());
        pack(&Contents([&entry[..]].to_vec()), &entry, dtype, &about)
    }

    fn check(contents: Typed, dtype: DataType, expected: &[u8]) {
        assert_eq!(pack_typed(&contents, dtype).unwrap(), expected, "{dtype:?}");
    }

    #[test]
    fn every_type_is_packed_little_endian() {
        use DataType::{
            Bool, Fp32, Fp64, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64,
        };
        let none = Typed::default;
        check(Typed { bool_contents: vec![true, false], ..none() }, Bool, &[1, 0]);
        check(Typed { int_contents: vec![-2, 1], ..none() }, Int8, &[254, 1]);
        check(Typed { int_contents: vec![-2], ..none() }, Int16, &[254, 255]);
        check(Typed { int_contents: vec![-2], ..none() }, Int32, &[254, 255, 255, 255]);
        check(Typed { int64_contents: vec![258], ..none() }, Int64, &[2, 1, 0, 0, 0, 0, 0, 0]);
        check(Typed { uint_contents: vec![255], ..none() }, Uint8, &[255]);
        check(Typed { uint_contents: vec![258], ..none() }, Uint16, &[2, 1]);
        check(Typed { uint_contents: vec![258], ..none() }, Uint32, &[2, 1, 0, 0]);
        check(Typed { uint64_contents: vec![1], ..none() }, Uint64, &[1, 0, 0, 0, 0, 0, 0, 0]);
        check(Typed { fp32_contents: vec![1.0], ..none() }, Fp32, &1f32.to_le_bytes());
        check(Typed { fp64_contents: vec![1.0], ..none() }, Fp64, &1f64.to_le_bytes());
        let texts = vec![bytes::Bytes::from_static(b"a\0"), bytes::Bytes::new()];
        let bytes = Typed { bytes_contents: texts, ..none() };
        check(bytes, DataType::Bytes, b"\x02\0\0\0a\0\0\0\0\0");
        check(none(), Fp32, &[]);
    }

    #[test]
    fn lists_that_do_not_fit_the_input_are_refused() {
        let none = Typed::default;
        let ints = Typed { int_contents: vec![300], ..none() };
        let both = Typed { fp32_contents: vec![1.0], fp64_contents: vec![1.0], ..none() };
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
            let error = pack_typed(contents, dtype).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn lists_come_packed_or_not_and_in_several_parts() {
        let floats = [1f32, 2.0, 3.0].map(f32::to_le_bytes).concat();
        let split = [&[0x32, 4][..], &floats[..4], &[0x35], &floats[4..8]].concat();
        let rest = [&[0x32, 4][..], &floats[8..]].concat();
        let about = InputContext { input: "i", model: "m", id: "" };
        let entry = Bytes::from([&split[..], &rest].concat());
        let (first, second) = entry.split_at(split.len());
        let contents = Contents(vec![first, second]);
        assert_eq!(pack(&contents, &entry, DataType::Fp32, &about).unwrap(), floats);
        let ints = Bytes::from_static(b"\x18\x05\x1a\x03\x06\x80\x01");
        let contents = Contents([&ints[..]].to_vec());
        let packed = pack(&contents, &ints, DataType::Int64, &about).unwrap();
        assert_eq!(packed, [5i64, 6, 128].map(i64::to_le_bytes).concat());
        for wrong in [&b"\x32\x03abc"[..], b"\x1a\x01\x80", b"\x1d1234", b"\x40\x01"] {
            let entry = Bytes::from(wrong);
            let contents = Contents([&entry[..]].to_vec());
            let error = pack(&contents, &entry, DataType::Fp32, &about);
            let error = error.and_then(|_| pack(&contents, &entry, DataType::Int64, &about));
            let text = error.unwrap_err().to_string();
            assert!(text.contains("failed to decode"), "{wrong:?}: {text}");
        }
    }

    #[test]
    fn a_large_list_of_floats_is_not_copied() {
        let typed = Typed { fp32_contents: vec![1.5; 20_000], ..Typed::default() };
        let entry = Bytes::from(typed.encode_to_vec());
        let about = InputContext { input: "i", model: "m", id: "" };
        let contents = Contents([&entry[..]].to_vec());
        let packed = pack(&contents, &entry, DataType::Fp32, &about).unwrap();
        assert_eq!(packed.as_ptr_range().end, entry.as_ptr_range().end);
        assert_eq!(packed.len(), 80_000);
    }
}
