//! Whether a request's rows fit the batch of a model: as they are, split, or not at all.

use super::Request;

/// How a request fits the batches of its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchFit {
    /// As it is.
    Fits,
    /// It has more rows than the model takes at once.
    Split,
    /// It has no rows.
    Empty,
}

/// How the request fits, and how many rows it has; 0 for a model that does not batch. `most` is the
/// model's `max_batch_size`.
#[inline]
pub fn batch_fit(most: u32, request: &Request) -> (BatchFit, u32) {
    if most == 0 {
        return (BatchFit::Fits, 0);
    }
    let first = request.inputs.iter().flatten().next();
    let rows = first.map_or(1, |it| u32::try_from(it.rows()).unwrap_or(u32::MAX));
    if (1..=most).contains(&rows) {
        return (BatchFit::Fits, rows);
    }
    // Inputs that do not have their rows alike are for the model to refuse.
    let lead = first.and_then(|it| it.shape().first());
    let is_alike = request.inputs.iter().flatten().all(|it| it.shape().first() == lead);
    match rows {
        _ if lead.is_none() || !is_alike => (BatchFit::Fits, rows),
        0 => (BatchFit::Empty, 0),
        _ => (BatchFit::Split, rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DataType, Tensor};

    fn tensor(shape: &[i64]) -> Option<Tensor> {
        let bytes = vec![0u8; shape.iter().product::<i64>() as usize];
        Some(Tensor::new(DataType::Uint8, shape.into(), bytes.into()).unwrap())
    }

    fn check(most: u32, shapes: &[&[i64]], expected: (BatchFit, u32)) {
        let inputs = shapes.iter().map(|it| tensor(it)).chain([None]).collect();
        let request = Request { inputs, ..Request::default() };
        assert_eq!(batch_fit(most, &request), expected, "{shapes:?} of at most {most}");
    }

    #[test]
    fn only_what_does_not_fit_is_treated_otherwise() {
        check(4, &[&[4, 1], &[4, 2]], (BatchFit::Fits, 4));
        check(4, &[&[5, 1], &[5, 2]], (BatchFit::Split, 5));
        check(4, &[&[0, 1], &[0, 2]], (BatchFit::Empty, 0));
        check(4, &[], (BatchFit::Fits, 1));
        check(0, &[&[5, 1]], (BatchFit::Fits, 0));
        check(0, &[&[0, 1]], (BatchFit::Fits, 0));
        check(4, &[&[1 << 40, 0]], (BatchFit::Split, u32::MAX));
    }

    #[test]
    fn what_no_model_would_take_is_left_to_it() {
        check(4, &[&[5, 1], &[1, 2]], (BatchFit::Fits, 5));
        check(4, &[&[0, 1], &[1, 2]], (BatchFit::Fits, 0));
        check(4, &[&[]], (BatchFit::Fits, 0));
    }
}
