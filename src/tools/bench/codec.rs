//! Sends a message that is encoded already, and notes the time spent on messages.

use std::{cell::Cell, marker::PhantomData, time::Instant};

use bytes::{BufMut, Bytes};
use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

thread_local! {
    /// Nanoseconds of this thread: messages into buffers, and out of them.
    static SPENT: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Nanoseconds that this thread has put into writing requests and reading responses.
pub(super) fn spent() -> (u64, u64) {
    SPENT.get()
}

/// Requests as they are on the wire, responses as messages.
pub(super) struct Encoded<T>(PhantomData<T>);

impl<T> Encoded<T> {
    /// For responses of this type.
    pub(super) fn new() -> Encoded<T> {
        Encoded(PhantomData)
    }
}

impl<T: Message + Default + 'static> Codec for Encoded<T> {
    type Encode = Bytes;
    type Decode = T;
    type Encoder = AsIs;
    type Decoder = Read<T>;

    fn encoder(&mut self) -> AsIs {
        AsIs
    }

    fn decoder(&mut self) -> Read<T> {
        Read(PhantomData)
    }
}

pub(super) struct AsIs;

impl Encoder for AsIs {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let begun = Instant::now();
        into.reserve(message.len());
        into.put(message);
        let (write, read) = SPENT.get();
        SPENT.set((write + begun.elapsed().as_nanos() as u64, read));
        Ok(())
    }
}

pub(super) struct Read<T>(PhantomData<T>);

impl<T: Message + Default> Decoder for Read<T> {
    type Item = T;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<T>, Status> {
        let begun = Instant::now();
        let message = T::decode(from);
        let (write, read) = SPENT.get();
        SPENT.set((write, read + begun.elapsed().as_nanos() as u64));
        message.map(Some).map_err(|error| Status::internal(format!("no such message: {error}")))
    }
}
