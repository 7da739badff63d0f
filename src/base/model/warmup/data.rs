//! Makes up the bytes of warm-up inputs.

use bytes::Bytes;

use crate::{
    error::Result,
    tensor::{DataType, Shape, Tensor},
};

/// Elements that every model can take: floats in `0.5..1`, integers in `0..=127`, both truths.
///
/// They are the same at every load, so that a failure can be seen again.
pub(super) fn random(dtype: DataType, elements: usize) -> Vec<u8> {
    let (fixed, free) = bits(dtype);
    let size = dtype.size().unwrap_or(0);
    let mut bytes = Vec::with_capacity(elements * size);
    let mut state = 0_u64;
    for _ in 0..elements {
        let element = fixed | mixed(&mut state) & free;
        bytes.extend_from_slice(&element.to_le_bytes()[..size]);
    }
    bytes
}

/// The bits every element has, and those that are left to chance.
fn bits(dtype: DataType) -> (u64, u64) {
    match dtype {
        DataType::Bool => (0, 1),
        // Positive, and with the exponent of one half.
        DataType::Fp16 => (0x3800, 0x03ff),
        DataType::Bf16 => (0x3f00, 0x007f),
        DataType::Fp32 => (0x3f00_0000, 0x007f_ffff),
        DataType::Fp64 => (0x3fe0 << 48, (1 << 52) - 1),
        _ => (0, 0x7f),
    }
}

/// The next number of the SplitMix64 generator.
fn mixed(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut it = *state;
    it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    it ^ (it >> 31)
}

/// One row as often as wanted; a copy, but of a single row none.
pub(super) fn repeated(row: Tensor, rows: usize) -> Result<Tensor> {
    if rows == 1 {
        return Ok(row);
    }
    let mut shape: Shape = row.shape().into();
    if let Some(batch) = shape.first_mut() {
        *batch = rows as i64;
    }
    Tensor::new(row.dtype(), shape, Bytes::from(row.data().repeat(rows)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements<const SIZE: usize>(dtype: DataType) -> Vec<[u8; SIZE]> {
        random(dtype, 1000).as_chunks().0.to_vec()
    }

    #[test]
    fn random_elements_are_sane_and_differ() {
        let floats: Vec<_> = elements(DataType::Fp32).into_iter().map(f32::from_le_bytes).collect();
        assert!(floats.iter().all(|it| (0.5..1.0).contains(it)));
        assert!(floats.windows(2).any(|it| it[0] != it[1]));
        let doubles: Vec<_> =
            elements(DataType::Fp64).into_iter().map(f64::from_le_bytes).collect();
        assert!(doubles.iter().all(|it| (0.5..1.0).contains(it)));
        // The upper half of an FP32 is a BF16.
        let brains = elements(DataType::Bf16).into_iter().map(|[a, b]| [0, 0, a, b]);
        assert!(brains.map(f32::from_le_bytes).all(|it| (0.5..1.0).contains(&it)));
        let halves = elements(DataType::Fp16).into_iter().map(u16::from_le_bytes);
        assert!(halves.into_iter().all(|it| (0x3800..0x3c00).contains(&it)));
        let small: Vec<_> = elements(DataType::Int64).into_iter().map(i64::from_le_bytes).collect();
        assert!(small.iter().all(|it| (0..=127).contains(it)));
        assert!(random(DataType::Int8, 1000).iter().all(|it| *it <= 127));
        let truths = random(DataType::Bool, 1000);
        assert!(truths.contains(&0) && truths.contains(&1) && truths.iter().all(|it| *it <= 1));
        assert_eq!(random(DataType::Uint16, 3), random(DataType::Uint16, 3));
    }

    #[test]
    fn rows_are_repeated_with_their_strings() {
        let row = Tensor::new(DataType::Bytes, [1, 1].into_iter().collect(), "\x01\0\0\0a".into());
        let rows = repeated(row.unwrap(), 3).unwrap();
        assert_eq!(rows.shape(), [3, 1]);
        assert_eq!(rows.strings().collect::<Vec<_>>(), [b"a"; 3]);
    }
}
