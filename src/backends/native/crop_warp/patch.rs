//! The part of a picture between four corners, sampled evenly.

use super::size::CropSize;

/// x to the right, y down.
type Point = [f64; 2];

/// Samples of one pixel along one side; a pixel of a box shrunk by more is the mean of fewer than
/// lie below it, which recognisers do not mind.
const MAX_SAMPLES: usize = 4;

/// How much smaller the far side of a box may look than the near one.
const MIN_DEPTH: f64 = 0.02;

/// Leads from the unit square to the picture:
/// (`from` + u `across` + v `down` + uv `bent`) / (1 + u `depth`[0] + v `depth`[1]).
pub(super) struct Patch {
    from: Point,
    across: Point,
    down: Point,
    bent: Point,
    depth: [f64; 2],
    /// Lengths of the longer of the upper and lower side, of the left and right side.
    sides: [f64; 2],
}

impl Patch {
    /// The patch between top left, top right, bottom right and bottom left.
    pub(super) fn of(corners: [Point; 4]) -> Patch {
        let [a, b, c, d] = corners;
        let sides = [
            length(minus(b, a)).max(length(minus(c, d))),
            length(minus(d, a)).max(length(minus(c, b))),
        ];
        let warp = perspective(corners).unwrap_or_else(|| even(corners));
        Patch { sides, ..warp }
    }

    /// Calls `write` with each pixel of a crop, row by row, and its value: the mean of samples so
    /// close to each other that the whole picture below the pixel is seen.
    pub(super) fn sample<const N: usize>(
        &self,
        size: CropSize,
        read: impl Fn(Point) -> [f32; N],
        mut write: impl FnMut(usize, [f32; N]),
    ) {
        let columns = places(self.sides[0], size.width);
        let rows = places(self.sides[1], size.height);
        let (across, down) = (columns.len() / size.width, rows.len() / size.height);
        let weight = 1.0 / (across * down) as f32;
        for (row, vs) in rows.chunks_exact(down).enumerate() {
            for (column, us) in columns.chunks_exact(across).enumerate() {
                let mut sum = [0.0; N];
                for v in vs {
                    for u in us {
                        let value = read(self.at([*u, *v]));
                        sum.iter_mut().zip(value).for_each(|(sum, it)| *sum += it);
                    }
                }
                write(row * size.width + column, sum.map(|it| it * weight));
            }
        }
    }

    /// The picture's point below a point of the unit square.
    fn at(&self, [u, v]: Point) -> Point {
        let near = 1.0 / (1.0 + u * self.depth[0] + v * self.depth[1]);
        [0, 1].map(|axis| {
            let flat = self.from[axis] + u * self.across[axis] + v * self.down[axis];
            (flat + u * v * self.bent[axis]) * near
        })
    }
}

/// Where the samples of each pixel lie along a side of the unit square, as many for each pixel.
fn places(length: f64, pixels: usize) -> Vec<f64> {
    let steps = (pixels - 1) as f64;
    // The cast saturates, whatever the length.
    let samples = ((length / steps).round() as usize).clamp(1, MAX_SAMPLES);
    let part = |sample: usize| (sample as f64 + 0.5) / samples as f64 - 0.5;
    let places = (0..pixels).flat_map(|pixel| (0..samples).map(move |it| (pixel, it)));
    places.map(|(pixel, sample)| (pixel as f64 + part(sample)) / steps).collect()
}

/// The plane through a convex box, as a camera would see it; `None` for other boxes.
fn perspective([a, b, c, d]: [Point; 4]) -> Option<Patch> {
    let (from_b, from_d) = (minus(b, c), minus(d, c));
    let skew = [0, 1].map(|axis| a[axis] - b[axis] + c[axis] - d[axis]);
    let area = cross(from_b, from_d);
    let depth = [cross(skew, from_d) / area, cross(from_b, skew) / area];
    let corners = [1.0 + depth[0], 1.0 + depth[1], 1.0 + depth[0] + depth[1]];
    let near = corners.iter().fold(1.0, |near: f64, it| near.max(*it));
    if area == 0.0 || !corners.iter().chain([&1.0]).all(|it| MIN_DEPTH * near < *it) {
        return None;
    }
    Some(Patch {
        from: a,
        across: [0, 1].map(|axis| b[axis] - a[axis] + depth[0] * b[axis]),
        down: [0, 1].map(|axis| d[axis] - a[axis] + depth[1] * d[axis]),
        bent: [0.0; 2],
        depth,
        sides: [0.0; 2],
    })
}

/// Points at even distances between the sides: exists for boxes that are folded or flat, too.
fn even([a, b, c, d]: [Point; 4]) -> Patch {
    Patch {
        from: a,
        across: minus(b, a),
        down: minus(d, a),
        bent: [0, 1].map(|axis| a[axis] - b[axis] + c[axis] - d[axis]),
        depth: [0.0; 2],
        sides: [0.0; 2],
    }
}

fn minus(a: Point, b: Point) -> Point {
    [a[0] - b[0], a[1] - b[1]]
}

fn length([x, y]: Point) -> f64 {
    x.hypot(y)
}

fn cross(a: Point, b: Point) -> f64 {
    a[0] * b[1] - a[1] * b[0]
}
