//! Writes lines on a thread of its own, so that nobody who serves waits for whoever reads the log.

use std::{
    io::{self, Write},
    mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// Bytes that may wait; lines beyond them are dropped and counted.
const ROOM: usize = 1 << 20;

/// What everybody holds of the thread; it ends with the process.
#[derive(Clone)]
pub(super) struct Writer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Something is to be written.
    filled: Condvar,
    /// All of it is written.
    written: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    dropped: u64,
    is_writing: bool,
    /// Nobody writes: everything is forgotten.
    is_closed: bool,
}

impl Writer {
    /// Writes to `to`; `report` makes the line that says how many were dropped.
    pub(super) fn start(
        to: Box<dyn Write + Send>,
        report: impl Fn(u64) -> String + Send + 'static,
    ) -> io::Result<Writer> {
        let shared = Arc::<Shared>::default();
        let of_thread = shared.clone();
        let named = thread::Builder::new().name("log".to_owned());
        named.spawn(move || of_thread.write(to, report))?;
        Ok(Writer(shared))
    }

    /// One that forgets everything.
    pub(super) fn closed() -> Writer {
        let state = Mutex::new(State { is_closed: true, ..State::default() });
        Writer(Arc::new(Shared { state, ..Shared::default() }))
    }

    /// Never waits for whoever reads what is written.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.0.state.lock();
        if state.is_closed {
            return;
        }
        if ROOM < state.waiting.len() + line.len() {
            state.dropped += 1;
            return;
        }
        let was_empty = state.waiting.is_empty();
        state.waiting.extend_from_slice(line);
        drop(state);
        if was_empty {
            self.0.filled.notify_one();
        }
    }

    /// Returns once everything is written, or when `grace` is over.
    pub(super) fn flush(&self, grace: Duration) {
        let deadline = Instant::now() + grace;
        let mut state = self.0.state.lock();
        while state.is_writing || !state.waiting.is_empty() || state.dropped != 0 {
            if self.0.written.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }
}

impl Shared {
    fn write(&self, mut to: Box<dyn Write + Send>, report: impl Fn(u64) -> String) {
        let mut lines = Vec::new();
        let mut state = self.state.lock();
        loop {
            while state.waiting.is_empty() && state.dropped == 0 {
                state.is_writing = false;
                self.written.notify_all();
                self.filled.wait(&mut state);
            }
            mem::swap(&mut state.waiting, &mut lines);
            let dropped = mem::take(&mut state.dropped);
            state.is_writing = true;
            drop(state);
            if 0 < dropped {
                lines.extend_from_slice(report(dropped).as_bytes());
            }
            // A log that cannot be written has nowhere to say so.
            let _ = to.write_all(&lines).and_then(|()| to.flush());
            lines.clear();
            state = self.state.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Takes a write only when it is allowed to.
    struct Gate {
        allowed: mpsc::Receiver<()>,
        taken: mpsc::Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.allowed.recv();
            let _ = self.taken.send(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_pipe_stops_nobody_and_what_did_not_fit_is_counted() {
        let (allow, allowed) = mpsc::channel();
        let (taken, written) = mpsc::channel();
        let gate = Gate { allowed, taken };
        let writer =
            Writer::start(Box::new(gate), |dropped| format!("{dropped} dropped\n")).unwrap();
        let line = vec![b'x'; 1 << 10];
        for _ in 0..5000 {
            writer.push(&line);
        }
        writer.flush(Duration::ZERO);
        drop(allow);
        writer.flush(Duration::from_secs(60));
        let all: Vec<u8> = written.try_iter().flatten().collect();
        let (lines, report) = all.split_at(all.iter().take_while(|it| **it == b'x').count());
        let report = String::from_utf8_lossy(report);
        let dropped: usize = report.strip_suffix(" dropped\n").unwrap().parse().unwrap();
        assert_eq!(lines.len() / line.len() + dropped, 5000);
        assert!(lines.len() <= 2 * ROOM, "{} bytes were kept", lines.len());
    }

    #[test]
    fn what_was_pushed_is_written_in_order() {
        let (taken, written) = mpsc::channel();
        let (allow, allowed) = mpsc::channel();
        drop(allow);
        let writer = Writer::start(Box::new(Gate { allowed, taken }), |_| String::new()).unwrap();
        (0..1000).for_each(|it| writer.push(format!("{it}\n").as_bytes()));
        writer.flush(Duration::from_secs(60));
        let all: Vec<u8> = written.try_iter().flatten().collect();
        let expected: String = (0..1000).map(|it| format!("{it}\n")).collect();
        assert_eq!(String::from_utf8_lossy(&all), expected);
    }
}
