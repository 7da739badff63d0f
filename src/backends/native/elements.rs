//! Arithmetic on the elements of two tensors, whatever their type and alignment.

use bytes::Bytes;

use troupe_base::{
    backend::Placement,
    config::ModelConfig,
    error::{Error, Result},
    tensor::{DataType, Tensor},
};

/// Bytes of all inputs that are computed with, or copied, in well under 100 microseconds.
const MAX_QUICK_BYTES: usize = 1 << 15;
/// Rows of all tensors that are copied in that time.
const MAX_QUICK_PIECES: usize = 1 << 10;

/// What to compute of two elements. Integers wrap.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arithmetic {
    Add,
    Sub,
    Mul,
}

/// Types the arithmetic works on.
pub(super) const TYPES: &[DataType] = &[
    DataType::Int8,
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::Uint8,
    DataType::Uint16,
    DataType::Uint32,
    DataType::Uint64,
    DataType::Fp32,
    DataType::Fp64,
];

/// Computes element by element; both tensors must have the same type and shape.
pub(super) fn compute(op: Arithmetic, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.dtype() != b.dtype() || a.shape() != b.shape() {
        return Err(Error::invalid(format!(
            "cannot {op:?} {} {:?} and {} {:?}",
            a.dtype().as_str(),
            a.shape(),
            b.dtype().as_str(),
            b.shape()
        )));
    }
    macro_rules! integers {
        ($kind:ty) => {
            match op {
                Arithmetic::Add => {
                    zip(a, b, <$kind>::from_le_bytes, <$kind>::wrapping_add, |it| it.to_le_bytes())
                }
                Arithmetic::Sub => {
                    zip(a, b, <$kind>::from_le_bytes, <$kind>::wrapping_sub, |it| it.to_le_bytes())
                }
                Arithmetic::Mul => {
                    zip(a, b, <$kind>::from_le_bytes, <$kind>::wrapping_mul, |it| it.to_le_bytes())
                }
            }
        };
    }
    macro_rules! floats {
        ($kind:ty) => {
            match op {
                Arithmetic::Add => {
                    zip(a, b, <$kind>::from_le_bytes, |x, y| x + y, |it| it.to_le_bytes())
                }
                Arithmetic::Sub => {
                    zip(a, b, <$kind>::from_le_bytes, |x, y| x - y, |it| it.to_le_bytes())
                }
                Arithmetic::Mul => {
                    zip(a, b, <$kind>::from_le_bytes, |x, y| x * y, |it| it.to_le_bytes())
                }
            }
        };
    }
    let data = match a.dtype() {
        DataType::Int8 => integers!(i8),
        DataType::Int16 => integers!(i16),
        DataType::Int32 => integers!(i32),
        DataType::Int64 => integers!(i64),
        DataType::Uint8 => integers!(u8),
        DataType::Uint16 => integers!(u16),
        DataType::Uint32 => integers!(u32),
        DataType::Uint64 => integers!(u64),
        DataType::Fp32 => floats!(f32),
        DataType::Fp64 => floats!(f64),
        other => {
            return Err(Error::unsupported(format!("cannot {op:?} {} tensors", other.as_str())));
        }
    };
    Tensor::new(a.dtype(), a.shape().into(), data)
}

fn zip<const N: usize, T>(
    a: &Tensor,
    b: &Tensor,
    read: impl Fn([u8; N]) -> T,
    compute: impl Fn(T, T) -> T,
    write: impl Fn(T) -> [u8; N],
) -> Bytes {
    let (a, _) = a.data().as_chunks::<N>();
    let (b, _) = b.data().as_chunks::<N>();
    let mut out = Vec::with_capacity(a.len() * N);
    for (x, y) in a.iter().zip(b) {
        out.extend_from_slice(&write(compute(read(*x), read(*y))));
    }
    out.into()
}

/// FP32 elements that `write` fills in, as little-endian bytes; they are zero before.
///
/// They begin at a multiple of 64, so that who takes them as floats need not copy them first.
pub(super) fn floats(count: usize, write: impl FnOnce(&mut [[u8; 4]])) -> Bytes {
    const BOUNDARY: usize = 64;
    let mut data = vec![0; count * 4 + BOUNDARY];
    let start = data.as_ptr().align_offset(BOUNDARY).min(BOUNDARY);
    write(data[start..][..count * 4].as_chunks_mut().0);
    Bytes::from(data).slice(start..start + count * 4)
}

/// Small tensors take microseconds; of unknown ones their bytes decide.
pub(super) fn placement(config: &ModelConfig) -> Placement {
    let rows = i64::from(config.max_batch_size.max(1));
    let small = |dims: &Vec<i64>| {
        dims.iter().all(|it| 0 <= *it)
            && dims.iter().try_fold(rows, |all, dim| all.checked_mul(*dim)).unwrap_or(i64::MAX)
                <= 1 << 14
    };
    match config.inputs.iter().all(|it| small(&it.dims)) {
        true => Placement::Shared,
        false => Placement::SharedUpTo(MAX_QUICK_BYTES),
    }
}

/// Of what takes the rows of each tensor one by one, with few bytes too.
pub(super) fn placement_by_rows(config: &ModelConfig) -> Placement {
    let types = config.inputs.iter().map(|it| it.dtype);
    // The rows of strings are looked for, each from the first on.
    let has_strings = types.into_iter().any(|it| it == DataType::Bytes);
    let tensors = config.inputs.len() + config.outputs.len();
    let pieces = (config.max_batch_size.max(1) as usize).saturating_mul(tensors);
    match !has_strings && pieces <= MAX_QUICK_PIECES {
        true => Placement::SharedUpTo(MAX_QUICK_BYTES),
        false => Placement::Own,
    }
}
