//! The size of a crop, as the dims of a config say it.

/// What a crop looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CropSize {
    pub(super) channels: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl CropSize {
    /// `None` for sizes that no crop has, or that the config leaves open.
    pub(super) fn of(dims: &[i64]) -> Option<CropSize> {
        let [_, channels @ (1 | 3), height @ 2..=4096, width @ 2..=4096] = *dims else {
            return None;
        };
        let [channels, height, width] = [channels, height, width].map(|it| it as usize);
        Some(CropSize { channels, height, width })
    }

    /// Bytes of one crop.
    pub(super) fn bytes(self) -> usize {
        self.channels * self.height * self.width * size_of::<f32>()
    }
}
