//! Reads files of `numpy.save`: versions 1 and 2, numbers, little-endian, in C order.

use bytes::Bytes;

use crate::tensor::{DataType, Shape, element_count};

/// An array as its file has it.
#[derive(Debug)]
pub(super) struct Array {
    pub(super) dtype: DataType,
    pub(super) shape: Shape,
    /// Part of the file.
    pub(super) data: Bytes,
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

/// The array in `file`, or what is wrong with it.
pub(super) fn read(file: &Bytes) -> Result<Array, String> {
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
