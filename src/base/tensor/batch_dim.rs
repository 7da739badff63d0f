//! Fits tensors between models that batch and models that do not.

use super::{Shape, Tensor};

/// Adds or takes the batch dimension where producer and reader disagree about it; `dims` are the
/// reader's, without a batch. What does not fit is passed on as it is: the reader will say why.
#[inline]
pub fn adapt_batch_dim(tensor: Tensor, batch: u32, reader_batches: bool, dims: &[i64]) -> Tensor {
    let is_batched = batch != 0;
    if is_batched == reader_batches {
        return tensor;
    }
    let shape = tensor.shape();
    let fits = shape.len() == dims.len()
        && shape.iter().zip(dims).all(|(got, want)| *want == -1 || got == want);
    let new: Shape = match (reader_batches, fits) {
        (true, true) => std::iter::once(1).chain(shape.iter().copied()).collect(),
        (false, false) if shape.first() == Some(&1) && batch == 1 => shape[1..].into(),
        _ => return tensor,
    };
    let whole = tensor.clone();
    tensor.reshaped(new).unwrap_or(whole)
}

#[cfg(test)]
mod tests {
    use super::super::DataType;
    use super::*;

    fn check(shape: &[i64], batch: u32, reader: (bool, &[i64]), expected: &[i64]) {
        let bytes = vec![0u8; shape.iter().product::<i64>() as usize];
        let tensor = Tensor::new(DataType::Uint8, shape.into(), bytes.into()).unwrap();
        assert_eq!(adapt_batch_dim(tensor, batch, reader.0, reader.1).shape(), expected);
    }

    #[test]
    fn a_batch_dimension_is_added_for_a_batching_reader() {
        check(&[16], 0, (true, &[16]), &[1, 16]);
        check(&[3, 16], 0, (true, &[16]), &[3, 16]);
        check(&[8, 9, 3], 0, (true, &[-1, -1, 3]), &[1, 8, 9, 3]);
    }

    #[test]
    fn a_batch_dimension_that_is_there_is_left() {
        check(&[1, 8, 9, 3], 0, (true, &[-1, -1, 3]), &[1, 8, 9, 3]);
        check(&[5, 1, 32, 100], 0, (true, &[1, 32, 100]), &[5, 1, 32, 100]);
        check(&[0, 1, 32, 100], 0, (true, &[1, 32, 100]), &[0, 1, 32, 100]);
        check(&[0, 26, 37], 0, (false, &[-1, 26, 37]), &[0, 26, 37]);
    }

    #[test]
    fn a_batch_of_one_is_taken_for_a_reader_that_does_not_batch() {
        check(&[1, 16], 1, (false, &[16]), &[16]);
        check(&[1, 16], 1, (false, &[-1, 16]), &[1, 16]);
        check(&[2, 16], 2, (false, &[16]), &[2, 16]);
    }

    #[test]
    fn readers_that_agree_get_what_was_made() {
        check(&[2, 16], 2, (true, &[16]), &[2, 16]);
        check(&[16], 0, (false, &[16]), &[16]);
    }
}
