//! The classification extension: instead of an output, its largest elements as `value:class:label`.

use std::{cmp::Ordering, io::Write};

use troupe_base::{
    error::{Error, Result},
    model::ClassLabels,
    tensor::{DataType, Tensor, element_count},
};

/// Most elements of one row.
const MAX_ELEMENTS: usize = 1_000_000;

/// The `count` largest elements of every row of a tensor, as classes; the first dimension counts
/// rows if the model batches.
pub(crate) fn classify(
    tensor: &Tensor,
    is_batched: bool,
    count: usize,
    labels: Option<&ClassLabels>,
) -> Result<Tensor> {
    Classified { tensor, is_batched, count, labels }.tensor()
}

/// Have elements of the type classes?
pub(crate) fn has_classes(dtype: DataType) -> bool {
    !matches!(dtype, DataType::Bool | DataType::Fp16 | DataType::Bf16 | DataType::Bytes)
}

/// A tensor and what is wanted of it.
struct Classified<'a> {
    tensor: &'a Tensor,
    /// The first dimension counts rows, each classified by itself.
    is_batched: bool,
    count: usize,
    labels: Option<&'a ClassLabels>,
}

impl Classified<'_> {
    fn tensor(&self) -> Result<Tensor> {
        use DataType::*;
        let shape = self.tensor.shape();
        let (batch, row) = shape.split_at(usize::from(self.is_batched && !shape.is_empty()));
        let elements = element_count(row)?;
        if MAX_ELEMENTS < elements {
            return Err(Error::invalid("classification output tensor too large"));
        }
        let strings = match self.tensor.dtype() {
            Uint8 => self.strings(elements, u8::from_le_bytes),
            Uint16 => self.strings(elements, u16::from_le_bytes),
            Uint32 => self.strings(elements, u32::from_le_bytes),
            Uint64 => self.strings(elements, u64::from_le_bytes),
            Int8 => self.strings(elements, i8::from_le_bytes),
            Int16 => self.strings(elements, i16::from_le_bytes),
            Int32 => self.strings(elements, i32::from_le_bytes),
            Int64 => self.strings(elements, i64::from_le_bytes),
            Fp32 => self.strings(elements, |it| ClassFloat(f32::from_le_bytes(it).into())),
            Fp64 => self.strings(elements, |it| ClassFloat(f64::from_le_bytes(it))),
            other @ (Bool | Fp16 | Bf16 | Bytes) => {
                return Err(Error::invalid(format!(
                    "class result not available for output due to unsupported type '{}'",
                    other.as_str()
                )));
            }
        };
        let count = self.count.min(elements) as i64;
        Tensor::new(Bytes, batch.iter().copied().chain([count]).collect(), strings.into())
    }

    /// The classes of every row, as a BYTES tensor has them.
    fn strings<T: ClassValue, const N: usize>(
        &self,
        elements: usize,
        read: fn([u8; N]) -> T,
    ) -> Vec<u8> {
        let mut strings = Vec::new();
        let (values, _) = self.tensor.data().as_chunks::<N>();
        let mut classes = Vec::with_capacity(elements);
        for row in values.chunks(elements.max(1)) {
            let value = |class: u32| read(row[class as usize]);
            largest(row.len(), self.count, value, &mut classes);
            for class in &classes {
                let label = self.labels.and_then(|it| it.get(*class as usize));
                write(value(*class), *class, label, &mut strings);
            }
        }
        strings
    }
}

/// The `count` classes with the largest values, the first of equals first. Linear, but for them.
fn largest<T: ClassValue>(
    elements: usize,
    count: usize,
    value: impl Fn(u32) -> T,
    classes: &mut Vec<u32>,
) {
    // No row has more than `MAX_ELEMENTS`.
    classes.clear();
    classes.extend(0..elements as u32);
    let order = |a: &u32, b: &u32| value(*a).before(value(*b)).then_with(|| a.cmp(b));
    if count < elements {
        classes.select_nth_unstable_by(count, order);
        classes.truncate(count);
    }
    classes.sort_unstable_by(order);
}

fn write(value: impl ClassValue, class: u32, label: Option<&[u8]>, strings: &mut Vec<u8>) {
    let start = strings.len();
    strings.extend_from_slice(&[0; 4]);
    value.write(strings);
    // Writing to a vector cannot fail.
    let _ = write!(strings, ":{class}");
    if let Some(label) = label {
        strings.push(b':');
        strings.extend_from_slice(label);
    }
    // A label is shorter than its file, which is limited.
    let length = (strings.len() - start - 4) as u32;
    strings[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// An element that can be the largest.
trait ClassValue: Copy {
    /// `Less` if it comes first among classes, which is if it is larger.
    fn before(self, other: Self) -> Ordering;
    /// As `std::to_string` of C++ prints it.
    fn write(self, text: &mut Vec<u8>);
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl ClassValue for $type {
            fn before(self, other: Self) -> Ordering {
                other.cmp(&self)
            }
            fn write(self, text: &mut Vec<u8>) {
                let _ = write!(text, "{self}");
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 i8 i16 i32 i64);

/// Also of FP32: every one of its values is one of FP64.
#[derive(Clone, Copy)]
struct ClassFloat(f64);

impl ClassValue for ClassFloat {
    /// What is not a number comes last.
    fn before(self, other: Self) -> Ordering {
        let by_nan = || self.0.is_nan().cmp(&other.0.is_nan());
        other.0.partial_cmp(&self.0).unwrap_or_else(by_nan)
    }

    fn write(self, text: &mut Vec<u8>) {
        let _ = match (self.0.is_nan(), self.0.is_sign_negative()) {
            (true, true) => write!(text, "-nan"),
            (true, false) => write!(text, "nan"),
            _ => write!(text, "{:.6}", self.0),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::tensor::Shape;

    fn classify(
        (dtype, data): (DataType, &[u8]),
        shape: &[i64],
        is_batched: bool,
        count: usize,
    ) -> Result<(Vec<i64>, Vec<String>)> {
        let tensor = Tensor::new(dtype, Shape::from_slice(shape), data.to_vec().into()).unwrap();
        let labels = ClassLabels::new(b"zero\none\n\nthree\n".to_vec());
        let labels = Some(&labels);
        let classes = Classified { tensor: &tensor, is_batched, count, labels }.tensor()?;
        assert_eq!(classes.dtype(), DataType::Bytes);
        let strings = classes.strings().map(|it| String::from_utf8_lossy(it).into_owned());
        Ok((classes.shape().to_vec(), strings.collect()))
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|it| it.to_le_bytes()).collect()
    }

    #[track_caller]
    fn check(data: (DataType, &[u8]), shape: &[i64], count: usize, expected: &[&str]) {
        let (shape, strings) = classify(data, shape, false, count).unwrap();
        assert_eq!(
            (shape, strings),
            (vec![expected.len() as i64], expected.iter().map(|it| (*it).to_owned()).collect())
        );
    }

    #[test]
    fn values_are_printed_as_triton_prints_them() {
        use DataType::*;
        check(
            (Fp32, &floats(&[15.346_23, 1e20])),
            &[2],
            9,
            &["100000002004087734272.000000:1:one", "15.346230:0:zero"],
        );
        check(
            (Fp32, &floats(&[-0.0, -1e-9, -2.5])),
            &[3],
            9,
            &["-0.000000:0:zero", "-0.000000:1:one", "-2.500000:2"],
        );
        check(
            (Fp64, &[0.1f64.to_le_bytes(), 2.000_000_5f64.to_le_bytes()].concat()),
            &[2],
            1,
            &["2.000001:1:one"],
        );
        check((Uint8, &[1, 255]), &[2], 2, &["255:1:one", "1:0:zero"]);
        check((Int8, &[1, 255]), &[2], 2, &["1:0:zero", "-1:1:one"]);
        check((Int16, &[0, 128, 255, 127]), &[2], 2, &["32767:1:one", "-32768:0:zero"]);
        check((Uint16, &[0, 128, 255, 127]), &[2], 2, &["32768:0:zero", "32767:1:one"]);
        check((Int32, &i32::MIN.to_le_bytes()), &[1], 2, &["-2147483648:0:zero"]);
        check((Uint32, &u32::MAX.to_le_bytes()), &[1], 2, &["4294967295:0:zero"]);
        check((Int64, &i64::MIN.to_le_bytes()), &[1], 2, &["-9223372036854775808:0:zero"]);
        check((Uint64, &u64::MAX.to_le_bytes()), &[1], 2, &["18446744073709551615:0:zero"]);
    }

    #[test]
    fn equals_keep_their_order_and_what_is_no_number_comes_last() {
        let values = [f32::NAN, 1.0, f32::INFINITY, 1.0, -f32::NAN, f32::NEG_INFINITY, 2.0];
        let expected = [
            "inf:2",
            "2.000000:6",
            "1.000000:1:one",
            "1.000000:3:three",
            "-inf:5",
            "nan:0:zero",
            "-nan:4",
        ];
        for count in 1..=7 {
            check((DataType::Fp32, &floats(&values)), &[7], count, &expected[..count]);
        }
        let same = floats(&[0.5; 1000]);
        check((DataType::Fp32, &same), &[1000], 2, &["0.500000:0:zero", "0.500000:1:one"]);
    }

    #[test]
    fn every_row_of_a_batch_is_classified_by_itself() {
        let data = floats(&[1.0, 2.0, 4.0, 3.0]);
        let of = |shape: &[i64], batched, count| {
            classify((DataType::Fp32, &data), shape, batched, count).unwrap()
        };
        assert_eq!(of(&[2, 2], true, 1).0, [2, 1]);
        assert_eq!(of(&[2, 2], true, 1).1, ["2.000000:1:one", "4.000000:0:zero"]);
        assert_eq!(of(&[4, 1], true, 9).0, [4, 1]);
        assert_eq!(of(&[2, 2], false, 1).1, ["4.000000:2"]);
        assert_eq!(of(&[1, 2, 2], true, 1).1, ["4.000000:2"]);
        let none =
            |shape: &[i64], batched| classify((DataType::Fp32, &[]), shape, batched, 3).unwrap().0;
        assert_eq!(none(&[2, 0], true), [2, 0]);
        assert_eq!(none(&[0, 2], true), [0, 2]);
        assert_eq!(none(&[0], false), [0]);
        assert_eq!(classify((DataType::Uint8, &[7]), &[], true, 3).unwrap().0, [1]);
    }

    #[test]
    fn what_cannot_be_classified_is_refused() {
        for (dtype, data) in [
            (DataType::Bool, &[1][..]),
            (DataType::Fp16, &[0, 0]),
            (DataType::Bf16, &[0, 0]),
            (DataType::Bytes, &[0; 4]),
        ] {
            let error = classify((dtype, data), &[1], false, 1).unwrap_err().to_string();
            let start = "class result not available for output due to unsupported type";
            assert_eq!(error, format!("{start} '{}'", dtype.as_str()));
        }
        let many = vec![0; MAX_ELEMENTS + 1];
        let data = (DataType::Uint8, &many[..]);
        let shape = [1, many.len() as i64];
        let error = classify(data, &shape, true, 1).unwrap_err().to_string();
        assert_eq!(error, "classification output tensor too large");
        assert_eq!(classify(data, &[many.len() as i64, 1], true, 1).unwrap().1.len(), many.len());
    }
}
