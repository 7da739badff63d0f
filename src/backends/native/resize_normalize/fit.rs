//! Which size a picture gets and where in the output it lies.

use std::fmt;

use super::super::parameters::Parameters;
use troupe_base::{config::ModelConfig, error::Result};

/// A model's input is not larger.
const MAX_SIDE_PIXELS: u32 = 16_384;

/// Parameters that have a meaning in one mode only.
const MULTIPLE: &[&str] = &["multiple_of", "max_side", "min_side"];
const LETTERBOX: &[&str] = &["width", "height", "align", "pad_value"];
const STRETCH: &[&str] = &["width", "height"];

/// In pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PictureSize {
    pub(super) width: u32,
    pub(super) height: u32,
}

/// How a picture is made to fit, as parameter `mode` says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fit {
    Multiple { of: u32, min_side: u32, max_side: u32 },
    Letterbox { canvas: PictureSize, align: Align },
    Stretch { canvas: PictureSize },
}

/// Where a letterbox has its picture.
#[derive(Clone, Copy, Debug)]
pub(super) enum Align {
    Center,
    TopLeft,
}

/// A resized picture in the output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PlacedPicture {
    pub(super) canvas: PictureSize,
    pub(super) picture: PictureSize,
    /// Pixels to the left of the picture and above it.
    pub(super) at: (u32, u32),
}

impl Fit {
    /// Reads the parameters of the mode; others are errors, `common` ones apart.
    pub(super) fn read<'a>(
        config: &'a ModelConfig,
        common: &[&str],
    ) -> Result<(Fit, Parameters<'a>)> {
        let every = [common, MULTIPLE, LETTERBOX].concat();
        let mode = Parameters::of(config, &every)?.choice(
            "mode",
            &[("multiple", MULTIPLE), ("letterbox", LETTERBOX), ("stretch", STRETCH)],
        )?;
        let parameters = Parameters::of(config, &[common, mode].concat())?;
        let fit = if mode == MULTIPLE {
            let of = parameters.number("multiple_of", 32, 1..=1024)?;
            let max_side = parameters.number("max_side", 2400, of..=MAX_SIDE_PIXELS)?;
            let min_side = parameters.number("min_side", of, of..=max_side)?;
            Fit::Multiple { of, min_side, max_side }
        } else {
            let side = |key| match parameters.number(key, 0, 1..=MAX_SIDE_PIXELS)? {
                0 => Err(parameters.wrong(key, "a number of pixels for this mode")),
                side => Ok(side),
            };
            let canvas = PictureSize { width: side("width")?, height: side("height")? };
            let aligns = [("center", Align::Center), ("top_left", Align::TopLeft)];
            match mode == LETTERBOX {
                true => Fit::Letterbox { canvas, align: parameters.choice("align", &aligns)? },
                false => Fit::Stretch { canvas },
            }
        };
        Ok((fit, parameters))
    }

    /// The output's size, where it does not depend on the picture.
    pub(super) fn size(&self) -> Option<PictureSize> {
        match self {
            Fit::Multiple { .. } => None,
            Fit::Letterbox { canvas, .. } | Fit::Stretch { canvas } => Some(*canvas),
        }
    }

    /// Where a picture of this size, which has pixels, goes.
    pub(super) fn place(&self, size: PictureSize) -> PlacedPicture {
        let (width, height) = (f64::from(size.width), f64::from(size.height));
        match *self {
            Fit::Stretch { canvas } => PlacedPicture { canvas, picture: canvas, at: (0, 0) },
            Fit::Letterbox { canvas, align } => {
                let (most_x, most_y) = (f64::from(canvas.width), f64::from(canvas.height));
                let scale = (most_x / width).min(most_y / height);
                let side = |side: f64, most: u32| ((side * scale).round() as u32).clamp(1, most);
                let picture = PictureSize {
                    width: side(width, canvas.width),
                    height: side(height, canvas.height),
                };
                let at = match align {
                    Align::TopLeft => (0, 0),
                    Align::Center => {
                        ((canvas.width - picture.width) / 2, (canvas.height - picture.height) / 2)
                    }
                };
                PlacedPicture { canvas, picture, at }
            }
            Fit::Multiple { of, min_side, max_side } => {
                let up = f64::from(min_side) / width.min(height);
                let most = f64::from(max_side) / width.max(height);
                let scale = up.max(1.0).min(most);
                let side = |side: f64| {
                    let multiple = (side * scale / f64::from(of)).round() as u32 * of;
                    multiple.clamp(of, max_side / of * of)
                };
                let canvas = PictureSize { width: side(width), height: side(height) };
                PlacedPicture { canvas, picture: canvas, at: (0, 0) }
            }
        }
    }
}

impl PlacedPicture {
    /// `scale_x, scale_y, offset_x, offset_y` of a picture that had this size.
    pub(super) fn transform(&self, size: PictureSize) -> [f32; 4] {
        let scale = |to: u32, from: u32| (f64::from(to) / f64::from(from)) as f32;
        [
            scale(self.picture.width, size.width),
            scale(self.picture.height, size.height),
            self.at.0 as f32,
            self.at.1 as f32,
        ]
    }
}

impl PictureSize {
    pub(super) fn pixels(self) -> usize {
        self.width as usize * self.height as usize
    }
}

impl fmt::Display for PictureSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.width, self.height)
    }
}
