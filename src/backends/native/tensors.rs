//! What ops want of their tensors: dims at load, shapes and FP32 elements at run.

use bytes::Bytes;

use troupe_base::{
    backend::Tensors,
    config::{Input, Output},
    error::{Error, Result},
    tensor::{DataType, Shape, Tensor, shape_text},
};

/// Can a tensor of these dims have the shape `wanted`? -1 is any size, on both sides.
pub(super) fn agree(dims: &[i64], wanted: &[i64]) -> bool {
    let same = |(a, b): (&i64, &i64)| a == b || *a == -1 || *b == -1;
    dims.len() == wanted.len() && dims.iter().zip(wanted).all(same)
}

/// Is this input, as the op sees it, of that type and shape?
pub(super) fn reads(input: &Input, dtype: DataType, wanted: &[i64]) -> bool {
    input.dtype == dtype && agree(input.reshape.as_ref().unwrap_or(&input.dims), wanted)
}

/// Is this output, as the op writes it, of that type and shape?
pub(super) fn writes(output: &Output, dtype: DataType, wanted: &[i64]) -> bool {
    output.dtype == dtype && agree(written(output), wanted)
}

/// The dims of an output as the op writes it.
pub(super) fn written(output: &Output) -> &[i64] {
    output.reshape.as_ref().unwrap_or(&output.dims)
}

/// Takes an input the op cannot do without, of a shape like `wanted`.
pub(super) fn take(
    inputs: &mut Tensors,
    index: usize,
    name: &str,
    wanted: &[i64],
) -> Result<Tensor> {
    let Some(tensor) = inputs.get_mut(index).and_then(Option::take) else {
        return Err(Error::invalid(format!("input `{name}` is missing")));
    };
    if agree(tensor.shape(), wanted) {
        return Ok(tensor);
    }
    Err(Error::invalid(format!(
        "input `{name}` has shape {}, expected {}",
        shape_text(tensor.shape()),
        shape_text(wanted)
    )))
}

/// The elements of an FP32 tensor, which may begin at any byte.
#[derive(Clone, Copy)]
pub(super) struct Floats<'a>(&'a [[u8; 4]]);

impl<'a> Floats<'a> {
    pub(super) fn of(tensor: &'a Tensor) -> Floats<'a> {
        Floats(tensor.data().as_chunks().0)
    }

    pub(super) fn iter(self) -> impl ExactSizeIterator<Item = f32> + 'a {
        self.0.iter().map(|it| f32::from_le_bytes(*it))
    }

    /// `count` elements from `start` on, which the caller knows to be there.
    pub(super) fn range(self, start: usize, count: usize) -> Floats<'a> {
        Floats(&self.0[start..start + count])
    }

    /// Elements `start..start + N`, which the caller knows to be there.
    pub(super) fn array<const N: usize>(self, start: usize) -> [f32; N] {
        std::array::from_fn(|index| f32::from_le_bytes(self.0[start + index]))
    }
}

/// An FP32 tensor of these elements.
pub(super) fn floats(shape: &[i64], elements: impl IntoIterator<Item = f32>) -> Result<Tensor> {
    let data: Vec<u8> = elements.into_iter().flat_map(f32::to_le_bytes).collect();
    Tensor::new(DataType::Fp32, Shape::from_slice(shape), Bytes::from(data))
}
