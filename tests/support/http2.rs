//! HTTP/2 by hand, so that tests can send gRPC calls as no client would.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
};

use super::PATIENCE;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
/// Of settings and pings.
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;

/// A setting: how much may be sent on a new stream.
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;

/// A frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A frame with one number in it.
pub(crate) fn number(kind: u8, stream: u32, number: u32) -> Vec<u8> {
    frame(kind, 0, stream, &number.to_be_bytes())
}

/// A setting that a client announces.
pub(crate) fn setting(name: u16, value: u32) -> Vec<u8> {
    let bytes = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &bytes)
}

/// A message of gRPC, as the frames with which a call ends.
pub(crate) fn message(stream: u32, bytes: &[u8]) -> Vec<u8> {
    let prefix = [&[0][..], &(bytes.len() as u32).to_be_bytes()].concat();
    let mut sent = frame(DATA, 0, stream, &prefix);
    for part in bytes.chunks(16 << 10) {
        sent.extend(frame(DATA, 0, stream, part));
    }
    sent.extend(frame(DATA, END_STREAM, stream, &[]));
    sent
}

/// The headers of a call of the inference service, nothing of them compressed.
pub(crate) fn head(method: &str) -> Vec<u8> {
    let path = format!("/inference.GRPCInferenceService/{method}");
    let fields = [
        (":path", &*path),
        (":authority", "a"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    // POST and http.
    [vec![0x83, 0x86]].into_iter().chain(fields.map(field)).collect::<Vec<_>>().concat()
}

/// One more header: its name and its value.
pub(crate) fn field((name, value): (&str, &str)) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

/// A frame that the server has sent.
pub(crate) struct Received {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// A connection that speaks frames.
pub(crate) struct Frames(pub(crate) TcpStream);

impl Frames {
    pub(crate) fn connect(address: SocketAddr) -> Frames {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let settings = [frame(SETTINGS, 0, 0, b""), frame(SETTINGS, 1, 0, b"")].concat();
        stream.write_all(&[preface, settings].concat()).unwrap();
        Frames(stream)
    }

    pub(crate) fn send(&mut self, frames: &[Vec<u8>]) {
        self.send_or_be_cut(frames).unwrap();
    }

    /// The same, where the server may close the connection.
    pub(crate) fn send_or_be_cut(&mut self, frames: &[Vec<u8>]) -> io::Result<()> {
        self.0.write_all(&frames.concat())
    }

    /// The same connection, for another thread.
    pub(crate) fn share(&self) -> Frames {
        Frames(self.0.try_clone().unwrap())
    }

    /// Waits until this call has ended; `false`: the connection has.
    #[track_caller]
    pub(crate) fn until_ended(&mut self, call: u32) -> bool {
        loop {
            match self.receive_or_be_cut() {
                Ok(Received { kind, flags, stream, .. }) if stream == call => {
                    if kind == RST_STREAM || flags & END_STREAM != 0 {
                        return true;
                    }
                }
                Ok(_) => (),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    panic!("the server neither answers nor closes")
                }
                Err(_) => return false,
            }
        }
    }

    /// The next frame.
    #[track_caller]
    pub(crate) fn receive(&mut self) -> Received {
        self.receive_or_be_cut().expect("the server sends a frame in time")
    }

    /// The same, where the server may close the connection.
    pub(crate) fn receive_or_be_cut(&mut self) -> io::Result<Received> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head)?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.0.read_exact(&mut payload)?;
        Ok(Received { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// Returns when the server has read all that was sent.
    pub(crate) fn is_read(&mut self) {
        self.send(&[frame(PING, 0, 0, b"are you?")]);
        loop {
            let Received { kind, flags, .. } = self.receive();
            if (kind, flags) == (PING, 1) {
                return;
            }
        }
    }
}
