//! Kinds of frames between the server and a worker: the letter after a frame's length. The Python
//! files have the same letters under the same names.

/// To the worker: what to load. The first frame.
pub(crate) const INIT: u8 = b'I';
/// To the worker: groups of requests to execute, and what happened to segments.
pub(crate) const EXECUTE: u8 = b'E';
/// To the worker: a number that answers a question, such as `CANCELLED`.
pub(crate) const REPLY: u8 = b'c';
/// To the worker: how many bytes of responses clients have taken.
pub(crate) const CREDIT: u8 = b'k';
/// To the worker: its own segments that are free again.
pub(crate) const RELEASED: u8 = b'r';
/// To the worker: run `is_ready`.
pub(crate) const CHECK: u8 = b'h';
/// To the worker: a response to a call.
pub(crate) const RESPONSE: u8 = b'b';
/// To the worker: the answer to a question about a metric.
pub(crate) const METRICS_REPLY: u8 = b'm';
/// To the worker: whether a `REPOSITORY` call succeeded.
pub(crate) const REPOSITORY_REPLY: u8 = b'u';

/// From the worker: its model is initialized.
pub(crate) const READY: u8 = b'R';
/// From the worker: its model could not be initialized.
pub(crate) const FAILED: u8 = b'X';
/// From the worker: the results of one group.
pub(crate) const ANSWER: u8 = b'A';
/// From the worker: a response of a response sender, or the end of its request.
pub(crate) const PART: u8 = b'P';
/// From the worker: what `is_ready` returned.
pub(crate) const CHECKED: u8 = b'H';
/// From the worker: it made a segment.
pub(crate) const SEGMENT: u8 = b'N';
/// From the worker: it freed segments of its own.
pub(crate) const DROPPED: u8 = b'D';
/// From the worker: it does not look any more at memory that replies lay in.
pub(crate) const FREED: u8 = b'F';
/// From the worker: a line of the log.
pub(crate) const LOG: u8 = b'L';
/// From the worker: events of metrics, or a question about one.
pub(crate) const METRICS: u8 = b'M';
/// From the worker: is this request cancelled?
pub(crate) const CANCELLED: u8 = b'C';
/// From the worker: a call of another model.
pub(crate) const CALL: u8 = b'B';
/// From the worker: it does not need the answer to a call, or not the rest of it.
pub(crate) const CANCEL: u8 = b'K';
/// From the worker: how many responses of a call it has taken.
pub(crate) const TAKEN: u8 = b'T';
/// From the worker: load or unload a model, or say whether one is ready.
pub(crate) const REPOSITORY: u8 = b'U';
