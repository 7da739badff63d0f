//! Error texts, in Triton's words, that say why the bytes of an input are not what its shape
//! promises.

use troupe_base::{
    error::Error,
    tensor::{DataType, element_count},
};

/// Which input of which model an error is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputContext<'a> {
    /// The input's name.
    pub(super) input: &'a str,
    /// The model's name.
    pub(super) model: &'a str,
    /// The request's, empty if the client sent none.
    pub(super) id: &'a str,
}

impl InputContext<'_> {
    /// An error that begins with the request's id, as Triton's checks of inputs do.
    pub(super) fn tagged(&self, text: &str) -> Error {
        let id = if self.id.is_empty() { "<id_unknown>" } else { self.id };
        Error::invalid(format!("[request id: {id}] {text}"))
    }
}

/// The error for `data`, which `Tensor::new` refused.
pub(super) fn explain(dtype: DataType, shape: &[i64], data: &[u8], about: &InputContext) -> Error {
    let input = about.input;
    let count = match element_count(shape) {
        Ok(count) => count,
        Err(error) => {
            return about.tagged(&format!("invalid shape for input '{input}': {error}"));
        }
    };
    let Some(size) = dtype.size() else {
        return about.tagged(&explain_strings(count, data, about));
    };
    match count.checked_mul(size) {
        Some(expected) => size_mismatch(expected, data.len(), about),
        None => about.tagged(&format!(
            "byte size overflow for input '{input}': element count ({count}) * data type size \
             ({size}) exceeds maximum allowed size ({})",
            isize::MAX
        )),
    }
}

/// What to write in place of a data type that there is not, behind a separator.
pub(super) fn unknown_dtype(text: &str) -> String {
    match (text.strip_prefix("TYPE_").unwrap_or(text), DataType::meant_by(text)) {
        ("STRING" | "BYTES", _) => {
            ": strings are 'BYTES' in requests, 'TYPE_STRING' in configs".to_owned()
        }
        (name, Some(_)) if name.len() < text.len() => {
            ": in requests it stands without 'TYPE_'".to_owned()
        }
        (_, Some(meant)) => format!(", did you mean `{}`?", meant.as_str()),
        _ => String::new(),
    }
}

/// The error for so many bytes where others were expected.
pub(super) fn size_mismatch(expected: usize, got: usize, about: &InputContext) -> Error {
    let InputContext { input, model, .. } = about;
    about.tagged(&format!(
        "input byte size mismatch for input '{input}' for model '{model}'. Expected {expected}, \
         got {got}"
    ))
}

fn explain_strings(expected: usize, data: &[u8], about: &InputContext) -> String {
    let at = format!("inference input '{}' for model '{}'", about.input, about.model);
    let mut rest = data;
    let mut found = 0;
    while !rest.is_empty() {
        if found == expected {
            return format!(
                "unexpected number of string elements {} for {at}, expecting {expected}",
                found + 1
            );
        }
        let Some((length, tail)) = rest.split_first_chunk::<4>() else {
            return format!(
                "incomplete string length indicator for {at}, expecting 4 bytes but only {} bytes \
                 available. Please make sure the string length indicator is in one buffer.",
                rest.len()
            );
        };
        let length = u32::from_le_bytes(*length) as usize;
        let Some(tail) = tail.get(length..) else {
            return format!(
                "incomplete string data for {at}, expecting string of length {length} but only {} \
                 bytes available.",
                tail.len()
            );
        };
        rest = tail;
        found += 1;
    }
    format!("expected {expected} string elements for {at}, got {found}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mismatch_has_tritons_text() {
        let about = InputContext { input: "i", model: "m", id: "7" };
        let huge: &[i64] = &[1 << 40, 1 << 21];
        let cases: [(DataType, &[i64], &[u8], &str); 8] = [
            (
                DataType::Fp32,
                &[2],
                b"1234",
                "input byte size mismatch for input 'i' for model 'm'. Expected 8, got 4",
            ),
            (
                DataType::Fp32,
                &[-2],
                b"",
                "invalid shape for input 'i': shape [-2] contains one or more invalid dimensions",
            ),
            (
                DataType::Fp32,
                &[1 << 40, 1 << 40],
                b"",
                "invalid shape for input 'i': shape [1099511627776,1099511627776] causes total \
                 element count to exceed maximum size of 9223372036854775807",
            ),
            (
                DataType::Fp64,
                huge,
                b"",
                "byte size overflow for input 'i': element count (2305843009213693952) * data \
                 type size (8) exceeds maximum allowed size (9223372036854775807)",
            ),
            (
                DataType::Bytes,
                &[1],
                b"\x01\0",
                "incomplete string length indicator for inference input 'i' for model 'm', \
                 expecting 4 bytes but only 2 bytes available. Please make sure the string length \
                 indicator is in one buffer.",
            ),
            (
                DataType::Bytes,
                &[1],
                b"\xff\0\0\0a",
                "incomplete string data for inference input 'i' for model 'm', expecting string of \
                 length 255 but only 1 bytes available.",
            ),
            (
                DataType::Bytes,
                &[2],
                b"\x01\0\0\0a",
                "expected 2 string elements for inference input 'i' for model 'm', got 1",
            ),
            (
                DataType::Bytes,
                &[1],
                b"\0\0\0\0\0\0\0\0",
                "unexpected number of string elements 2 for inference input 'i' for model 'm', \
                 expecting 1",
            ),
        ];
        for (dtype, shape, data, expected) in cases {
            let error = explain(dtype, shape, data, &about).to_string();
            assert_eq!(error, format!("[request id: 7] {expected}"));
        }
    }
}
