//! Protobuf's wire format: keys, varints, and fields one after the other, without an allocation.
//!
//! What is refused here is also refused by generated code, but for groups: no message of proto3 has
//! them, so they are refused too.

use std::fmt;

use troupe_base::error::Error;

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// It ends before its lengths say.
pub(super) const TRUNCATED: Malformed = Malformed("buffer underflow");
const BAD_VARINT: Malformed = Malformed("invalid varint");
/// A text is no UTF-8.
pub(super) const BAD_TEXT: Malformed = Malformed("invalid string value: data is not UTF-8 encoded");
/// A field is not of the type it has in the message.
pub(super) const BAD_TYPE: Malformed = Malformed("invalid wire type");

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to decode Protobuf message: {}", self.0)
    }
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Error {
        Error::internal(malformed.to_string())
    }
}

/// How a field's value is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint,
    Fixed64,
    Bytes,
    Fixed32,
}

/// The field's number and the layout of what comes behind this key.
#[inline]
pub(super) fn key(varint: u64) -> Result<(u32, WireType), Malformed> {
    let Ok(key) = u32::try_from(varint) else { return Err(Malformed("invalid key value")) };
    let wire_type = match key & 7 {
        0 => WireType::Varint,
        1 => WireType::Fixed64,
        2 => WireType::Bytes,
        5 => WireType::Fixed32,
        3 | 4 => return Err(Malformed("groups are not supported")),
        _ => return Err(Malformed("invalid wire type value")),
    };
    match key >> 3 {
        0 => Err(Malformed("invalid tag value: 0")),
        number => Ok((number, wire_type)),
    }
}

/// A varint at the begin of `bytes` and how many bytes it takes; `None` if it may go on behind
/// them.
#[inline]
pub(super) fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, Malformed> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        if index == 9 && 1 < *byte {
            return Err(BAD_VARINT);
        }
        value |= bits << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if bytes.len() < 10 { Ok(None) } else { Err(BAD_VARINT) }
}

/// A field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireValue<'a> {
    Varint(u64),
    Fixed64(&'a [u8; 8]),
    Fixed32(&'a [u8; 4]),
    /// A text, bytes, a message, or packed numbers.
    Bytes(&'a [u8]),
}

impl<'a> WireValue<'a> {
    /// Bytes or a message.
    #[inline]
    pub(crate) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            WireValue::Bytes(bytes) => Ok(bytes),
            _ => Err(BAD_TYPE),
        }
    }

    /// A text.
    #[inline]
    pub(crate) fn text(self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| BAD_TEXT)
    }
}

/// The fields of one message in the order they come.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Of a whole message.
    pub(crate) fn of(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message }
    }

    /// A varint that stands alone, as packed ones do; `None` at the end.
    #[inline]
    pub(crate) fn packed_varint(&mut self) -> Result<Option<u64>, Malformed> {
        if self.rest.is_empty() { Ok(None) } else { self.varint().map(Some) }
    }

    /// The next field's number and value; `None` at the end.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<(u32, WireValue<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = key(self.varint()?)?;
        let value = match wire_type {
            WireType::Varint => WireValue::Varint(self.varint()?),
            WireType::Fixed64 => WireValue::Fixed64(self.array()?),
            WireType::Fixed32 => WireValue::Fixed32(self.array()?),
            WireType::Bytes => {
                let length = usize::try_from(self.varint()?).map_err(|_| TRUNCATED)?;
                let (bytes, rest) = self.rest.split_at_checked(length).ok_or(TRUNCATED)?;
                self.rest = rest;
                WireValue::Bytes(bytes)
            }
        };
        Ok(Some((number, value)))
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        let (value, length) = varint(self.rest)?.ok_or(TRUNCATED)?;
        self.rest = &self.rest[length..];
        Ok(value)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(message: &[u8]) -> Result<Vec<(u32, WireValue<'_>)>, Malformed> {
        let mut fields = Fields::of(message);
        std::iter::from_fn(|| fields.next().transpose()).collect()
    }

    #[test]
    fn fields_of_every_type_are_read() {
        let message = b"\x08\x96\x01\x11\x01\x02\x03\x04\x05\x06\x07\x08\x1a\x02hi\x25abcd\x22\0";
        let expected = [
            (1, WireValue::Varint(150)),
            (2, WireValue::Fixed64(&[1, 2, 3, 4, 5, 6, 7, 8])),
            (3, WireValue::Bytes(b"hi")),
            (4, WireValue::Fixed32(b"abcd")),
            (4, WireValue::Bytes(b"")),
        ];
        assert_eq!(all(message).unwrap(), expected);
        assert_eq!(all(b"").unwrap(), []);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let too_long = [&[0x08][..], &[0xff; 10]].concat();
        let too_large = [&[0x08][..], &[0xff; 9], &[2]].concat();
        for (message, expected) in [
            (&b"\x08"[..], TRUNCATED),
            (b"\x08\x80", TRUNCATED),
            (b"\x11\x01\x02", TRUNCATED),
            (b"\x25abc", TRUNCATED),
            (b"\x1a\x03hi", TRUNCATED),
            (b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", TRUNCATED),
            (&too_long, BAD_VARINT),
            (&too_large, BAD_VARINT),
            (b"\x00\x01", Malformed("invalid tag value: 0")),
            (b"\x0b\x0c", Malformed("groups are not supported")),
            (b"\x0e", Malformed("invalid wire type value")),
            (b"\xff\xff\xff\xff\xff\x01\x01", Malformed("invalid key value")),
        ] {
            assert_eq!(all(message), Err(expected), "{message:02x?}");
        }
    }
}
