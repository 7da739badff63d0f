//! The report as one HTML file: no script, no font, nothing from elsewhere.

mod bars;
mod chart;
mod page;
mod parts;

pub(super) use self::page::page;
