//! Reads an op's parameters: each one known, each number in its range.

use std::{fmt::Display, ops::RangeInclusive, str::FromStr};

use troupe_base::{
    config::ModelConfig,
    error::{Error, Result},
};

/// Parameters whatever the op.
const OF_EVERY_OP: &[&str] = &["op", "placement"];

/// The parameters of one model, all of them known to its op.
pub(super) struct Parameters<'a>(&'a ModelConfig);

impl<'a> Parameters<'a> {
    /// Refuses what is neither every op's nor one of `known`: a misspelt one would have no effect.
    pub(super) fn of(config: &'a ModelConfig, known: &[&str]) -> Result<Parameters<'a>> {
        let is_known = |it: &str| OF_EVERY_OP.contains(&it) || known.contains(&it);
        match config.parameters.keys().find(|it| !is_known(it)) {
            None => Ok(Parameters(config)),
            Some(unknown) => Err(Error::invalid(format!(
                "native model '{}' has the parameter '{unknown}', expected one of: {}, {}",
                config.name,
                OF_EVERY_OP.join(", "),
                known.join(", ")
            ))),
        }
    }

    /// The text of a parameter.
    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.0.parameters.get(key).map(String::as_str)
    }

    /// A number, `default` where the config has none.
    pub(super) fn number<T: FromStr + PartialOrd + Display>(
        &self,
        key: &str,
        default: T,
        range: RangeInclusive<T>,
    ) -> Result<T> {
        let Some(text) = self.text(key) else { return Ok(default) };
        let number = text.trim().parse().ok().filter(|it| range.contains(it));
        number.ok_or_else(|| {
            let wanted = format!("a number from {} to {}", range.start(), range.end());
            self.wrong(key, &wanted)
        })
    }

    /// One number for each of `count` channels; a single one stands for all.
    pub(super) fn per_channel(&self, key: &str, default: f32, count: usize) -> Result<Vec<f32>> {
        let Some(text) = self.text(key) else { return Ok(vec![default; count]) };
        let numbers =
            text.split(',').map(|it| it.trim().parse().ok().filter(|it| f32::is_finite(*it)));
        match numbers.collect::<Option<Vec<f32>>>() {
            Some(numbers) if numbers.len() == count => Ok(numbers),
            Some(numbers) if numbers.len() == 1 => Ok(vec![numbers[0]; count]),
            _ if count == 1 => Err(self.wrong(key, "a number")),
            _ => Err(self.wrong(key, &format!("a number or {count} of them"))),
        }
    }

    /// One of some words; the first one where the config has none.
    pub(super) fn choice<T: Copy>(&self, key: &str, options: &[(&str, T)]) -> Result<T> {
        let word = self.text(key).unwrap_or(options[0].0);
        let found = options.iter().find(|(it, _)| *it == word);
        found.map(|(_, it)| *it).ok_or_else(|| {
            let words: Vec<&str> = options.iter().map(|(it, _)| *it).collect();
            self.wrong(key, &format!("one of: {}", words.join(", ")))
        })
    }

    /// What to say of a parameter that is not as `wanted`.
    pub(super) fn wrong(&self, key: &str, wanted: &str) -> Error {
        Error::invalid(format!(
            "native model '{}': parameter '{key}' is '{}', expected {wanted}",
            self.0.name,
            self.text(key).unwrap_or_default()
        ))
    }
}
