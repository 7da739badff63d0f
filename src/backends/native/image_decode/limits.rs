//! Limits of a picture: its sides, its pixels and the length of its file.

/// What a file may cost.
pub(super) struct PictureLimits {
    /// Width times height.
    pub(super) pixels: u32,
    /// Length of the file.
    pub(super) bytes: usize,
}

/// A longer side is nonsense or an attack; JPEG and WebP have no place for it either.
pub(crate) const MAX_SIDE: u32 = 65_535;

impl PictureLimits {
    /// Refuses a picture that is too large, or has no pixels.
    pub(super) fn check(&self, width: u32, height: u32) -> Result<(), String> {
        if width == 0 || height == 0 || MAX_SIDE < width.max(height) {
            return Err(format!(
                "it has {width} x {height} pixels, expected sides from 1 to {MAX_SIDE}"
            ));
        }
        if u64::from(self.pixels) < u64::from(width) * u64::from(height) {
            return Err(format!(
                "it has {width} x {height} pixels, expected at most {} (max_pixels)",
                self.pixels
            ));
        }
        Ok(())
    }
}
