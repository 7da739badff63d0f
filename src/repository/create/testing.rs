//! Tensors for tests of `troupe new`, in short.

use super::wiring::StepTensor;
use troupe_base::tensor::DataType;

/// `text:BYTES[1] scale:FP32[1]?`
pub(crate) fn tensors(text: &str) -> Vec<StepTensor> {
    let one = |word: &str| {
        let (name, form) = word.rsplit_once(':').unwrap();
        let (dtype, dims) = form.trim_end_matches('?').split_once('[').unwrap();
        let dims = dims.trim_end_matches(']').split(',').filter(|it| !it.is_empty());
        StepTensor {
            name: name.to_owned(),
            dtype: DataType::parse(dtype).unwrap(),
            dims: dims.map(|it| it.parse().unwrap()).collect(),
            is_optional: form.ends_with('?'),
        }
    };
    text.split_whitespace().map(one).collect()
}
