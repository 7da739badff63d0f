//! A received `ModelInferRequest`: its fields as they lie in the message, its tensors where they
//! will stay. What is in the fields is decoded later.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use bytestring::ByteString;
use smallvec::SmallVec;
use tonic::{Code, Status};

use super::{
    arriving::{Arriving, malformed},
    fields::{MapEntry, text},
    guarded::open_charge,
    inflate,
    prefix::Prefix,
    wire::{self, BAD_TYPE, TRUNCATED, WireType},
};
use crate::{
    ServerState,
    connections::Connection,
    grpc::refusal::refuse,
    inflate::Coding,
    request_limits::{MAX_LIST_ITEMS, MIN_SHARED_BYTES, segment_for},
};
use troupe_base::{
    budget::{Charge, Hold, Kind},
    error::{Error, Result},
    model::parse_version,
    tensor::{DataType, Lease, OwnedPool, Shape, Tensor},
};
use troupe_proto::inference::InferParameter;

/// Bytes after the only message of a call that are read and forgotten.
const MAX_IGNORED_BYTES: usize = 64 << 10;

/// One request.
#[derive(Default)]
pub(crate) struct InferMessage {
    pub(crate) model_name: ByteString,
    pub(crate) model_version: ByteString,
    pub(crate) id: ByteString,
    /// Entries of a map.
    parameters: SmallVec<[Bytes; 1]>,
    /// Messages of their own, as `InputHead` reads them.
    pub(crate) inputs: SmallVec<[Bytes; 2]>,
    /// The same for `OutputHead`.
    pub(crate) outputs: SmallVec<[Bytes; 2]>,
    pub(crate) raw_input_contents: SmallVec<[RawContent; 2]>,
    /// Bytes of the message, inflated.
    pub(crate) size: usize,
    /// How many of them are no raw contents.
    head_size: usize,
    /// What its memory is counted by.
    pub(crate) charge: Charge,
    /// For what is no raw contents; until it is decoded.
    _head: Option<Hold>,
    /// There was no room for it: the rest was left out.
    pub(crate) refusal: Option<Error>,
}

/// The bytes of one tensor.
pub(crate) enum RawContent {
    /// In ordinary memory.
    Plain(Bytes),
    /// At the begin of a segment that workers can map; so many.
    Shared(Arc<Lease>, usize),
}

impl InferMessage {
    /// The request's parameters.
    pub(crate) fn parameters(&self) -> Result<HashMap<String, InferParameter>> {
        self.parameters.iter().map(|it| Ok(MapEntry::read(it)?)).collect()
    }

    /// About how many bytes decoding looks at: texts and typed contents are read, strings counted.
    pub(crate) fn effort(&self, has_strings: bool) -> usize {
        if has_strings { self.size } else { self.head_size }
    }
}

impl InferMessage {
    /// The same without what takes memory, if that is why it was not read to its end.
    fn left_out(self, prefix: Prefix, status: Status) -> Result<InferMessage, Status> {
        if status.code() != Code::ResourceExhausted {
            return Err(status);
        }
        let InferMessage { model_name, model_version, id, .. } = self;
        let refusal = Some(Error::exhausted(status.message()));
        let named = InferMessage { model_name, model_version, id, ..InferMessage::default() };
        Ok(InferMessage { size: prefix.length, refusal, ..named })
    }
}

impl RawContent {
    /// The tensor, which is never a copy.
    pub(crate) fn tensor(&self, dtype: DataType, shape: Shape) -> Result<Tensor> {
        let tensor = match self {
            RawContent::Plain(bytes) => Tensor::new(dtype, shape, bytes.clone()),
            RawContent::Shared(lease, length) => {
                Tensor::in_segment(dtype, shape, lease, 0..*length)
            }
        };
        tensor.map(Tensor::of_counted)
    }

    /// What the tensor was to be made of.
    pub(crate) fn bytes(&self) -> Result<Bytes> {
        match self {
            RawContent::Plain(bytes) => Ok(bytes.clone()),
            RawContent::Shared(lease, length) => Lease::bytes(lease, 0..*length),
        }
    }
}

/// Knows where the tensors of a model's requests are to be received.
pub(crate) trait TensorDestination {
    /// Where one of `bytes` goes that worker processes read; `None`: anywhere. RESOURCE_EXHAUSTED if
    /// the model has no room for it.
    fn pool(&self, name: &str, version: &str, bytes: usize) -> Result<Option<OwnedPool>>;
}

impl TensorDestination for Arc<ServerState> {
    fn pool(&self, name: &str, version: &str, bytes: usize) -> Result<Option<OwnedPool>> {
        let version = parse_version(version);
        // Whoever decodes the request says what is wrong with its name.
        let Ok(model) = version.and_then(|it| self.model(name, it)) else { return Ok(None) };
        model.check_room(bytes)?;
        let (pool, owner) = (&self.settings.segments, model.owner);
        Ok(model.shares_memory.then(|| OwnedPool { pool: pool.clone(), owner }))
    }
}

/// The requests of one call.
pub(crate) struct InferMessages<P> {
    pub(crate) place: P,
    /// Where they come from, if their memory is counted.
    pub(crate) connection: Option<Arc<Connection>>,
    /// Counts the call, and its request if it is the only one.
    pub(crate) charge: Charge,
    pub(crate) arriving: Arriving,
    pub(crate) coding: Coding,
    /// Most bytes of a message, also once inflated.
    pub(crate) limit: usize,
}

impl<P: TensorDestination> InferMessages<P> {
    /// The only request of a call. One that there is no room for is left out, but for its names.
    pub(crate) async fn only(mut self) -> Result<InferMessage, Status> {
        let missing = || Status::internal("Missing request message.");
        let prefix = self.arriving.prefix(self.limit).await?.ok_or_else(missing)?;
        let mut message = InferMessage { charge: self.charge.clone(), ..Default::default() };
        if let Err(status) = self.read(&mut message, prefix).await {
            return message.left_out(prefix, status);
        }
        let mut ignored = 0;
        while self.arriving.more().await? {
            ignored += self.arriving.part(usize::MAX).await?.len();
            if MAX_IGNORED_BYTES < ignored {
                return Err(Status::internal("more than one message in a call that takes one"));
            }
        }
        Ok(message)
    }

    /// The next request; `None` after the last one. One that there is no room for is left out, but
    /// for its names: others may follow.
    pub(crate) async fn next(&mut self) -> Result<Option<InferMessage>, Status> {
        let Some(prefix) = self.arriving.prefix(self.limit).await? else { return Ok(None) };
        let start = self.arriving.taken();
        let mut message = InferMessage::default();
        let read = match open_charge(self.connection.as_ref()) {
            Ok(charge) => {
                message.charge = charge;
                self.read(&mut message, prefix).await
            }
            Err(error) => Err(refuse(error)),
        };
        if let Err(status) = read {
            message = message.left_out(prefix, status)?;
            self.arriving.skip(start + prefix.length - self.arriving.taken()).await?;
        }
        Ok(Some(message))
    }

    async fn read(&mut self, message: &mut InferMessage, prefix: Prefix) -> Result<(), Status> {
        let arriving = &mut self.arriving;
        if !prefix.is_compressed {
            let reader = FieldReader { place: &self.place, arriving, is_counted: false, message };
            return reader.read(prefix.length).await;
        }
        let charge = &message.charge;
        let mut hold = charge.hold(Kind::Received);
        let compressed = arriving.take(prefix.length, &mut hold).await?;
        let inflated = inflate::inflate(self.coding, compressed, self.limit, charge).await?;
        let length = inflated.len();
        let arriving = &mut Arriving::whole(inflated);
        let reader = FieldReader { place: &self.place, arriving, is_counted: true, message };
        reader.read(length).await
    }
}

struct FieldReader<'a, P> {
    place: &'a P,
    arriving: &'a mut Arriving,
    /// Slices of what arrives are counted already.
    is_counted: bool,
    message: &'a mut InferMessage,
}

impl<P: TensorDestination> FieldReader<'_, P> {
    /// A message of `length` bytes.
    async fn read(mut self, length: usize) -> Result<(), Status> {
        let mut head = self.hold();
        self.message.size = length;
        self.message.head_size = length;
        let mut left = length;
        while 0 < left {
            let key = self.arriving.varint(&mut left).await?;
            let (number, wire_type) = wire::key(key).map_err(malformed)?;
            let length = match wire_type {
                _ if (1..=7).contains(&number) && wire_type != WireType::Bytes => {
                    return Err(malformed(BAD_TYPE));
                }
                WireType::Varint => {
                    self.arriving.varint(&mut left).await?;
                    0
                }
                WireType::Fixed64 => 8,
                WireType::Fixed32 => 4,
                WireType::Bytes => {
                    let length = self.arriving.varint(&mut left).await?;
                    usize::try_from(length).map_err(|_| malformed(TRUNCATED))?
                }
            };
            left = left.checked_sub(length).ok_or_else(|| malformed(TRUNCATED))?;
            self.field(number, length, &mut head).await?;
        }
        self.message._head = Some(head);
        Ok(())
    }

    async fn field(&mut self, number: u32, length: usize, head: &mut Hold) -> Result<(), Status> {
        if number == 7 {
            self.message.head_size -= length;
            let content = self.raw(length).await?;
            return push(&mut self.message.raw_input_contents, content);
        }
        if 7 < number {
            return self.arriving.skip(length).await;
        }
        let bytes = self.arriving.take(length, head).await?;
        let message = &mut *self.message;
        match number {
            1 => message.model_name = text(bytes).map_err(malformed)?,
            2 => message.model_version = text(bytes).map_err(malformed)?,
            3 => message.id = text(bytes).map_err(malformed)?,
            4 => push(&mut message.parameters, bytes)?,
            5 => push(&mut message.inputs, bytes)?,
            _ => push(&mut message.outputs, bytes)?,
        }
        Ok(())
    }

    /// For what is taken next.
    fn hold(&self) -> Hold {
        let uncounted = Charge::default();
        let charge = if self.is_counted { &uncounted } else { &self.message.charge };
        charge.hold(Kind::Received)
    }

    async fn raw(&mut self, length: usize) -> Result<RawContent, Status> {
        let InferMessage { model_name, model_version, charge, .. } = &*self.message;
        if length < MIN_SHARED_BYTES {
            // Copied: a slice would keep all of what the connection received with it.
            let mut uncounted = Charge::default().hold(Kind::Received);
            let bytes = self.arriving.take(length, &mut uncounted).await?;
            charge.add(Kind::Received, length).map_err(refuse)?;
            return Ok(RawContent::Plain(Bytes::copy_from_slice(&bytes)));
        }
        // The model's name comes before, as long as fields are in their order; if not, the tensor is
        // copied once more later.
        let pool = self.place.pool(model_name, model_version, length).map_err(refuse)?;
        if !self.is_counted {
            charge.check_room(length).map_err(refuse)?;
        }
        if let Some(pool) = pool {
            let hold = charge.hold(Kind::Received);
            return self.shared(&pool, length, hold).await;
        }
        let mut hold = self.hold();
        let bytes = self.arriving.take(length, &mut hold).await?;
        Ok(RawContent::Plain(hold.over(bytes)))
    }

    async fn shared(
        &mut self,
        pool: &OwnedPool,
        length: usize,
        mut hold: Hold,
    ) -> Result<RawContent, Status> {
        let mut early = Vec::new();
        let segment = loop {
            let arrived = early.len() + self.arriving.here().len();
            if let Some(segment) = segment_for(pool, length, arrived) {
                break segment;
            }
            let part = self.arriving.part(length).await?;
            hold.grow(part.len()).map_err(refuse)?;
            early.extend_from_slice(&part);
        };
        // Without shared memory ordinary memory will do, though a worker gets a copy then.
        let Ok(mut segment) = segment else {
            let rest = self.arriving.take(length - early.len(), &mut hold).await?;
            early.extend_from_slice(&rest);
            return Ok(RawContent::Plain(hold.over(early.into())));
        };
        let mut arrived = early.len();
        segment.bytes_mut()[..arrived].copy_from_slice(&early);
        while arrived < length {
            let part = self.arriving.part(length - arrived).await?;
            hold.grow(part.len()).map_err(refuse)?;
            segment.bytes_mut()[arrived..arrived + part.len()].copy_from_slice(&part);
            arrived += part.len();
        }
        Ok(RawContent::Shared(segment.freeze_counted(hold), length))
    }
}

fn push<const N: usize, T>(list: &mut SmallVec<[T; N]>, item: T) -> Result<(), Status> {
    if list.len() < MAX_LIST_ITEMS {
        list.push(item);
        return Ok(());
    }
    Err(refuse(Error::invalid(format!(
        "more than {MAX_LIST_ITEMS} inputs, outputs, dimensions or parameters"
    ))))
}
