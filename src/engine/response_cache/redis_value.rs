//! The bytes of an answer in a Redis: our own layout, read with the distrust that foreign bytes are
//! due.

use bytes::{Buf, Bytes};

use troupe_base::{
    request::{Parameter, Parameters, Response},
    tensor::{DataType, Shape, Tensor},
};

/// What a value begins with: the layout and its version.
const MAGIC: &[u8; 8] = b"troupe\x00\x01";
/// Dimensions of a tensor, at most.
const MAX_DIMS: usize = 64;

/// Its bytes. Numbers are little-endian; texts and tensors come behind their lengths.
pub(super) fn encode(response: &Response) -> Vec<u8> {
    let data: usize = response.outputs.iter().flatten().map(|it| it.data().len()).sum();
    let mut to = Vec::with_capacity(data + 256);
    to.extend_from_slice(MAGIC);
    count(response.outputs.len(), &mut to);
    for output in &response.outputs {
        let Some(tensor) = output else {
            to.push(0);
            continue;
        };
        to.push(1);
        text(tensor.dtype().as_str(), &mut to);
        count(tensor.shape().len(), &mut to);
        tensor.shape().iter().for_each(|dim| to.extend_from_slice(&dim.to_le_bytes()));
        to.extend_from_slice(&(tensor.data().len() as u64).to_le_bytes());
        to.extend_from_slice(tensor.data());
    }
    count(response.parameters.len(), &mut to);
    for (name, value) in &response.parameters {
        text(name, &mut to);
        parameter(value, &mut to);
    }
    to
}

fn parameter(value: &Parameter, to: &mut Vec<u8>) {
    let (tag, number) = match value {
        Parameter::Bool(value) => (0, u64::from(*value)),
        Parameter::Int(value) => (1, *value as u64),
        Parameter::Uint(value) => (2, *value),
        Parameter::Double(value) => (3, value.to_bits()),
        Parameter::String(value) => {
            to.push(4);
            return text(value, to);
        }
    };
    to.push(tag);
    to.extend_from_slice(&number.to_le_bytes());
}

fn text(text: &str, to: &mut Vec<u8>) {
    count(text.len(), to);
    to.extend_from_slice(text.as_bytes());
}

fn count(count: usize, to: &mut Vec<u8>) {
    to.extend_from_slice(&(count as u32).to_le_bytes());
}

/// The answer with so many outputs, or `None` if these bytes are none. Tensors share them.
pub(super) fn decode(mut from: Bytes, outputs: usize) -> Option<Response> {
    if take(&mut from, MAGIC.len())? != MAGIC[..] || read_count(&mut from)? != outputs {
        return None;
    }
    let outputs = (0..outputs).map(|_| read_output(&mut from)).collect::<Option<Vec<_>>>()?;
    let mut parameters = Parameters::new();
    for _ in 0..read_count(&mut from)? {
        let name = read_text(&mut from)?;
        parameters.push((name.into(), read_parameter(&mut from)?));
    }
    from.is_empty().then(|| Response { outputs, parameters, ..Response::default() })
}

fn read_output(from: &mut Bytes) -> Option<Option<Tensor>> {
    if from.try_get_u8().ok()? == 0 {
        return Some(None);
    }
    let dtype = DataType::parse(&read_text(from)?)?;
    let dims = read_count(from)?;
    if MAX_DIMS < dims {
        return None;
    }
    let shape: Shape = (0..dims).map(|_| from.try_get_i64_le().ok()).collect::<Option<_>>()?;
    let length = from.try_get_u64_le().ok()?;
    let data = take(from, usize::try_from(length).ok()?)?;
    Some(Some(Tensor::new(dtype, shape, data).ok()?))
}

fn read_parameter(from: &mut Bytes) -> Option<Parameter> {
    let tag = from.try_get_u8().ok()?;
    if tag == 4 {
        return read_text(from).map(Parameter::String);
    }
    let number = from.try_get_u64_le().ok()?;
    match tag {
        0 => Some(Parameter::Bool(number != 0)),
        1 => Some(Parameter::Int(number as i64)),
        2 => Some(Parameter::Uint(number)),
        3 => Some(Parameter::Double(f64::from_bits(number))),
        _ => None,
    }
}

fn read_text(from: &mut Bytes) -> Option<String> {
    let length = read_count(from)?;
    String::from_utf8(take(from, length)?.to_vec()).ok()
}

fn read_count(from: &mut Bytes) -> Option<usize> {
    from.try_get_u32_le().ok().map(|it| it as usize)
}

fn take(from: &mut Bytes, length: usize) -> Option<Bytes> {
    (length <= from.len()).then(|| from.split_to(length))
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn response() -> Response {
        let tensor = |dtype, shape, data: &'static [u8]| {
            Some(Tensor::new(dtype, shape, Bytes::from_static(data)).unwrap())
        };
        Response {
            outputs: vec![
                tensor(DataType::Int16, smallvec![2, 1], b"abcd"),
                None,
                tensor(DataType::Bytes, smallvec![1], b"\x02\0\0\0hi"),
            ],
            parameters: vec![
                ("b".into(), Parameter::Bool(true)),
                ("i".into(), Parameter::Int(-1)),
                ("u".into(), Parameter::Uint(u64::MAX)),
                ("d".into(), Parameter::Double(0.5)),
                ("s".into(), Parameter::String("text".to_owned())),
            ],
            ..Response::default()
        }
    }

    #[test]
    fn an_answer_comes_back_as_it_was() {
        let (before, bytes) = (response(), encode(&response()));
        let after = decode(bytes.into(), 3).unwrap();
        assert_eq!(after.parameters, before.parameters);
        assert_eq!(after.outputs.len(), 3);
        for (before, after) in before.outputs.iter().zip(&after.outputs) {
            let facts = |it: &Tensor| (it.dtype(), it.shape().to_vec(), it.data().clone());
            assert_eq!(before.as_ref().map(facts), after.as_ref().map(facts));
        }
    }

    #[test]
    fn bytes_that_are_no_answer_are_none() {
        let bytes = encode(&response());
        assert!(decode(bytes.clone().into(), 2).is_none(), "of another model");
        for length in 0..bytes.len() {
            assert!(decode(bytes[..length].to_vec().into(), 3).is_none(), "{length} bytes");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert!(decode(longer.into(), 3).is_none());
        for place in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[place] ^= 0xff;
            // Whatever it says, reading it ends.
            let _ = decode(wrong.into(), 3);
        }
    }
}
