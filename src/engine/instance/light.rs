//! Light executions: those of shapes that are known to take microseconds may run on a thread that
//! serves others.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

use troupe_base::request::Request;

/// An execution this short costs less than two threads waking each other.
const MAX_LIGHT_EXECUTION: Duration = Duration::from_micros(30);
/// No execution counts for more: one that was interrupted says little of the next.
const MAX_COUNTED_EXECUTION: Duration = Duration::from_micros(120);
/// Bytes of input of light work.
const MAX_LIGHT_BYTES: usize = 64 << 10;
/// Shapes that are remembered of a model.
const MAX_SHAPES: usize = 256;

/// Moving averages of how long a model's executions took, by the shapes of their inputs: what was
/// short with some shapes says nothing of others.
///
/// Only for models whose work depends on shapes alone. Each shape has one place in the table; the
/// last that came has it.
#[derive(Debug)]
pub(super) struct LightShapes {
    seen: Box<[SeenShape; MAX_SHAPES]>,
    /// Clients cannot choose shapes that look like others.
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct SeenShape {
    shape: ShapeKey,
    average: Duration,
}

/// The shapes of all inputs of one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShapeKey(u64);

impl LightShapes {
    /// Of a model that has to show that it is light.
    pub(super) fn unknown() -> LightShapes {
        let nothing = SeenShape { shape: ShapeKey(0), average: MAX_COUNTED_EXECUTION };
        LightShapes { seen: Box::new([nothing; MAX_SHAPES]), hasher: RandomState::new() }
    }

    /// The shapes of requests that are executed together; `None` if they have too many bytes to be
    /// light.
    pub(super) fn key<'a>(
        &self,
        requests: impl IntoIterator<Item = &'a Request>,
    ) -> Option<ShapeKey> {
        let mut hasher = self.hasher.build_hasher();
        let (mut rows, mut bytes, mut is_first) = (0, 0, true);
        for request in requests {
            rows += request.batch;
            bytes += request.inputs.iter().flatten().map(|it| it.data().len()).sum::<usize>();
            // Those that are joined have the same shapes but for their rows; where they need not,
            // their bytes tell.
            if std::mem::take(&mut is_first) {
                hash_shapes(request, &mut hasher);
            }
        }
        // A batch takes no more than twice as long as one of half its rows.
        hasher.write_u32(rows.checked_ilog2().unwrap_or(0));
        hasher.write_u32(bytes.checked_ilog2().unwrap_or(0));
        (bytes <= MAX_LIGHT_BYTES).then(|| ShapeKey(hasher.finish()))
    }

    /// Will an execution of these shapes most likely not keep others waiting?
    pub(super) fn covers(&self, shape: ShapeKey) -> bool {
        let seen = &self.seen[place(shape)];
        seen.shape == shape && seen.average < MAX_LIGHT_EXECUTION
    }

    /// One took so long.
    pub(super) fn add(&mut self, shape: ShapeKey, execution: Duration) {
        let seen = &mut self.seen[place(shape)];
        if seen.shape != shape {
            *seen = SeenShape { shape, average: MAX_COUNTED_EXECUTION };
        }
        seen.average = (seen.average * 7 + execution.min(MAX_COUNTED_EXECUTION)) / 8;
    }
}

/// Everything but the rows of batches.
fn hash_shapes(request: &Request, hasher: &mut impl Hasher) {
    for input in &request.inputs {
        let Some(tensor) = input else {
            hasher.write_u8(u8::MAX);
            continue;
        };
        let leading = usize::from(request.batch != 0);
        hasher.write_u8(tensor.shape().len() as u8);
        for dim in tensor.shape().iter().skip(leading) {
            hasher.write_i64(*dim);
        }
    }
}

fn place(shape: ShapeKey) -> usize {
    shape.0 as usize % MAX_SHAPES
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use troupe_base::tensor::{DataType, Tensor};

    /// A request with inputs of these shapes; the first dimension is rows.
    fn request(shapes: &[&[i64]]) -> Request {
        let tensor = |shape: &&[i64]| {
            let bytes = Bytes::from(vec![0; shape.iter().product::<i64>() as usize]);
            Some(Tensor::new(DataType::Uint8, (*shape).into(), bytes).unwrap())
        };
        let batch = shapes[0][0] as u32;
        Request { inputs: shapes.iter().map(tensor).collect(), batch, ..Request::default() }
    }

    #[test]
    fn a_shape_is_light_once_it_was_for_a_while_and_until_it_is_not() {
        let mut light = LightShapes::unknown();
        let shape = light.key([&request(&[&[1, 16]])]).unwrap();
        light.add(shape, Duration::from_micros(5));
        assert!(!light.covers(shape));
        (0..30).for_each(|_| light.add(shape, Duration::from_micros(5)));
        assert!(light.covers(shape));
        // Once may be an accident, and twice is none.
        light.add(shape, Duration::from_millis(5));
        assert!(light.covers(shape));
        light.add(shape, Duration::from_millis(5));
        assert!(!light.covers(shape));
    }

    #[test]
    fn other_shapes_are_others_of_as_many_bytes_too() {
        let mut light = LightShapes::unknown();
        let known = light.key([&request(&[&[1, 2, 8], &[1, 4]])]).unwrap();
        (0..30).for_each(|_| light.add(known, Duration::from_micros(5)));
        for (shapes, expected) in [
            (&[&[1, 2, 8][..], &[1, 4]][..], true),
            (&[&[1, 8, 2], &[1, 4]], false),
            (&[&[1, 16], &[1, 4]], false),
            (&[&[1, 4], &[1, 2, 8]], false),
            (&[&[2, 2, 4], &[2, 2]], false),
            (&[&[1, 2, 8]], false),
        ] {
            let shape = light.key([&request(shapes)]).unwrap();
            assert_eq!(light.covers(shape), expected, "{shapes:?}");
        }
        let mut left_out = request(&[&[1, 2, 8], &[1, 4]]);
        left_out.inputs[1] = None;
        assert!(!light.covers(light.key([&left_out]).unwrap()));
        assert!(light.key([&request(&[&[1, 70_000]])]).is_none());
    }

    #[test]
    fn rows_count_together_whoever_brought_them() {
        let light = LightShapes::unknown();
        let rows = |rows: i64| request(&[&[rows, 8]]);
        assert_eq!(light.key([&rows(3), &rows(1)]), light.key([&rows(4)]));
        assert_eq!(light.key([&rows(3), &rows(1)]), light.key([&rows(2), &rows(2)]));
        assert_eq!(light.key([&rows(4)]), light.key([&rows(7)]));
        assert_ne!(light.key([&rows(3)]), light.key([&rows(4)]));
    }
}
