//! Turned rectangles and how much two of them overlap.

/// A point or a direction: x to the right, y down.
type Point = [f64; 2];

/// The part of a rectangle that must lie in another to be inside, but for rounding.
const MIN_INSIDE_SHARE: f64 = 1.0 - 1e-6;

/// A rectangle around a word, in model pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TurnedRectangle {
    center: Point,
    /// Where the text runs, of length 1; a quarter turn clockwise from it is down.
    along: Point,
    /// Half the width along the text and half the height across it.
    half: Point,
    /// Half the sides of the upright rectangle around this one.
    reach: Point,
}

impl TurnedRectangle {
    /// The rectangle with these distances from a point to its top, right, bottom and left side.
    pub(super) fn around(
        at: Point,
        [top, right, bottom, left]: [f64; 4],
        angle: f64,
    ) -> TurnedRectangle {
        let along = [angle.cos(), -angle.sin()];
        let to_center = [(right - left) / 2.0, (bottom - top) / 2.0];
        let half = [(left + right) / 2.0, (top + bottom) / 2.0];
        let reach =
            [0, 1].map(|axis| along[axis].abs() * half[0] + across(along)[axis].abs() * half[1]);
        TurnedRectangle { center: combine(at, along, to_center), along, half, reach }
    }

    /// Nothing is inside: a side has no length, or a negative one.
    pub(super) fn is_empty(&self) -> bool {
        !self.half.iter().all(|it| 0.0 < *it)
    }

    /// Top left, top right, bottom right and bottom left, as the text runs.
    pub(super) fn corners(&self) -> [Point; 4] {
        let [x, y] = self.half;
        [[-x, -y], [x, -y], [x, y], [-x, y]].map(|it| combine(self.center, self.along, it))
    }

    /// Each side moved outwards by this part of the height.
    pub(super) fn padded(self, part: f64) -> TurnedRectangle {
        let by = part * 2.0 * self.half[1];
        TurnedRectangle { half: self.half.map(|it| it + by), ..self }
    }

    /// Can the two overlap by more than `threshold`? Says so cheaply, and yes once too often.
    pub(super) fn may_overlap(&self, other: &TurnedRectangle, threshold: f64) -> bool {
        // What the upright rectangles around them share is no less than what they share.
        let shared = [0, 1].map(|axis| {
            let apart = (self.center[axis] - other.center[axis]).abs();
            let reach = self.reach[axis] + other.reach[axis];
            (reach - apart).min(2.0 * self.reach[axis]).min(2.0 * other.reach[axis])
        });
        let (smaller, both) = (self.area().min(other.area()), self.area() + other.area());
        let most = shared[0] * shared[1];
        shared.iter().all(|it| 0.0 < *it)
            && (smaller * MIN_INSIDE_SHARE <= most || threshold * (both - most) < most)
    }

    /// Do the two overlap by more than `threshold` (intersection over union)?
    ///
    /// One inside the other overlaps in full, however small it is: as OpenCV has it.
    pub(super) fn overlaps(&self, other: &TurnedRectangle, threshold: f64) -> bool {
        let (smaller, both) = (self.area().min(other.area()), self.area() + other.area());
        let common = self.common(other);
        let is_inside = smaller * MIN_INSIDE_SHARE <= common;
        let ratio = if is_inside { 1.0 } else { common / (both - common) };
        threshold < ratio
    }

    fn area(&self) -> f64 {
        4.0 * self.half[0] * self.half[1]
    }

    /// The area of the intersection.
    fn common(&self, other: &TurnedRectangle) -> f64 {
        let own = |at: Point| {
            let from = [at[0] - self.center[0], at[1] - self.center[1]];
            [dot(from, self.along), dot(from, across(self.along))]
        };
        let mut polygon = Polygon::of(other.corners().map(own));
        for axis in [0, 1] {
            for sign in [1.0, -1.0] {
                polygon = polygon.clipped(axis, sign, self.half[axis]);
            }
        }
        polygon.area()
    }
}

/// A quarter turn clockwise.
fn across([x, y]: Point) -> Point {
    [-y, x]
}

fn dot(a: Point, b: Point) -> f64 {
    a[0] * b[0] + a[1] * b[1]
}

/// The point so far along, and so far across, from another.
fn combine(from: Point, along: Point, [far, down]: Point) -> Point {
    [0, 1].map(|axis| from[axis] + far * along[axis] + down * across(along)[axis])
}

/// A convex polygon; each of the four cuts through a rectangle adds one corner at most.
struct Polygon {
    corners: [Point; 8],
    count: usize,
}

impl Polygon {
    fn of(rectangle: [Point; 4]) -> Polygon {
        let mut polygon = Polygon { corners: [[0.0; 2]; 8], count: 4 };
        polygon.corners[..4].copy_from_slice(&rectangle);
        polygon
    }

    /// What has a coordinate of at most `limit`, the coordinate taken times `sign`.
    fn clipped(&self, axis: usize, sign: f64, limit: f64) -> Polygon {
        let mut kept = Polygon { corners: [[0.0; 2]; 8], count: 0 };
        let beyond = |it: Point| sign * it[axis] - limit;
        for index in 0..self.count {
            let (a, b) = (self.corners[index], self.corners[(index + 1) % self.count]);
            let (from, to) = (beyond(a), beyond(b));
            if from <= 0.0 {
                kept.push(a);
            }
            if (from <= 0.0) != (to <= 0.0) {
                let part = from / (from - to);
                kept.push([a[0] + part * (b[0] - a[0]), a[1] + part * (b[1] - a[1])]);
            }
        }
        kept
    }

    /// Rounding can make a cut find a corner too many, on an edge of no length: it is left out.
    fn push(&mut self, corner: Point) {
        if let Some(place) = self.corners.get_mut(self.count) {
            *place = corner;
            self.count += 1;
        }
    }

    fn area(&self) -> f64 {
        let corners = &self.corners[..self.count];
        let next = corners.iter().cycle().skip(1);
        let twice: f64 = corners.iter().zip(next).map(|(a, b)| a[0] * b[1] - a[1] * b[0]).sum();
        twice.abs() / 2.0
    }
}
