//! Sizes of shared memory, as the command line gives them.

use troupe_base::{
    backend::Settings,
    error::{Error, Result},
    tensor::SegmentSizes,
};

/// The least that Triton takes as `shm-default-byte-size`.
const MIN_DEFAULT_BYTES: usize = 1 << 20;

/// `shm-default-byte-size`, `shm-growth-byte-size` and `shm-max-byte-size` of the Python backend.
pub fn sizes(settings: &Settings) -> Result<SegmentSizes> {
    let mut sizes = SegmentSizes::default();
    if let Some(kept) = bytes(settings, "shm-default-byte-size")? {
        sizes.kept = positive(kept).filter(|it| MIN_DEFAULT_BYTES <= *it).ok_or_else(|| {
            // Triton's words, for what it takes.
            Error::invalid("shm-default-byte-size can't be smaller than 4 MiBs")
        })?;
    }
    if let Some(growth) = bytes(settings, "shm-growth-byte-size")? {
        sizes.growth = positive(growth).ok_or_else(|| {
            Error::invalid("shm-growth-byte-size can't be smaller than or equal to zero.")
        })?;
    }
    if let Some(most) = bytes(settings, "shm-max-byte-size")? {
        sizes.most = positive(most).filter(|it| sizes.kept <= *it).ok_or_else(|| {
            Error::invalid(format!(
                "shm-max-byte-size can't be smaller than shm-default-byte-size, nor than one: it \
                 is {most}"
            ))
        })?;
    }
    Ok(sizes)
}

fn bytes(settings: &Settings, key: &str) -> Result<Option<i64>> {
    let Some(text) = settings.get("python", key) else { return Ok(None) };
    let wrong = || Error::invalid(format!("{key}: expected a number of bytes, got '{text}'"));
    text.parse().map(Some).map_err(|_| wrong())
}

fn positive(bytes: i64) -> Option<usize> {
    usize::try_from(bytes).ok().filter(|it| 0 < *it)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: &[(&str, &str)], expected: Result<SegmentSizes, &str>) {
        let options = options.iter().map(|(key, value)| {
            (("python".to_owned(), format!("shm-{key}-byte-size")), (*value).to_owned())
        });
        let settings = Settings { options: options.collect(), ..Settings::default() };
        let got = sizes(&settings).map_err(|error| error.to_string());
        assert_eq!(got, expected.map_err(str::to_owned));
    }

    #[test]
    fn sizes_are_read_and_checked() {
        let default = SegmentSizes::default();
        check(&[], Ok(default));
        check(
            &[("default", "1048576"), ("growth", "4096"), ("max", "2097152")],
            Ok(SegmentSizes { growth: 4096, kept: 1 << 20, most: 2 << 20 }),
        );
        let small = Err("shm-default-byte-size can't be smaller than 4 MiBs");
        check(&[("default", "1048575")], small);
        check(&[("default", "-1")], small);
        let zero = Err("shm-growth-byte-size can't be smaller than or equal to zero.");
        check(&[("growth", "0")], zero);
        check(&[("growth", "a")], Err("shm-growth-byte-size: expected a number of bytes, got 'a'"));
        let least =
            "shm-max-byte-size can't be smaller than shm-default-byte-size, nor than one: it is ";
        check(&[("max", "0")], Err(&format!("{least}0")));
        check(&[("default", "2097152"), ("max", "2000000")], Err(&format!("{least}2000000")));
    }
}
