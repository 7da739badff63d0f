//! The picture boxes are cut from, read between its pixels.

use troupe_base::tensor::Tensor;

/// Thousandths of red, green and blue in grey, as OpenCV and JPEG have it.
const LUMA: [u32; 3] = [299, 587, 114];

/// RGB pixels, row by row, of a picture that has at least one.
pub(super) struct SampledPicture<'a> {
    pixels: &'a [[u8; 3]],
    width: usize,
    height: usize,
}

impl SampledPicture<'_> {
    /// A UINT8 tensor [H,W,3].
    pub(super) fn of(tensor: &Tensor) -> SampledPicture<'_> {
        let [height, width] = [0, 1].map(|axis| tensor.shape()[axis] as usize);
        SampledPicture { pixels: tensor.data().as_chunks().0, width, height }
    }

    /// Grey at x, y; whole numbers are the centres of pixels.
    pub(super) fn grey(&self, at: [f64; 2]) -> f32 {
        let grey = |it: [u8; 3]| {
            let [red, green, blue] = it.map(u32::from);
            (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue) as f32
        };
        self.between(at, |it| [grey(it)])[0] / 1000.0
    }

    /// Red, green and blue at x, y.
    pub(super) fn colours(&self, at: [f64; 2]) -> [f32; 3] {
        self.between(at, |it| it.map(f32::from))
    }

    /// Bilinear; the edge goes on for ever.
    fn between<const N: usize>(
        &self,
        [x, y]: [f64; 2],
        read: impl Fn([u8; 3]) -> [f32; N],
    ) -> [f32; N] {
        // In this order a NaN becomes 0.
        let x = x.max(0.0).min((self.width - 1) as f64);
        let y = y.max(0.0).min((self.height - 1) as f64);
        let (left, top) = (x as usize, y as usize);
        let (right, bottom) = ((left + 1).min(self.width - 1), (top + 1).min(self.height - 1));
        let (across, down) = ((x - left as f64) as f32, (y - top as f64) as f32);
        let pixel = |row: usize, column: usize| read(self.pixels[row * self.width + column]);
        let (a, b) = (pixel(top, left), pixel(top, right));
        let (c, d) = (pixel(bottom, left), pixel(bottom, right));
        std::array::from_fn(|it| {
            let upper = a[it] + (b[it] - a[it]) * across;
            let lower = c[it] + (d[it] - c[it]) * across;
            upper + (lower - upper) * down
        })
    }
}
