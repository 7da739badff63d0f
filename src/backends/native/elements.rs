//! Arithmetic on the elements of two tensors, whatever their type and alignment.

use bytes::Bytes;

use troupe_base::{
    backend::Placement,
    config::ModelConfig,
    error::{Error, Result},
    tensor::{DataType, Tensor},
};

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

/// Small tensors take microseconds; of unknown ones we expect the worst.
pub(super) fn placement(config: &ModelConfig) -> Placement {
    let rows = i64::from(config.max_batch_size.max(1));
    let small = |dims: &Vec<i64>| {
        dims.iter().all(|it| 0 <= *it)
            && dims.iter().try_fold(rows, |all, dim| all.checked_mul(*dim)).unwrap_or(i64::MAX)
                <= 1 << 14
    };
    if config.inputs.iter().all(|it| small(&it.dims)) { Placement::Shared } else { Placement::Own }
}
