//! Protobuf messages as fields on the wire, and mistakes in them that bytes flipped at random would
//! hardly make: repeated, nested, of another number or kind.

use super::mutate::{Corpus, Random};

/// More of a field than any request has.
const MANY: usize = 5000;
const MAX_DEPTH: usize = 120;
/// Messages do not grow beyond this.
const MAX_BYTES: usize = 512 << 10;

/// Of bytes in fields.
const TOKENS: &[&[u8]] =
    &[b"", b"\0", b"\xff\xff\xff\xff\x0f", b"FP32", b"BYTES", b"m", b"..", b"\xc3\x28", b"timeout"];

#[derive(Clone)]
struct Field {
    number: u64,
    value: Value,
}

#[derive(Clone)]
enum Value {
    Varint(u64),
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
}

/// A message with some mistakes.
pub(super) fn with_mistakes(message: &[u8], random: &mut Random) -> Vec<u8> {
    let mut message = message.to_vec();
    for _ in 0..random.below(5) {
        message = changed(&message, random);
        message.truncate(MAX_BYTES);
    }
    if random.once_in(3) {
        random.mutate(&mut message, &Corpus { inputs: &[b"\x0a\x01m"], tokens: TOKENS });
    }
    random.keep(&message);
    message
}

fn changed(message: &[u8], random: &mut Random) -> Vec<u8> {
    let mut fields = parse(message).unwrap_or_default();
    if fields.is_empty() {
        return message.to_vec();
    }
    let at = random.below(fields.len());
    match random.below(9) {
        0 => drop(fields.remove(at)),
        1 => {
            let times = *random.pick(&[1, 2, 70, MANY]);
            let times = times.min(1 + MAX_BYTES / 16 / (1 + size(&fields[at])));
            fields.splice(at..at, vec![fields[at].clone(); times]);
        }
        2 => {
            let field = fields.remove(at);
            fields.insert(random.below(fields.len() + 1), field);
        }
        3 => fields[at].number = *random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 99, (1 << 29) - 1]),
        4 => {
            fields[at].value = match random.below(4) {
                0 => Value::Varint(random.next()),
                1 => Value::Fixed(vec![0xff; 4]),
                2 => Value::Fixed(vec![0x7f; 8]),
                _ => Value::Bytes(random.pick(TOKENS).to_vec()),
            }
        }
        5 => {
            for _ in 0..*random.pick(&[1, 5, MAX_DEPTH]) {
                let number = fields[at].number;
                fields[at].value = Value::Bytes(write(&[fields[at].clone()]));
                fields[at].number = number;
            }
        }
        _ => match &mut fields[at].value {
            Value::Varint(it) => {
                *it = *random.pick(&[0, 1, 2, 1 << 31, 1 << 62, 1 << 63, u64::MAX])
            }
            Value::Fixed(it) => it.fill(0xff),
            Value::Bytes(it) if random.once_in(3) || parse(it).is_none_or(|it| it.is_empty()) => {
                random.mutate(it, &Corpus { inputs: &[b"x", b"y", b"FP32"], tokens: TOKENS });
            }
            Value::Bytes(it) => *it = changed(it, random),
        },
    }
    write(&fields)
}

fn size(field: &Field) -> usize {
    match &field.value {
        Value::Varint(_) => 2,
        Value::Fixed(it) | Value::Bytes(it) => it.len(),
    }
}

fn parse(mut message: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        let mut take = |size: usize| {
            let (taken, rest) = message.split_at_checked(size)?;
            message = rest;
            Some(taken.to_vec())
        };
        let value = match tag & 7 {
            0 => Value::Varint(varint(&mut message)?),
            1 => Value::Fixed(take(8)?),
            5 => Value::Fixed(take(4)?),
            2 => {
                let size = varint(&mut message)? as usize;
                let (taken, rest) = message.split_at_checked(size)?;
                message = rest;
                Value::Bytes(taken.to_vec())
            }
            _ => return None,
        };
        fields.push(Field { number: tag >> 3, value });
    }
    Some(fields)
}

fn varint(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(first & 127) << shift;
        if *first < 128 {
            return Some(number);
        }
    }
    None
}

fn write(fields: &[Field]) -> Vec<u8> {
    let mut message = Vec::new();
    for field in fields {
        let kind = match &field.value {
            Value::Varint(_) => 0,
            Value::Fixed(it) if it.len() == 8 => 1,
            Value::Fixed(_) => 5,
            Value::Bytes(_) => 2,
        };
        put_varint(&mut message, field.number << 3 | kind);
        match &field.value {
            Value::Varint(it) => put_varint(&mut message, *it),
            Value::Fixed(it) => message.extend_from_slice(it),
            Value::Bytes(it) => {
                put_varint(&mut message, it.len() as u64);
                message.extend_from_slice(it);
            }
        }
    }
    message
}

fn put_varint(into: &mut Vec<u8>, mut number: u64) {
    while 128 <= number {
        into.push(number as u8 | 128);
        number >>= 7;
    }
    into.push(number as u8);
}

#[test]
fn fields_are_written_as_they_were_read() {
    let message = b"\x0a\x02ab\x10\xac\x02\x1d\x01\x02\x03\x04\x21\x01\x02\x03\x04\x05\x06\x07\x08";
    assert_eq!(write(&parse(message).unwrap()), message);
    assert!(parse(b"\x0a\x05ab").is_none());
}
