//! The trace of one inference as a gateway fills it: when it was received, answered and sent.

use std::{sync::Arc, time::Instant};

use troupe_base::{error::Error, trace::TraceRecord};

/// What differs between protocols in what is logged and traced of a request.
#[derive(Debug)]
pub(crate) struct Protocol {
    /// As the access log calls it.
    pub(crate) name: &'static str,
    /// The access log's status of clients that do not wait for their answer.
    pub(crate) status_of_gone: u16,
    /// The text for new requests once the server is exiting, where it is not the common one.
    pub(crate) exiting: Option<&'static str>,
    /// Marks of the trace: the head of the request has come.
    pub(crate) receive_start: &'static str,
    /// All of the request has come.
    pub(crate) receive_end: &'static str,
    /// The response is about to be written.
    pub(crate) send_start: &'static str,
    /// The response is on its way.
    pub(crate) send_end: &'static str,
}

/// The record of a request, if it is traced. It ends when the last holder lets go.
#[derive(Clone)]
pub(crate) struct RequestTrace {
    record: Option<Arc<TraceRecord>>,
    protocol: &'static Protocol,
}

impl RequestTrace {
    /// Not traced.
    pub(super) fn off(protocol: &'static Protocol) -> RequestTrace {
        RequestTrace { record: None, protocol }
    }

    /// Traced from the begin of the record on, if there is one.
    pub(super) fn begin(
        protocol: &'static Protocol,
        record: Option<Arc<TraceRecord>>,
    ) -> RequestTrace {
        if let Some(record) = &record {
            record.mark(protocol.receive_start, record.begun);
        }
        RequestTrace { record, protocol }
    }

    /// Is it traced?
    pub(crate) fn is_on(&self) -> bool {
        self.record.is_some()
    }

    /// The record, for the models that work on the request.
    pub(super) fn record(&self) -> Option<&Arc<TraceRecord>> {
        self.record.as_ref()
    }

    /// All of the request has come.
    pub(crate) fn received(&self) {
        self.mark(self.protocol.receive_end);
    }

    /// The model has given a response, or the end of them.
    pub(super) fn answered(&self) {
        self.mark("INFER_RESPONSE_COMPLETE");
    }

    /// The response is about to be written.
    pub(crate) fn send_started(&self) {
        self.mark(self.protocol.send_start);
    }

    /// The response is on its way.
    pub(crate) fn send_ended(&self) {
        self.mark(self.protocol.send_end);
    }

    /// The client gets this instead of an answer.
    pub(crate) fn fail(&self, error: &Error) {
        if let Some(record) = &self.record {
            record.fail(error);
        }
    }

    /// Leaves nothing here: whoever holds the result ends the trace.
    pub(crate) fn take(&mut self) -> RequestTrace {
        RequestTrace { record: self.record.take(), protocol: self.protocol }
    }

    /// To be held until the response is written; `None` if the request is not traced.
    pub(crate) fn sending(self) -> Option<Sending> {
        self.is_on().then_some(Sending(self))
    }

    fn mark(&self, name: &'static str) {
        if let Some(record) = &self.record {
            record.mark(name, Instant::now());
        }
    }
}

/// A response that is being written; it is on its way when this is dropped.
pub(crate) struct Sending(RequestTrace);

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.send_ended();
    }
}
