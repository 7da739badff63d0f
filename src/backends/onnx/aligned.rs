//! Bytes of a tensor as ONNX Runtime may read them.

use troupe_base::tensor::{DataType, Tensor};

/// Where its elements may start: at multiples of their size, as compilers expect.
pub(super) enum Aligned<'a> {
    /// The tensor's own bytes.
    Given(&'a [u8]),
    /// A copy of so many bytes.
    Copied(Vec<u64>, usize),
}

/// Copies only what lies badly, or what is no truth value and says it is one.
pub(super) fn aligned(tensor: &Tensor) -> Aligned<'_> {
    let data = &tensor.data()[..];
    let size = tensor.dtype().size().unwrap_or(1);
    if tensor.dtype() == DataType::Bool && 1 < data.iter().fold(0, |all, it| all | it) {
        // C++ may do anything with a `bool` that is neither 0 nor 1.
        let truths: Vec<u8> = data.iter().map(|it| u8::from(*it != 0)).collect();
        return Aligned::Copied(words(&truths), data.len());
    }
    if (data.as_ptr() as usize).is_multiple_of(size) {
        Aligned::Given(data)
    } else {
        Aligned::Copied(words(data), data.len())
    }
}

fn words(data: &[u8]) -> Vec<u64> {
    let (whole, rest) = data.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let whole = whole.iter().map(|it| u64::from_ne_bytes(*it));
    whole.chain((!rest.is_empty()).then(|| u64::from_ne_bytes(last))).collect()
}

impl Aligned<'_> {
    /// The bytes themselves.
    #[allow(unsafe_code, reason = "reads words as bytes")]
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Aligned::Given(data) => data,
            Aligned::Copied(words, len) => {
                let len = *len.min(&size_of_val(&words[..]));
                // SAFETY: any word is eight valid bytes, and `len` stays within them.
                unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), len) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn what_lies_well_is_borrowed_and_what_does_not_is_copied() {
        let all = Bytes::from((0..64).collect::<Vec<u8>>());
        let first = all.as_ptr().align_offset(8);
        for (offset, dtype, is_given) in [
            (0, DataType::Fp64, true),
            (4, DataType::Fp64, false),
            (4, DataType::Fp32, true),
            (1, DataType::Fp32, false),
            (1, DataType::Fp16, false),
            (3, DataType::Uint8, true),
        ] {
            let data = all.slice(first + offset..first + offset + 24);
            let count = 24 / dtype.size().unwrap() as i64;
            let tensor = Tensor::new(dtype, [count].into_iter().collect(), data.clone()).unwrap();
            let aligned = aligned(&tensor);
            assert_eq!(matches!(aligned, Aligned::Given(_)), is_given, "{offset} {dtype:?}");
            assert_eq!(aligned.bytes(), &data[..]);
        }
    }

    #[test]
    fn truth_values_are_0_or_1() {
        let data = Bytes::from_static(&[0, 1, 2, 255, 1, 0, 128, 1, 7]);
        let tensor = Tensor::new(DataType::Bool, [9].into_iter().collect(), data).unwrap();
        assert_eq!(aligned(&tensor).bytes(), [0, 1, 1, 1, 1, 0, 1, 1, 1]);
    }
}
