//! Sends a message that is encoded already, and notes the time spent on messages.

use std::{
    cell::Cell,
    marker::PhantomData,
    ops::{AddAssign, Sub},
    time::Instant,
};

use bytes::{BufMut, Bytes};
use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

thread_local! {
    static SPENT: Cell<CodecTime> = const { Cell::new(CodecTime { write_ns: 0, read_ns: 0 }) };
}

/// Nanoseconds spent on messages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CodecTime {
    /// Putting requests into buffers.
    pub(super) write_ns: u64,
    /// Reading responses.
    pub(super) read_ns: u64,
}

impl CodecTime {
    /// What the calling thread has spent so far.
    pub(super) fn of_this_thread() -> CodecTime {
        SPENT.get()
    }
}

impl AddAssign for CodecTime {
    fn add_assign(&mut self, other: CodecTime) {
        self.write_ns += other.write_ns;
        self.read_ns += other.read_ns;
    }
}

impl Sub for CodecTime {
    type Output = CodecTime;

    fn sub(self, other: CodecTime) -> CodecTime {
        CodecTime {
            write_ns: self.write_ns - other.write_ns,
            read_ns: self.read_ns - other.read_ns,
        }
    }
}

/// A message in two parts, as it is on the wire.
#[derive(Clone, Default)]
pub(super) struct WireMessage {
    /// What many messages have in common.
    pub(super) common: Bytes,
    /// Fields of this one.
    pub(super) own: Bytes,
}

/// Requests as they are on the wire, responses as messages.
pub(super) struct RawCodec<T>(PhantomData<T>);

impl<T> RawCodec<T> {
    /// For responses of this type.
    pub(super) fn new() -> RawCodec<T> {
        RawCodec(PhantomData)
    }
}

impl<T: Message + Default + 'static> Codec for RawCodec<T> {
    type Encode = WireMessage;
    type Decode = T;
    type Encoder = RawEncoder;
    type Decoder = MessageDecoder<T>;

    fn encoder(&mut self) -> RawEncoder {
        RawEncoder
    }

    fn decoder(&mut self) -> MessageDecoder<T> {
        MessageDecoder(PhantomData)
    }
}

pub(super) struct RawEncoder;

impl Encoder for RawEncoder {
    type Item = WireMessage;
    type Error = Status;

    fn encode(&mut self, message: WireMessage, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let begun = Instant::now();
        into.reserve(message.common.len() + message.own.len());
        into.put(message.common);
        into.put(message.own);
        let mut spent = SPENT.get();
        spent.write_ns += begun.elapsed().as_nanos() as u64;
        SPENT.set(spent);
        Ok(())
    }
}

pub(super) struct MessageDecoder<T>(PhantomData<T>);

impl<T: Message + Default> Decoder for MessageDecoder<T> {
    type Item = T;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<T>, Status> {
        let begun = Instant::now();
        let message = T::decode(from);
        let mut spent = SPENT.get();
        spent.read_ns += begun.elapsed().as_nanos() as u64;
        SPENT.set(spent);
        message.map(Some).map_err(|error| Status::internal(format!("no such message: {error}")))
    }
}
