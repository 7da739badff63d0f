//! troupe.
