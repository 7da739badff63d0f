//! Script and style of all pages, each in one piece.

/// One script: what follows uses what stands before it.
pub(super) const SCRIPT: &str = concat!(
    include_str!("dashboard.js"),
    include_str!("tensors.js"),
    include_str!("snippets.js"),
    include_str!("answer.js"),
    include_str!("stream.js"),
    include_str!("workbench.js"),
);
/// The pictures bring their own rules besides.
pub(super) const STYLE: &str =
    concat!(include_str!("dashboard.css"), include_str!("workbench.css"));
