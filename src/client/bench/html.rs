//! The report as one HTML file.

use super::Report;

/// The page.
pub(super) fn page(report: &Report<'_>) -> String {
    let _ = report;
    String::new()
}
