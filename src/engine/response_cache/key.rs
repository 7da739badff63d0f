//! The key of a kept answer: a 128-bit hash of everything that the answer depends on.

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::Xxh3;

use std::sync::Arc;

use troupe_base::{
    error::{Error, Result},
    request::{Parameter, Parameters, Request},
};

/// Bytes of a secret of XXH3.
const SECRET_BYTES: usize = 192;

/// Identifies an answer. Different requests have different keys, but for one chance in 2¹²⁸.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct AnswerKey(pub(super) u128);

/// Makes keys of requests.
pub(super) enum KeyHasher {
    /// For one server: XXH3, as fast as memory is read. Whoever does not know the secret cannot make
    /// two requests with one key.
    Keyed(Box<[u8; SECRET_BYTES]>),
    /// The same for every server: the first half of a SHA-256.
    Shared,
}

/// Which answers of which model a key is about.
pub(super) struct KeyScope {
    pub(super) model: Arc<str>,
    pub(super) version: i64,
    /// Of the loaded model: one that is loaded again gives other answers.
    pub(super) generation: u128,
    /// Names of the inputs, in the order of the config.
    pub(super) inputs: Vec<Arc<str>>,
    /// How many outputs it has.
    pub(super) outputs: usize,
    /// Its code may read the parameters of a request.
    pub(super) reads_parameters: bool,
}

impl KeyHasher {
    /// With a secret that nobody knows.
    pub(super) fn keyed() -> Result<KeyHasher> {
        let mut secret = Box::new([0; SECRET_BYTES]);
        let mut filled = 0;
        while filled < SECRET_BYTES {
            let flags = rustix::rand::GetRandomFlags::empty();
            match rustix::rand::getrandom(&mut secret[filled..], flags) {
                Ok(more) => filled += more,
                Err(rustix::io::Errno::INTR) => (),
                Err(error) => {
                    return Err(Error::internal(format!("no random bytes for a secret: {error}")));
                }
            }
        }
        Ok(KeyHasher::Keyed(secret))
    }

    /// To hash a request of more bytes takes milliseconds: longer than an engine thread may be kept.
    pub(super) fn max_bytes_here(&self) -> usize {
        match self {
            KeyHasher::Keyed(_) => 8 << 20,
            KeyHasher::Shared => 1 << 20,
        }
    }

    /// The key of what answers `request`.
    pub(super) fn key(&self, scope: &KeyScope, request: &Request) -> AnswerKey {
        match self {
            KeyHasher::Keyed(secret) => {
                let mut hasher = Xxh3::with_secret(**secret);
                write(scope, request, &mut |bytes| hasher.update(bytes));
                AnswerKey(hasher.digest128())
            }
            KeyHasher::Shared => {
                let mut hasher = Sha256::new();
                write(scope, request, &mut |bytes| hasher.update(bytes));
                let digest = hasher.finalize();
                let half = digest.first_chunk::<16>().copied().unwrap_or_default();
                AnswerKey(u128::from_le_bytes(half))
            }
        }
    }
}

/// Everything the answer depends on. What has any length comes behind its length, so that nothing can
/// be taken for something else.
fn write(scope: &KeyScope, request: &Request, to: &mut impl FnMut(&[u8])) {
    text(&scope.model, to);
    to(&scope.version.to_le_bytes());
    to(&scope.generation.to_le_bytes());
    length(scope.inputs.len(), to);
    for (name, tensor) in scope.inputs.iter().zip(&request.inputs) {
        text(name, to);
        let Some(tensor) = tensor else {
            to(&[0]);
            continue;
        };
        to(&[1]);
        text(tensor.dtype().as_str(), to);
        length(tensor.shape().len(), to);
        tensor.shape().iter().for_each(|dim| to(&dim.to_le_bytes()));
        length(tensor.data().len(), to);
        to(tensor.data());
    }
    length(scope.outputs, to);
    (0..scope.outputs).for_each(|output| to(&[u8::from(request.wanted.has(output))]));
    if scope.reads_parameters {
        parameters(&request.context.parameters, to);
    }
}

/// By name: in which order they came says nothing.
fn parameters(all: &Parameters, to: &mut impl FnMut(&[u8])) {
    let mut sorted: Vec<_> = all.iter().collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0));
    length(sorted.len(), to);
    for (name, value) in sorted {
        text(name, to);
        match value {
            Parameter::Bool(value) => to(&[0, u8::from(*value)]),
            Parameter::Int(value) => {
                to(&[1]);
                to(&value.to_le_bytes());
            }
            Parameter::Uint(value) => {
                to(&[2]);
                to(&value.to_le_bytes());
            }
            Parameter::Double(value) => {
                to(&[3]);
                to(&value.to_bits().to_le_bytes());
            }
            Parameter::String(value) => {
                to(&[4]);
                text(value, to);
            }
        }
    }
}

fn text(text: &str, to: &mut impl FnMut(&[u8])) {
    length(text.len(), to);
    to(text.as_bytes());
}

fn length(length: usize, to: &mut impl FnMut(&[u8])) {
    to(&(length as u64).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use troupe_base::{
        request::{Context, Wanted},
        tensor::{DataType, Tensor},
    };

    fn scope() -> KeyScope {
        KeyScope {
            model: "m".into(),
            version: 1,
            generation: 1,
            inputs: vec!["a".into(), "b".into()],
            outputs: 2,
            reads_parameters: true,
        }
    }

    fn tensor(dtype: DataType, shape: &[i64], data: &[u8]) -> Option<Tensor> {
        let data = data.to_vec().into();
        Some(Tensor::new(dtype, shape.iter().copied().collect(), data).unwrap())
    }

    fn request(inputs: Vec<Option<Tensor>>) -> Request {
        Request { inputs, batch: 1, ..Request::default() }
    }

    fn with(parameters: Vec<(&'static str, Parameter)>) -> Request {
        let parameters = parameters.into_iter().map(|(name, it)| (name.into(), it)).collect();
        let context = Context { parameters, ..Context::default() };
        Request { context: context.into(), ..request(vec![None, None]) }
    }

    #[test]
    fn requests_that_differ_in_anything_have_different_keys() {
        use Parameter::{Bool, Double, Int, String, Uint};
        let two = |a: Option<Tensor>, b: Option<Tensor>| (scope(), request(vec![a, b]));
        let bytes = |data: &[u8]| tensor(DataType::Uint8, &[data.len() as i64], data);
        let wanted = |wanted| {
            let request = Request { wanted, ..request(vec![None, None]) };
            (scope(), request)
        };
        let all = [
            two(None, None),
            two(bytes(b"x"), None),
            two(None, bytes(b"x")),
            two(bytes(b"xy"), bytes(b"z")),
            two(bytes(b"x"), bytes(b"yz")),
            two(bytes(b""), None),
            two(tensor(DataType::Int8, &[2], b"xy"), bytes(b"z")),
            two(tensor(DataType::Uint8, &[1, 2], b"xy"), bytes(b"z")),
            two(tensor(DataType::Uint8, &[2, 1], b"xy"), bytes(b"z")),
            wanted(Wanted::Only(smallvec![0])),
            wanted(Wanted::Only(smallvec![1])),
            (scope(), with(vec![("p", Bool(true))])),
            (scope(), with(vec![("p", Bool(false))])),
            (scope(), with(vec![("p", Int(1))])),
            (scope(), with(vec![("p", Uint(1))])),
            (scope(), with(vec![("p", Double(1.0))])),
            (scope(), with(vec![("p", String("1".to_owned()))])),
            (scope(), with(vec![("q", Int(1))])),
            (scope(), with(vec![("p", Int(1)), ("q", Int(1))])),
            (KeyScope { model: "n".into(), ..scope() }, request(vec![None, None])),
            (KeyScope { version: 2, ..scope() }, request(vec![None, None])),
            (KeyScope { generation: 2, ..scope() }, request(vec![None, None])),
        ];
        for hasher in [KeyHasher::keyed().unwrap(), KeyHasher::Shared] {
            let key = |(scope, request): &(KeyScope, Request)| hasher.key(scope, request);
            for (place, one) in all.iter().enumerate() {
                assert_eq!(key(one), key(one));
                let others = all.iter().skip(place + 1).map(key);
                assert!(!others.into_iter().any(|it| it == key(one)), "row {place}");
            }
        }
    }

    #[test]
    fn what_changes_no_answer_changes_no_key() {
        let hasher = KeyHasher::keyed().unwrap();
        let key = |request: &Request| hasher.key(&scope(), request);
        let plain = request(vec![None, None]);
        let id = Context { id: "7".to_owned(), priority: 3, timeout_us: 9, ..Context::default() };
        assert_eq!(key(&Request { context: id.into(), ..plain.clone() }), key(&plain));
        let both = Request { wanted: Wanted::Only(smallvec![1, 0]), ..plain.clone() };
        assert_eq!(key(&both), key(&plain));
        let (p, q) = (("p", Parameter::Int(1)), ("q", Parameter::Int(2)));
        assert_eq!(key(&with(vec![p.clone(), q.clone()])), key(&with(vec![q, p.clone()])));
        let deaf = KeyScope { reads_parameters: false, ..scope() };
        assert_eq!(hasher.key(&deaf, &with(vec![p])), hasher.key(&deaf, &plain));
    }

    #[test]
    fn servers_share_keys_only_where_they_share_a_cache() {
        let plain = request(vec![None, None]);
        let key = |hasher: KeyHasher| hasher.key(&scope(), &plain);
        assert_ne!(key(KeyHasher::keyed().unwrap()), key(KeyHasher::keyed().unwrap()));
        assert_eq!(key(KeyHasher::Shared), key(KeyHasher::Shared));
    }
}
