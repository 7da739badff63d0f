//! Files of `numpy.save`: versions 1 and 2, numbers, little-endian, in C order.

use bytes::Bytes;

use crate::tensor::{DataType, Shape, Tensor, element_count};

/// An array as its file has it.
#[derive(Debug)]
pub struct Array {
    /// What numpy calls its type; BF16 and BYTES are none of these.
    pub dtype: DataType,
    /// Its dimensions.
    pub shape: Shape,
    /// Part of the file.
    pub data: Bytes,
}

/// The names of numpy's types; those of one byte have no byte order.
const TYPES: &[(&str, DataType)] = &[
    ("|b1", DataType::Bool),
    ("|u1", DataType::Uint8),
    ("<u2", DataType::Uint16),
    ("<u4", DataType::Uint32),
    ("<u8", DataType::Uint64),
    ("|i1", DataType::Int8),
    ("<i2", DataType::Int16),
    ("<i4", DataType::Int32),
    ("<i8", DataType::Int64),
    ("<f2", DataType::Fp16),
    ("<f4", DataType::Fp32),
    ("<f8", DataType::Fp64),
];

/// Where the elements begin is a multiple of this, as numpy has it.
const ALIGNMENT: usize = 64;
/// Releases of numpy before 2 have arrays of no more dimensions.
const MAX_DIMENSIONS: usize = 32;

/// The type a tensor's elements have in a file. What numpy has no type for is kept bit by bit: BF16
/// as `<u2`, and BYTES as bytes in one dimension, of each element its length (4 bytes,
/// little-endian) and its bytes.
pub fn stored_as(dtype: DataType) -> &'static str {
    match dtype {
        DataType::Bf16 => "<u2",
        DataType::Bytes => "|u1",
        _ => TYPES.iter().find(|it| it.1 == dtype).map_or("|u1", |it| it.0),
    }
}

/// What stands before a tensor's bytes in a file of its own.
pub fn header(tensor: &Tensor) -> Bytes {
    let elements = tensor.data().len() / tensor.dtype().size().unwrap_or(1);
    let flat = [elements as i64];
    let is_flat = tensor.dtype() == DataType::Bytes || MAX_DIMENSIONS < tensor.shape().len();
    let shape = if is_flat { &flat } else { tensor.shape() };
    let dims: String = shape.iter().map(|it| format!("{it},")).collect();
    // A tuple of several has no comma at its end, one of one has.
    let dims = if shape.len() == 1 { &dims } else { dims.trim_end_matches(',') };
    let descr = stored_as(tensor.dtype());
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    let start = b"\x93NUMPY\x01\0";
    let length = (start.len() + 2 + text.len() + 1).next_multiple_of(ALIGNMENT) - start.len() - 2;
    let padding = " ".repeat(length - text.len() - 1);
    // At most 32 dimensions: some hundred bytes.
    let length = (length as u16).to_le_bytes();
    [start, &length[..], text.as_bytes(), padding.as_bytes(), b"\n"].concat().into()
}

/// The array in `file`, or what is wrong with it.
pub fn read(file: &Bytes) -> Result<Array, String> {
    let (header, data) = parts(file)?;
    let descr = value(header, "descr")?;
    let dtype = match TYPES.iter().find(|it| descr == format!("'{}'", it.0)) {
        Some((_, dtype)) => *dtype,
        None if descr.starts_with("'>") => {
            return Err(format!("its elements are big-endian ({descr}), expected little-endian"));
        }
        None => return Err(format!("its elements are of type {descr}, expected numbers")),
    };
    match value(header, "fortran_order")? {
        "False" => (),
        _ => return Err("it is in Fortran order, expected C order".to_owned()),
    }
    let shape = shape(value(header, "shape")?).ok_or("its shape cannot be read")?;
    let elements = element_count(&shape).map_err(|it| it.to_string())?;
    let expected = elements.checked_mul(dtype.size().unwrap_or(1));
    if expected != Some(data.len()) {
        let bytes = data.len();
        return Err(format!("it has {bytes} bytes of data, which is not what its shape says"));
    }
    Ok(Array { dtype, shape, data })
}

/// The text that describes the array, and the bytes behind it.
fn parts(file: &Bytes) -> Result<(&str, Bytes), String> {
    let rest = file.strip_prefix(b"\x93NUMPY").ok_or("it does not begin as a .npy file does")?;
    let cut = || "its header is cut off".to_owned();
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(cut)?;
    let (length, rest) = match version {
        [1, _] => rest
            .split_first_chunk::<2>()
            .map(|(length, rest)| (u32::from(u16::from_le_bytes(*length)), rest)),
        [2, _] => {
            rest.split_first_chunk::<4>().map(|(length, rest)| (u32::from_le_bytes(*length), rest))
        }
        [other, _] => {
            return Err(format!("it is of version {other} of the format, expected 1 or 2"));
        }
    }
    .ok_or_else(cut)?;
    let (header, data) = rest.split_at_checked(length as usize).ok_or_else(cut)?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text")?;
    Ok((header, file.slice_ref(data)))
}

/// What a key of the header's Python dictionary has, as it is written there.
fn value<'a>(header: &'a str, key: &str) -> Result<&'a str, String> {
    let quoted = format!("'{key}'");
    let rest = header.split_once(&quoted).and_then(|(_, rest)| rest.trim_start().strip_prefix(':'));
    let rest = rest.ok_or_else(|| format!("its header has no {quoted}"))?.trim_start();
    let end = match rest.as_bytes().first() {
        Some(b'(') => rest.find(')').map(|it| it + 1),
        Some(b'[') => rest.rfind(']').map(|it| it + 1),
        _ => rest.find([',', '}']),
    };
    Ok(rest[..end.unwrap_or(rest.len())].trim_end())
}

/// `(2, 3)`, `(2,)` or `()`.
fn shape(text: &str) -> Option<Shape> {
    let dims = text.strip_prefix('(')?.strip_suffix(')')?.trim();
    let dims = dims.strip_suffix(',').unwrap_or(dims);
    if dims.is_empty() {
        return Some(Shape::new());
    }
    dims.split(',').map(|it| it.trim().parse().ok().filter(|it| 0 <= *it)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, header: &str, data: &[u8]) -> Bytes {
        let length = header.len() as u32;
        let length = match version {
            1 => (length as u16).to_le_bytes().to_vec(),
            _ => length.to_le_bytes().to_vec(),
        };
        [b"\x93NUMPY", &[version, 0][..], &length, header.as_bytes(), data].concat().into()
    }

    fn header(descr: &str, fortran: &str, shape: &str) -> String {
        format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}   \n")
    }

    #[test]
    fn both_versions_and_every_type_are_read() {
        for version in [1, 2] {
            for (name, dtype) in TYPES {
                let size = dtype.size().unwrap();
                let data: Vec<u8> = (0..6 * size).map(|it| it as u8).collect();
                let header = header(&format!("'{name}'"), "False", "(2, 3)");
                let array = read(&file(version, &header, &data)).unwrap();
                assert_eq!((array.dtype, &array.shape[..]), (*dtype, &[2, 3][..]));
                assert_eq!(array.data, data);
            }
        }
        for (text, shape) in [("()", &[][..]), ("(1,)", &[1]), ("(1, 1,)", &[1, 1])] {
            let array = read(&file(1, &header("'|u1'", "False", text), &[7])).unwrap();
            assert_eq!(&array.shape[..], shape);
        }
        let nothing = read(&file(1, &header("'<f4'", "False", "(0, 3)"), &[])).unwrap();
        assert_eq!(&nothing.shape[..], [0, 3]);
    }

    #[test]
    fn what_is_written_can_be_read() {
        for (dtype, shape, data, name, dims) in [
            (DataType::Fp32, &[2, 3][..], &[7; 24][..], "<f4", &[2, 3][..]),
            (DataType::Bool, &[], &[1], "|b1", &[]),
            (DataType::Int64, &[0, 3], &[], "<i8", &[0, 3]),
            (DataType::Bf16, &[1], &[1, 2], "<u2", &[1]),
            (DataType::Bytes, &[1, 2], b"\x01\0\0\0a\0\0\0\0", "|u1", &[9]),
            (DataType::Uint8, &[1; 40], &[9], "|u1", &[1]),
        ] {
            let data = Bytes::copy_from_slice(data);
            let tensor = Tensor::new(dtype, shape.into(), data.clone()).unwrap();
            let header = super::header(&tensor);
            assert_eq!(header.len() % 64, 0);
            assert!(String::from_utf8_lossy(&header).contains(&format!("'{name}'")));
            let array = read(&[&header[..], &data].concat().into()).unwrap();
            assert_eq!((&array.shape[..], array.data), (dims, data));
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let good = header("'<f4'", "False", "(1,)");
        let cut = file(1, &good, &[]).slice(..20);
        let huge = "(9223372036854775807, 4)";
        for (file, expected) in [
            (Bytes::from_static(b"PK\x03\x04"), "it does not begin as a .npy file does"),
            (Bytes::from_static(b"\x93NUMPY"), "its header is cut off"),
            (Bytes::from_static(b"\x93NUMPY\x01\0\x01"), "its header is cut off"),
            (cut, "its header is cut off"),
            (file(3, &good, &[0; 4]), "it is of version 3 of the format, expected 1 or 2"),
            (file(1, "{}", &[]), "its header has no 'descr'"),
            (file(1, "{'descr'", &[]), "its header has no 'descr'"),
            (
                file(1, &header("'>f4'", "False", "(1,)"), &[0; 4]),
                "its elements are big-endian ('>f4'), expected little-endian",
            ),
            (
                file(1, &header("'<U5'", "False", "(1,)"), &[0; 20]),
                "its elements are of type '<U5', expected numbers",
            ),
            (
                file(1, &header("[('a', '<f4'), ('b', '<f4')]", "False", "(1,)"), &[0; 8]),
                "its elements are of type [('a', '<f4'), ('b', '<f4')], expected numbers",
            ),
            (
                file(1, &header("'<f4'", "True", "(1, 1)"), &[0; 4]),
                "it is in Fortran order, expected C order",
            ),
            (file(1, &header("'<f4'", "False", "1"), &[0; 4]), "its shape cannot be read"),
            (file(1, &header("'<f4'", "False", "(-1,)"), &[0; 4]), "its shape cannot be read"),
            (file(1, &good, &[0; 5]), "it has 5 bytes of data, which is not what its shape says"),
            (
                file(1, &header("'<f4'", "False", huge), &[]),
                "shape [9223372036854775807,4] causes total element count to exceed maximum size \
                 of 9223372036854775807",
            ),
        ] {
            assert_eq!(read(&file).unwrap_err(), expected);
        }
    }
}
