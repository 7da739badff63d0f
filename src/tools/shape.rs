//! Finds the shape of an input from what the config, its data and the command line say.

use troupe_base::tensor::shape_text;

/// What is known of an input's shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShapeHints<'a> {
    /// Of the config; -1: any size.
    pub(super) dims: &'a [i64],
    /// A dimension for the batch stands in front of `dims`.
    pub(super) is_batched: bool,
    /// From the command line.
    pub(super) given: Option<&'a [i64]>,
    /// Of the data, if it has one.
    pub(super) own: Option<&'a [i64]>,
    /// Elements of the data.
    pub(super) count: usize,
}

impl ShapeHints<'_> {
    /// The full shape. One that contradicts the config is the server's to refuse.
    pub(super) fn full(&self) -> Result<Vec<i64>, String> {
        if let Some(given) = self.given {
            return self.solve(&self.with_batch(given, 1)).map_err(|why| {
                let shape = shape_text(given);
                format!("its data has {} elements, which --shape {shape} {why}", self.count)
            });
        }
        let own = self.own.map(|own| self.with_batch(own, 1));
        match own {
            Some(own) if self.fits(&own) || 1 < self.own.map_or(0, <[i64]>::len) => Ok(own),
            _ => self.deduce(),
        }
    }

    /// The dimensions with one for the batch, if they lack it.
    fn with_batch(&self, dims: &[i64], batch: i64) -> Vec<i64> {
        let lacks = self.is_batched && dims.len() == self.dims.len();
        lacks.then_some(batch).into_iter().chain(dims.iter().copied()).collect()
    }

    fn fits(&self, shape: &[i64]) -> bool {
        let row = shape.get(usize::from(self.is_batched)..).unwrap_or_default();
        row.len() == self.dims.len()
            && row.iter().zip(self.dims).all(|(got, want)| *want == -1 || got == want)
    }

    /// The shape of flat data: one row if it can be, else as many as there are.
    fn deduce(&self) -> Result<Vec<i64>, String> {
        let row = self.with_batch(self.dims, 1);
        let rows = self.with_batch(self.dims, -1);
        self.solve(&row).or_else(|_| self.solve(&rows)).map_err(|why| {
            let (count, shape) = (self.count, shape_text(&rows));
            let fixed: i64 = rows.iter().filter(|it| **it != -1).product();
            let open = rows.iter().filter(|it| **it == -1).count();
            match open {
                0 => format!("its data has {count} elements, which shape {shape} {why}"),
                1 => format!(
                    "its data has {count} elements, which shape {shape} {why}: {fixed} of them make \
                     one row"
                ),
                _ => format!("its data has {count} elements, which shape {shape} {why}; give --shape"),
            }
        })
    }

    /// Puts the sizes in the place of every -1, if only one solution exists.
    fn solve(&self, dims: &[i64]) -> Result<Vec<i64>, &'static str> {
        let fixed = dims.iter().filter(|it| **it != -1);
        let fixed = fixed.copied().try_fold(1i64, i64::checked_mul).unwrap_or(i64::MAX);
        let count = self.count as i64;
        let open = dims.iter().filter(|it| **it == -1).count();
        let size = match open {
            0 if fixed == count => 1,
            0 => return Err("does not hold"),
            _ if fixed == 0 || count % fixed != 0 => return Err("cannot hold"),
            1 => count / fixed,
            _ if count == fixed => 1,
            _ => return Err("leaves open how to arrange"),
        };
        Ok(dims.iter().map(|it| if *it == -1 { size } else { *it }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(
        dims: (&[i64], bool),
        own: Option<&[i64]>,
        given: Option<&[i64]>,
        count: usize,
    ) -> Result<Vec<i64>, String> {
        ShapeHints { dims: dims.0, is_batched: dims.1, given, own, count }.full()
    }

    #[test]
    fn data_without_a_shape_gets_one() {
        for (dims, is_batched, count, expected) in [
            (&[-1][..], false, 7, &[7][..]),
            (&[-1], false, 0, &[0]),
            (&[4], false, 4, &[4]),
            (&[-1, 3], false, 12, &[4, 3]),
            (&[-1, -1, 3], false, 3, &[1, 1, 3]),
            (&[4], true, 4, &[1, 4]),
            (&[4], true, 12, &[3, 4]),
            (&[-1], true, 12, &[1, 12]),
            (&[], true, 12, &[12]),
            (&[], false, 1, &[]),
            (&[1], true, 1, &[1, 1]),
        ] {
            assert_eq!(full((dims, is_batched), None, None, count).unwrap(), expected);
        }
        for (dims, count, expected) in [
            (&[4][..], 5, "its data has 5 elements, which shape [4] does not hold"),
            (
                &[-1, 4],
                5,
                "its data has 5 elements, which shape [-1,4] cannot hold: 4 of them make one row",
            ),
            (
                &[-1, -1],
                6,
                "its data has 6 elements, which shape [-1,-1] leaves open how to arrange; give \
                 --shape",
            ),
        ] {
            assert_eq!(full((dims, false), None, None, count).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_missing_batch_dimension_is_added() {
        for (dims, is_batched, own, expected) in [
            (&[-1, 3][..], true, &[2, 3][..], &[1, 2, 3][..]),
            (&[-1, 3], true, &[5, 2, 3], &[5, 2, 3]),
            (&[-1, 3], false, &[2, 3], &[2, 3]),
            (&[4], true, &[4], &[1, 4]),
            (&[4], true, &[8], &[2, 4]),
            (&[2, 2], false, &[4], &[2, 2]),
            (&[1], true, &[], &[1, 1]),
            (&[2, 2], false, &[4, 1], &[4, 1]),
            (&[2, 2], false, &[1, 4, 1], &[1, 4, 1]),
        ] {
            let count = own.iter().product::<i64>() as usize;
            assert_eq!(full((dims, is_batched), Some(own), None, count).unwrap(), expected);
        }
    }

    #[test]
    fn the_command_line_has_the_last_word() {
        let dims = (&[-1, -1, 3][..], true);
        for (given, count, expected) in [
            (&[1, 2, 3][..], 6, &[1, 1, 2, 3][..]),
            (&[2, 1, 1, 3], 6, &[2, 1, 1, 3]),
            (&[-1, 2, 3], 12, &[1, 2, 2, 3]),
            (&[6], 6, &[6]),
        ] {
            assert_eq!(full(dims, None, Some(given), count).unwrap(), expected);
        }
        let error = full(dims, Some(&[2, 3]), Some(&[7]), 6).unwrap_err();
        assert_eq!(error, "its data has 6 elements, which --shape [7] does not hold");
    }
}
