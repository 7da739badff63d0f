//! Pixels in one buffer: their channels are converted in place, and the whole is set upright.

/// Rows from the top, pixels from the left, `channels` bytes each.
pub(super) struct DecodedPicture {
    pub(super) width: usize,
    pub(super) height: usize,
    /// 1 gray, 2 gray and alpha, 3 RGB (or BGR once converted), 4 RGB and alpha.
    pub(super) channels: usize,
    pub(super) pixels: Vec<u8>,
    /// As EXIF counts, 1 is upright.
    pub(super) orientation: u8,
}

/// What the channels of the output are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Rgb,
    Bgr,
    Gray,
}

impl Format {
    pub(super) fn channels(self) -> usize {
        if self == Format::Gray { 1 } else { 3 }
    }
}

impl DecodedPicture {
    /// A black one, with room for three channels.
    pub(super) fn black(width: u32, height: u32, channels: usize) -> DecodedPicture {
        let (width, height) = (width as usize, height as usize);
        let pixels = vec![0; width * height * channels.max(3)];
        DecodedPicture { width, height, channels, pixels, orientation: 1 }
    }

    /// Where a decoder writes to.
    pub(super) fn target(&mut self) -> &mut [u8] {
        &mut self.pixels[..self.width * self.height * self.channels]
    }

    /// The same picture in another format; alpha is dropped. Nothing is allocated.
    pub(super) fn converted(mut self, format: Format) -> DecodedPicture {
        let count = self.width * self.height;
        let pixels = &mut self.pixels[..];
        match (self.channels, format) {
            (1, Format::Gray) | (3, Format::Rgb) => (),
            (1, _) => convert(pixels, count, |[it]: [u8; 1]| [it; 3]),
            (2, Format::Gray) => convert(pixels, count, |[it, _]: [u8; 2]| [it]),
            (2, _) => convert(pixels, count, |[it, _]: [u8; 2]| [it; 3]),
            (3, Format::Bgr) => convert(pixels, count, |[r, g, b]: [u8; 3]| [b, g, r]),
            (3, Format::Gray) => convert(pixels, count, |it: [u8; 3]| [gray(it)]),
            (_, Format::Rgb) => convert(pixels, count, |[r, g, b, _]: [u8; 4]| [r, g, b]),
            (_, Format::Bgr) => convert(pixels, count, |[r, g, b, _]: [u8; 4]| [b, g, r]),
            (_, Format::Gray) => convert(pixels, count, |[r, g, b, _]: [u8; 4]| [gray([r, g, b])]),
        }
        self.channels = format.channels();
        self.pixels.truncate(count * self.channels);
        self
    }

    /// The same picture as its photographer held it: a copy unless it is upright already.
    pub(super) fn upright(self) -> DecodedPicture {
        match self.channels {
            1 => turn::<1>(self),
            _ => turn::<3>(self),
        }
    }
}

/// Rewrites `count` pixels of `FROM` bytes as pixels of `TO` bytes, in the same place.
fn convert<const FROM: usize, const TO: usize>(
    pixels: &mut [u8],
    count: usize,
    of: impl Fn([u8; FROM]) -> [u8; TO],
) {
    let mut one = |at: usize| {
        let mut from = [0; FROM];
        from.copy_from_slice(&pixels[at * FROM..][..FROM]);
        pixels[at * TO..][..TO].copy_from_slice(&of(from));
    };
    // Growing pixels begin at the end, so that none is overwritten before it is read.
    if TO <= FROM { (0..count).for_each(&mut one) } else { (0..count).rev().for_each(&mut one) }
}

/// Luminance as OpenCV and libjpeg weigh it (BT.601), in 14 bits.
fn gray([r, g, b]: [u8; 3]) -> u8 {
    ((u32::from(r) * 4899 + u32::from(g) * 9617 + u32::from(b) * 1868 + (1 << 13)) >> 14) as u8
}

fn turn<const N: usize>(picture: DecodedPicture) -> DecodedPicture {
    let (width, height) = (picture.width, picture.height);
    let (from, _) = picture.pixels.as_chunks::<N>();
    if from.is_empty() || !(2..=8).contains(&picture.orientation) {
        return picture;
    }
    // Where the first pixel of the upright picture lies, and the ways to the next one to the
    // right and to the next one below.
    let (right, down) = (1, width as isize);
    let (top_right, bottom_left, last) = (width - 1, (height - 1) * width, height * width - 1);
    let (first, across, below) = match picture.orientation {
        2 => (top_right, -right, down),
        3 => (last, -right, -down),
        4 => (bottom_left, right, -down),
        5 => (0, down, right),
        6 => (bottom_left, -down, right),
        7 => (last, -down, -right),
        _ => (top_right, down, -right),
    };
    let is_lying = 5 <= picture.orientation;
    let (width, height) = if is_lying { (height, width) } else { (width, height) };
    let mut pixels = vec![0; from.len() * N];
    let (to, _) = pixels.as_chunks_mut::<N>();
    // In squares, so that the lines read across stay in the cache.
    const SQUARE: usize = 32;
    for top in (0..height).step_by(SQUARE) {
        for left in (0..width).step_by(SQUARE) {
            for y in top..height.min(top + SQUARE) {
                let row = &mut to[y * width..][..width];
                let mut at = first as isize + y as isize * below + left as isize * across;
                for pixel in &mut row[left..width.min(left + SQUARE)] {
                    *pixel = from[at as usize];
                    at += across;
                }
            }
        }
    }
    DecodedPicture { width, height, pixels, orientation: 1, ..picture }
}
