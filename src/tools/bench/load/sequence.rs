//! Sequences of the load: the parameters that make one request after the other the first, a middle, and
//! the last one of a sequence.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use prost::Message;

use super::{
    super::codec::WireMessage,
    recorder::{Job, SequenceLoad},
};
use troupe_proto::inference::{
    InferParameter, ModelInferRequest, infer_parameter::ParameterChoice,
};

/// Ids are below this: every type of a control input has room for them but the smallest.
const ID_LIMIT: u64 = 1 << 31;

/// The requests of one worker: the same again and again, or a sequence and then the next one.
pub(super) struct RequestSource<'a> {
    job: &'a Job,
    sequence: Option<OwnSequence>,
}

/// A worker's sequence. The next one has the same id: what is left of one that failed is gone on with.
struct OwnSequence {
    length: u32,
    /// Requests of it that were sent; 0 before the first, and after the last.
    sent: u32,
    /// One of its requests failed: it may be under way, or not.
    has_failed: bool,
    /// Parameters of the requests, by whether they begin it, and whether they end it.
    parameters: [[Bytes; 2]; 2],
}

/// An id that no other run is likely to have; the workers of a run count on from it.
pub(super) fn first_id() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    1 + now.as_nanos() as u64 / 1000 % (ID_LIMIT / 2)
}

impl RequestSource<'_> {
    /// For a worker whose sequences have this id.
    pub(super) fn new(job: &Job, id: u64) -> RequestSource<'_> {
        let own = |load: SequenceLoad| {
            let of = |begins, ends| parameters(load, id, begins, ends);
            let parameters =
                [[of(false, false), of(false, true)], [of(true, false), of(true, true)]];
            OwnSequence { length: load.length, sent: 0, has_failed: false, parameters }
        };
        RequestSource { job, sequence: job.sequences.map(own) }
    }

    /// What to send now.
    pub(super) fn next(&mut self) -> WireMessage {
        let own = self.sequence.as_mut().map(|it| it.next()).unwrap_or_default();
        WireMessage { common: self.job.request.clone(), own }
    }

    /// A request failed: what follows begins a sequence.
    pub(super) fn failed(&mut self) {
        if let Some(it) = &mut self.sequence {
            (it.sent, it.has_failed) = (0, true);
        }
    }

    /// What ends the sequence under way, if there is one: its slots would be taken until it is idle
    /// for too long.
    pub(super) fn end(&mut self) -> Option<WireMessage> {
        let open = self.sequence.as_mut().filter(|it| it.sent != 0 || it.has_failed)?;
        (open.sent, open.has_failed) = (0, false);
        let [[_, end], _] = &open.parameters;
        Some(WireMessage { common: self.job.request.clone(), own: end.clone() })
    }
}

impl OwnSequence {
    fn next(&mut self) -> Bytes {
        let begins = self.sent == 0;
        self.has_failed = false;
        self.sent += 1;
        let ends = self.sent == self.length;
        if ends {
            self.sent = 0;
        }
        self.parameters[usize::from(begins)][usize::from(ends)].clone()
    }
}

/// A message of parameters alone: behind another one it adds to that one's.
fn parameters(load: SequenceLoad, id: u64, begins: bool, ends: bool) -> Bytes {
    let id = match load.has_text_ids {
        true => ParameterChoice::StringParam(format!("bench-{id}")),
        false => ParameterChoice::Int64Param(id as i64),
    };
    let flag = ParameterChoice::BoolParam;
    let all = [("sequence_id", id), ("sequence_start", flag(begins)), ("sequence_end", flag(ends))];
    let all = all
        .map(|(name, value)| (name.to_owned(), InferParameter { parameter_choice: Some(value) }));
    ModelInferRequest { parameters: all.into(), ..ModelInferRequest::default() }
        .encode_to_vec()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::{metadata::MetadataMap, transport::Endpoint};

    fn job(sequences: Option<SequenceLoad>) -> Job {
        let empty = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
        let request = ModelInferRequest {
            model_name: "m".to_owned(),
            parameters: [("other".to_owned(), empty)].into(),
            ..ModelInferRequest::default()
        };
        Job {
            endpoint: Endpoint::from_static("http://nowhere"),
            headers: MetadataMap::new(),
            request: request.encode_to_vec().into(),
            is_decoupled: false,
            sequences,
        }
    }

    /// `+` begins a sequence, `!` ends it, `.` does neither.
    fn sent(message: &WireMessage, id: &ParameterChoice) -> String {
        let bytes = [&message.common[..], &message.own[..]].concat();
        let request = ModelInferRequest::decode(&bytes[..]).unwrap();
        assert_eq!((&*request.model_name, request.parameters.contains_key("other")), ("m", true));
        let value = |name: &str| request.parameters[name].parameter_choice.clone().unwrap();
        assert_eq!(value("sequence_id"), *id);
        let is =
            |name, sign| if value(name) == ParameterChoice::BoolParam(true) { sign } else { "" };
        let flags = [is("sequence_start", "+"), is("sequence_end", "!")].concat();
        if flags.is_empty() { ".".to_owned() } else { flags }
    }

    #[test]
    fn a_worker_sends_one_sequence_after_the_other() {
        for (length, expected) in [(1, "+!+!+!+!+!+!+!"), (2, "+!+!+!+"), (3, "+.!+.!+")] {
            let load = SequenceLoad { length, has_text_ids: false };
            let job = job(Some(load));
            let mut source = RequestSource::new(&job, 7);
            let id = ParameterChoice::Int64Param(7);
            let all: String = (0..7).map(|_| sent(&source.next(), &id)).collect();
            assert_eq!(all, expected, "{length}");
            assert_eq!(source.end().map(|it| sent(&it, &id)), (1 < length).then(|| "!".to_owned()));
            assert!(source.end().is_none());
        }
    }

    #[test]
    fn what_failed_begins_anew_and_ids_may_be_texts() {
        let load = SequenceLoad { length: 9, has_text_ids: true };
        let (job, id) = (job(Some(load)), ParameterChoice::StringParam("bench-7".to_owned()));
        let mut source = RequestSource::new(&job, 7);
        assert_eq!([sent(&source.next(), &id), sent(&source.next(), &id)], ["+", "."]);
        source.failed();
        assert_eq!(source.end().map(|it| sent(&it, &id)).as_deref(), Some("!"), "it may be open");
        assert!(source.end().is_none());
        assert_eq!([sent(&source.next(), &id), sent(&source.next(), &id)], ["+", "."]);
    }

    #[test]
    fn requests_of_no_sequence_are_all_the_same() {
        let job = job(None);
        let mut source = RequestSource::new(&job, 7);
        let message = source.next();
        assert!(message.own.is_empty() && message.common == job.request && source.end().is_none());
    }

    #[test]
    fn ids_fit_into_most_types() {
        assert!((1..ID_LIMIT - 4096).contains(&first_id()));
    }
}
