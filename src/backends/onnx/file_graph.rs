//! Reads what a model declares off its file, without ONNX Runtime: names, types and dimensions,
//! never weights.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufRead, BufReader, ErrorKind, Seek},
    path::Path,
};

use ort::value::TensorElementType as Element;

use super::graph::{DeclaredTensor, ModelGraph, TensorForm};

/// A name, or the description of a tensor, is not longer.
const MAX_PART_BYTES: u64 = 1 << 16;
/// Inputs, outputs and initializers that are read of one file.
const MAX_TENSORS: usize = 100_000;

/// The file of a model, or a part of it that has been read.
pub(super) struct Wire<R> {
    reader: R,
    pub(super) at: u64,
}

/// The content of one field.
pub(super) enum Field {
    Number(u64),
    /// So many bytes follow.
    Bytes(u64),
    Other,
}

/// `None` where the file says something that only ONNX Runtime can tell, such as a tensor without a
/// shape. An error says that it is no ONNX model.
pub(super) fn read(path: &Path) -> io::Result<Option<ModelGraph>> {
    let (mut wire, size) = open(path)?;
    wire.model(size)
}

/// The file, and how many bytes it has.
pub(super) fn open(path: &Path) -> io::Result<(Wire<BufReader<File>>, u64)> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    Ok((Wire { reader: BufReader::new(file), at: 0 }, size))
}

impl<R: BufRead + Seek> Wire<R> {
    fn model(&mut self, end: u64) -> io::Result<Option<ModelGraph>> {
        let mut found = None;
        while self.at < end {
            match self.field(end)? {
                (7, Field::Bytes(size)) => found = Some(self.graph(self.at + size)?),
                (_, field) => self.skip(&field)?,
            }
        }
        found.ok_or_else(|| broken("no graph"))
    }

    fn graph(&mut self, end: u64) -> io::Result<Option<ModelGraph>> {
        let (mut inputs, mut outputs, mut values) = (Vec::new(), Vec::new(), HashSet::new());
        let mut is_known = true;
        while self.at < end {
            let (number, field) = self.field(end)?;
            if MAX_TENSORS < inputs.len() + outputs.len() + values.len() {
                return Err(broken("too many tensors"));
            }
            match (number, field) {
                (5, Field::Bytes(size)) => {
                    values.insert(self.initializer(self.at + size)?);
                }
                (11 | 12, Field::Bytes(size)) => {
                    let bytes = self.bytes(size)?;
                    let tensor = Wire::over(&bytes).tensor(size)?;
                    is_known &= tensor.is_some();
                    let all = if number == 11 { &mut inputs } else { &mut outputs };
                    all.extend(tensor);
                }
                (_, field) => self.skip(&field)?,
            }
        }
        if !is_known {
            return Ok(None);
        }
        let (initializers, inputs) =
            inputs.into_iter().partition(|it: &DeclaredTensor| values.contains(&it.name));
        Ok(Some(ModelGraph { inputs, initializers, outputs }))
    }

    /// The name of a tensor with a value in the file; the value is passed over.
    fn initializer(&mut self, end: u64) -> io::Result<String> {
        let mut name = String::new();
        while self.at < end {
            match self.field(end)? {
                (8, Field::Bytes(size)) => name = self.text(size)?,
                (_, field) => self.skip(&field)?,
            }
        }
        Ok(name)
    }

    /// Name and type of an input or output.
    fn tensor(&mut self, end: u64) -> io::Result<Option<DeclaredTensor>> {
        let (mut name, mut kind) = (String::new(), None);
        while self.at < end {
            match self.field(end)? {
                (1, Field::Bytes(size)) => name = self.text(size)?,
                (2, Field::Bytes(size)) => kind = self.kind(self.at + size)?,
                (_, field) => self.skip(&field)?,
            }
        }
        Ok(kind.map(|kind| DeclaredTensor { name, kind }))
    }

    fn kind(&mut self, end: u64) -> io::Result<Option<Result<TensorForm, &'static str>>> {
        let mut kind = None;
        while self.at < end {
            kind = match self.field(end)? {
                (1, Field::Bytes(size)) => self.form(self.at + size)?.map(Ok),
                (number, field) => {
                    self.skip(&field)?;
                    match number {
                        4 => Some(Err("ONNX_TYPE_SEQUENCE")),
                        5 => Some(Err("ONNX_TYPE_MAP")),
                        9 => Some(Err("ONNX_TYPE_OPTIONAL")),
                        _ => kind,
                    }
                }
            };
        }
        Ok(kind)
    }

    fn form(&mut self, end: u64) -> io::Result<Option<TensorForm>> {
        let (mut element, mut dims) = (None, None);
        while self.at < end {
            match self.field(end)? {
                (1, Field::Number(number)) => element = element_of(number),
                (2, Field::Bytes(size)) => dims = Some(self.dims(self.at + size)?),
                (_, field) => self.skip(&field)?,
            }
        }
        Ok(element.zip(dims).map(|(element, dims)| TensorForm { element, dims }))
    }

    fn dims(&mut self, end: u64) -> io::Result<Vec<i64>> {
        let mut dims = Vec::new();
        while self.at < end {
            match self.field(end)? {
                (1, Field::Bytes(size)) => dims.push(self.dim(self.at + size)?),
                (_, field) => self.skip(&field)?,
            }
        }
        Ok(dims)
    }

    /// -1 for one with a name, or with nothing.
    fn dim(&mut self, end: u64) -> io::Result<i64> {
        let mut dim = -1;
        while self.at < end {
            match self.field(end)? {
                (1, Field::Number(number)) => dim = number as i64,
                (_, field) => self.skip(&field)?,
            }
        }
        Ok(dim)
    }

    /// The number of the next field and its content, which ends before `end`.
    pub(super) fn field(&mut self, end: u64) -> io::Result<(u64, Field)> {
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => Field::Bytes(8),
            2 => Field::Bytes(self.varint()?),
            5 => Field::Bytes(4),
            _ => return Err(broken("a field of no known kind")),
        };
        // Numbers of fixed size are in none of the fields that are read.
        let is_fixed = matches!(key & 7, 1 | 5);
        if let Field::Bytes(size) = field {
            if end.saturating_sub(self.at) < size {
                return Err(broken("a field that is longer than what it is part of"));
            }
            if is_fixed {
                self.pass(size)?;
                return Ok((key >> 3, Field::Other));
            }
        }
        Ok((key >> 3, field))
    }

    pub(super) fn skip(&mut self, field: &Field) -> io::Result<()> {
        match field {
            Field::Bytes(size) => self.pass(*size),
            Field::Number(_) | Field::Other => Ok(()),
        }
    }

    fn pass(&mut self, size: u64) -> io::Result<()> {
        let size_now = i64::try_from(size).map_err(|_| broken("a field without an end"))?;
        self.reader.seek_relative(size_now)?;
        self.at += size;
        Ok(())
    }

    fn varint(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.reader.read_exact(&mut byte)?;
            self.at += 1;
            number |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] < 0x80 {
                return Ok(number);
            }
        }
        Err(broken("a number without an end"))
    }

    fn bytes(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if MAX_PART_BYTES < size {
            return Err(broken("a name or a type that is too long"));
        }
        let mut bytes = vec![0; size as usize];
        self.reader.read_exact(&mut bytes)?;
        self.at += size;
        Ok(bytes)
    }

    pub(super) fn text(&mut self, size: u64) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes(size)?).into_owned())
    }
}

impl<'a> Wire<io::Cursor<&'a Vec<u8>>> {
    fn over(bytes: &'a Vec<u8>) -> Wire<io::Cursor<&'a Vec<u8>>> {
        Wire { reader: io::Cursor::new(bytes), at: 0 }
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("it is no ONNX model: {what}"))
}

/// `TensorProto.DataType` of ONNX; `None` for those that requests cannot carry.
fn element_of(number: u64) -> Option<Element> {
    Some(match number {
        1 => Element::Float32,
        2 => Element::Uint8,
        3 => Element::Int8,
        4 => Element::Uint16,
        5 => Element::Int16,
        6 => Element::Int32,
        7 => Element::Int64,
        8 => Element::String,
        9 => Element::Bool,
        10 => Element::Float16,
        11 => Element::Float64,
        12 => Element::Uint32,
        13 => Element::Uint64,
        16 => Element::Bfloat16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_and_ends() {
        let folder = std::env::current_exe().unwrap().with_extension("onnx");
        for bytes in [
            &b""[..],
            b"\x3a",
            b"\x3a\x7f",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"hello there",
        ] {
            std::fs::write(&folder, bytes).unwrap();
            assert!(read(&folder).is_err(), "{bytes:?}");
        }
        std::fs::remove_file(folder).unwrap();
    }
}
