//! Compares two tensors byte by byte: whether they are equal, and if not, how far apart.

use crate::elements::Elements;
use troupe_base::tensor::{Tensor, shape_text};

/// Characters of a string that are shown.
const MAX_STRING_CHARS: usize = 40;

/// How a tensor differs from what it was.
#[derive(Debug, PartialEq)]
pub(super) enum Difference {
    /// Its type or its shape is another.
    Kind,
    /// Some elements are others.
    Elements(ElementDifferences),
}

/// Which elements differ.
#[derive(Debug, PartialEq)]
pub(super) struct ElementDifferences {
    pub(super) count: usize,
    /// Elements of the tensor.
    pub(super) all: usize,
    /// Where the first is.
    pub(super) first: Vec<usize>,
    /// The first as it was.
    pub(super) was: String,
    /// The first as it is now.
    pub(super) now: String,
    /// The largest distance; not a number where one of two is none. `None` for strings.
    pub(super) max_abs: Option<f64>,
}

/// `None` if all bytes are the same.
pub(super) fn difference(was: &Tensor, is: &Tensor) -> Option<Difference> {
    if was.dtype() != is.dtype() || was.shape() != is.shape() {
        return Some(Difference::Kind);
    }
    if was.data() == is.data() {
        return None;
    }
    let others: Vec<usize> = match was.dtype().size() {
        Some(size) => {
            let pairs = was.data().chunks(size).zip(is.data().chunks(size));
            pairs.enumerate().filter(|(_, (a, b))| a != b).map(|it| it.0).collect()
        }
        None => {
            let pairs = was.strings().zip(is.strings());
            pairs.enumerate().filter(|(_, (a, b))| a != b).map(|it| it.0).collect()
        }
    };
    let first = *others.first()?;
    let (before, after) = (Elements::new(was), Elements::new(is));
    let distances = others.iter().map(|it| before.distance(&after, *it));
    // `f64::max` would pass over what is not a number.
    let larger = |a: f64, b: f64| if a.is_nan() || b <= a { a } else { b };
    let max_abs = distances.reduce(|a, b| Some(larger(a?, b?))).flatten();
    let count = others.len();
    let all = was.shape().iter().map(|it| *it as usize).product();
    Some(Difference::Elements(ElementDifferences {
        count,
        all,
        first: place(first, was.shape()),
        was: before.text(first, MAX_STRING_CHARS),
        now: after.text(first, MAX_STRING_CHARS),
        max_abs,
    }))
}

/// An element's place along each dimension.
fn place(mut index: usize, shape: &[i64]) -> Vec<usize> {
    let mut place: Vec<usize> = Vec::new();
    for dim in shape.iter().rev() {
        let dim = (*dim as usize).max(1);
        place.push(index % dim);
        index /= dim;
    }
    place.reverse();
    place
}

/// `FP32 [2,3]`.
pub(super) fn kind(tensor: &Tensor) -> String {
    format!("{} {}", tensor.dtype().as_str(), shape_text(tensor.shape()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::tensor::DataType;

    fn tensor(dtype: DataType, shape: &[i64], data: Vec<u8>) -> Tensor {
        Tensor::new(dtype, shape.into(), data.into()).unwrap()
    }

    fn floats(shape: &[i64], values: &[f32]) -> Tensor {
        let data = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        tensor(DataType::Fp32, shape, data)
    }

    #[track_caller]
    fn check(was: &Tensor, is: &Tensor, expected: &str) {
        let text = match difference(was, is) {
            None => "equal".to_owned(),
            Some(Difference::Kind) => "another kind".to_owned(),
            Some(Difference::Elements(it)) => format!(
                "{} of {} at {:?}: {} {} by {:?}",
                it.count, it.all, it.first, it.was, it.now, it.max_abs
            ),
        };
        assert_eq!(text, expected);
    }

    #[test]
    fn the_first_and_the_largest_difference_are_told() {
        let was = floats(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, f32::NAN]);
        check(&was, &was.clone(), "equal");
        let is = floats(&[2, 3], &[0.0, 1.0, 2.0, 3.5, -4.0, f32::NAN]);
        check(&was, &is, "2 of 6 at [1, 0]: 3.0 3.5 by Some(8.0)");
        let is = floats(&[2, 3], &[-0.0, 1.0, 2.0, 3.0, 4.0, f32::NAN]);
        check(&was, &is, "1 of 6 at [0, 0]: 0.0 -0.0 by Some(0.0)");
        let is = floats(&[2, 3], &[f32::NAN, 9.0, 2.0, 3.0, 4.0, f32::NAN]);
        check(&was, &is, "2 of 6 at [0, 0]: 0.0 NaN by Some(NaN)");
        check(&was, &floats(&[3, 2], &[0.0; 6]), "another kind");
        check(&was, &tensor(DataType::Int32, &[2, 3], vec![0; 24]), "another kind");
        check(&floats(&[], &[1.0]), &floats(&[], &[2.0]), "1 of 1 at []: 1.0 2.0 by Some(1.0)");
    }

    #[test]
    fn every_kind_of_element_can_be_compared() {
        use DataType::*;
        let row = |dtype, was: &[u8], is: &[u8], expected: &str| {
            check(
                &tensor(dtype, &[1], was.to_vec()),
                &tensor(dtype, &[1], is.to_vec()),
                &format!("1 of 1 at [0]: {expected}"),
            );
        };
        row(Bool, &[0], &[1], "false true by Some(1.0)");
        row(Uint8, &[1], &[255], "1 255 by Some(254.0)");
        row(Int8, &[128], &[127], "-128 127 by Some(255.0)");
        row(Int64, &i64::MAX.to_le_bytes(), &(i64::MAX - 1).to_le_bytes(), {
            "9223372036854775807 9223372036854775806 by Some(1.0)"
        });
        row(Bf16, &[128, 63], &[0, 64], "1.0 2.0 by Some(1.0)");
        row(Fp16, &[0, 60], &[0, 64], "1.0 2.0 by Some(1.0)");
        row(Bytes, b"\x01\0\0\0a", b"\x02\0\0\0bc", "a bc by None");
    }
}
