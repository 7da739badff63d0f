//! A shape, an element type, and bytes. Cloning and slicing never copy the bytes.

mod batch_dim;
mod dtype;
mod owner;
mod pool;
mod segment;

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use self::segment::Held;
pub use self::{
    batch_dim::adapt_batch_dim,
    dtype::DataType,
    owner::{Owner, OwnerCell},
    pool::{OwnedPool, SegmentPool, SegmentSizes},
    segment::{Home, Lease, Segment, SegmentMut},
};
use crate::{
    budget::{Charge, Kind},
    error::{Error, Result},
};

/// Dimensions, the batch included.
pub type Shape = SmallVec<[i64; 6]>;

/// Invariant: fixed-size elements fill `data` exactly; BYTES elements are 4-byte little-endian
/// lengths each followed by that many bytes, as many as the shape says.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DataType,
    shape: Shape,
    data: Bytes,
    /// The shared segment `data` lies in, if it does: a Python worker maps it instead of copying.
    lease: Option<Held>,
    /// The budget knows of the bytes already.
    is_counted: bool,
}

impl Tensor {
    /// Checks that `data` holds what `shape` promises.
    pub fn new(dtype: DataType, shape: Shape, data: Bytes) -> Result<Tensor> {
        let elements = element_count(&shape)?;
        match dtype.size() {
            Some(size) => {
                let expected = elements.checked_mul(size).ok_or_else(|| too_large(&shape))?;
                if data.len() != expected {
                    return Err(Error::invalid(format!(
                        "shape {} of {} needs {expected} bytes, got {}",
                        shape_text(&shape),
                        dtype.as_str(),
                        data.len()
                    )));
                }
            }
            None => check_strings(&data, elements)?,
        }
        Ok(Tensor { dtype, shape, data, lease: None, is_counted: false })
    }

    /// Bytes that lie in a shared segment.
    pub fn in_segment(
        dtype: DataType,
        shape: Shape,
        lease: &Arc<Lease>,
        range: std::ops::Range<usize>,
    ) -> Result<Tensor> {
        let data = Lease::bytes(lease, range)?;
        let tensor = Tensor::new(dtype, shape, data)?;
        Ok(Tensor { lease: Some(Held::new(lease.clone())), ..tensor })
    }

    /// The same bytes, of which the budget knows: they are part of a body that is counted.
    pub fn of_counted(self) -> Tensor {
        Tensor { is_counted: true, ..self }
    }

    /// Charges the request for the bytes, unless somebody is charged for them or they are few;
    /// says whether it does. They are given back with the last tensor over them.
    pub fn charge(&mut self, charge: &Charge) -> bool {
        if self.is_counted || !charge.counts(self.data.len()) {
            return false;
        }
        self.data = charge.over(Kind::Tensors, std::mem::take(&mut self.data));
        self.is_counted = true;
        true
    }

    /// Zeros of the same type and shape; where it has strings, ones without characters.
    pub fn zeros_like(&self) -> Tensor {
        let elements = element_count(&self.shape).unwrap_or(0);
        let size = self.dtype.size().unwrap_or(size_of::<u32>());
        let data = vec![0; elements.saturating_mul(size)].into();
        Tensor::new(self.dtype, self.shape.clone(), data)
            .expect("a tensor of that type and shape exists")
    }

    /// The element type.
    #[inline]
    pub fn dtype(&self) -> DataType {
        self.dtype
    }
    /// Dimensions, the batch included.
    #[inline]
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }
    /// The raw little-endian elements.
    #[inline]
    pub fn data(&self) -> &Bytes {
        &self.data
    }
    /// The segment the bytes lie in and where, if they do.
    #[inline]
    pub fn segment(&self) -> Option<(&Arc<Lease>, usize)> {
        let lease = self.lease.as_ref()?.lease();
        Some((lease, lease.offset_of(&self.data)?))
    }
    /// Rows of the first dimension, 0 for a scalar.
    #[inline]
    pub fn rows(&self) -> usize {
        self.shape.first().map_or(0, |rows| *rows as usize)
    }

    /// The same bytes under another shape of as many elements.
    pub fn reshaped(mut self, shape: Shape) -> Result<Tensor> {
        if element_count(&shape)? != element_count(&self.shape)? {
            return Err(Error::internal(format!(
                "cannot reshape {} to {}",
                shape_text(&self.shape),
                shape_text(&shape)
            )));
        }
        self.shape = shape;
        Ok(self)
    }

    /// Rows `start..end` of the first dimension, sharing the bytes.
    ///
    /// The caller has checked that `end` is at most `rows()`.
    pub fn slice_rows(&self, start: usize, end: usize) -> Tensor {
        let mut shape = self.shape.clone();
        let rows = self.rows().max(1);
        shape[0] = (end - start) as i64;
        let range = if self.dtype == DataType::Bytes {
            let per_row = element_count(&self.shape).unwrap_or(0) / rows;
            let from = skip_strings(&self.data, 0, start * per_row);
            from..skip_strings(&self.data, from, (end - start) * per_row)
        } else {
            let row = self.data.len() / rows;
            start * row..end * row
        };
        let (data, lease) = (self.data.slice(range), self.lease.clone());
        Tensor { dtype: self.dtype, shape, data, lease, is_counted: self.is_counted }
    }

    /// Takes off the first rows of the first dimension; what is left shares the bytes with them.
    ///
    /// The caller has checked that `count` is at most `rows()`.
    pub fn split_to_rows(&mut self, count: usize) -> Tensor {
        let rows = self.rows().max(1);
        let mut shape = self.shape.clone();
        shape[0] = count as i64;
        let bytes = if self.dtype == DataType::Bytes {
            let per_row = element_count(&self.shape).unwrap_or(0) / rows;
            skip_strings(&self.data, 0, count * per_row)
        } else {
            self.data.len() / rows * count
        };
        self.shape[0] -= count as i64;
        let (data, lease) = (self.data.split_to(bytes), self.lease.clone());
        Tensor { dtype: self.dtype, shape, data, lease, is_counted: self.is_counted }
    }

    /// The elements of a BYTES tensor, in order.
    pub fn strings(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.data[..];
        std::iter::from_fn(move || {
            let (length, tail) = rest.split_first_chunk::<4>()?;
            let (element, tail) = tail.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = tail;
            Some(element)
        })
    }
}

/// Charges the request for inputs that nobody is charged for; RESOURCE_EXHAUSTED if by now there is
/// more than there may be.
pub fn charge_inputs(inputs: &mut [Option<Tensor>], charge: &Charge) -> Result<()> {
    if is_charged(inputs, charge) { charge.check_inputs() } else { Ok(()) }
}

/// The same for what a model answered to it.
pub fn charge_answer(outputs: &mut [Option<Tensor>], charge: &Charge) -> Result<()> {
    if is_charged(outputs, charge) { charge.check_answer() } else { Ok(()) }
}

/// Charges the request for all that nobody is charged for; was there anything?
fn is_charged(tensors: &mut [Option<Tensor>], charge: &Charge) -> bool {
    let mut is_more = false;
    for tensor in tensors.iter_mut().flatten() {
        is_more |= tensor.charge(charge);
    }
    is_more
}

/// Elements of a shape; negative dimensions and overflow are errors.
pub fn element_count(shape: &[i64]) -> Result<usize> {
    shape.iter().try_fold(1usize, |count, &dim| {
        let dim = usize::try_from(dim).map_err(|_| {
            Error::invalid(format!(
                "shape {} contains one or more invalid dimensions",
                shape_text(shape)
            ))
        })?;
        count
            .checked_mul(dim)
            .filter(|it| isize::try_from(*it).is_ok())
            .ok_or_else(|| too_large(shape))
    })
}

fn too_large(shape: &[i64]) -> Error {
    Error::invalid(format!(
        "shape {} causes total element count to exceed maximum size of {}",
        shape_text(shape),
        i64::MAX
    ))
}

/// `[1,2,3]`, as Triton prints shapes.
pub fn shape_text(shape: &[i64]) -> String {
    let dims: Vec<String> = shape.iter().map(i64::to_string).collect();
    format!("[{}]", dims.join(","))
}

/// How many whole strings `data` holds must be `expected`.
pub fn check_strings(data: &[u8], expected: usize) -> Result<()> {
    let mut rest = data;
    let mut found = 0;
    while !rest.is_empty() {
        let Some((length, tail)) = rest.split_first_chunk::<4>() else {
            return Err(Error::invalid(format!(
                "incomplete string length indicator, expecting 4 bytes but only {} bytes available",
                rest.len()
            )));
        };
        let length = u32::from_le_bytes(*length) as usize;
        let Some(tail) = tail.get(length..) else {
            return Err(Error::invalid(format!(
                "string element of {length} bytes ends after the data, of which {} bytes are left",
                tail.len()
            )));
        };
        rest = tail;
        found += 1;
    }
    if found != expected {
        return Err(Error::invalid(format!("expected {expected} string elements, got {found}")));
    }
    Ok(())
}

/// Where the string after `count` strings begins.
fn skip_strings(data: &[u8], mut at: usize, count: usize) -> usize {
    for _ in 0..count {
        let Some(length) = data.get(at..).and_then(|it| it.first_chunk::<4>()) else { break };
        at += 4 + u32::from_le_bytes(*length) as usize;
    }
    at.min(data.len())
}
