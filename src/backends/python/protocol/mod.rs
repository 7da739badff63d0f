//! Frames between the server and its workers: how requests, answers and calls are laid out in
//! bytes.

pub(super) mod decode;
pub(super) mod encode;
pub(super) mod frames;
pub(super) mod kinds;
pub(super) mod messages;
pub(super) mod model_call;
pub(super) mod replies;
