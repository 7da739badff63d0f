//! The instance room.
