//! Writes traces to files from a thread of its own; a file is a JSON array between two writes.

use std::{
    collections::{HashMap, VecDeque},
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::{schema, setting::SampleCounter};
use troupe_base::trace::{FinishedTrace, TraceSink};
use troupe_options::TraceLevels;

/// Traces that wait to be written, and bytes of the tensors in them; those beyond are dropped.
const MOST_WAITING: usize = 4096;
const MOST_BYTES: usize = 256 << 20;
/// Files of settings that no longer apply are closed when so many are open.
const MOST_OPEN: usize = 64;
/// What is lost is said no more often than that.
const SAID_EVERY: Duration = Duration::from_secs(30);

/// Traces taken under one setting.
pub(super) struct Series {
    /// What is written of them.
    pub(super) levels: TraceLevels,
    /// So many share a file; 0: all of them.
    pub(super) frequency: u32,
    /// How many there will be.
    pub(super) tally: Arc<SampleCounter>,
}

/// What waits for the thread.
pub(super) struct Writer {
    queue: Mutex<Queue>,
    wake: Condvar,
    series: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Arc<FinishedTrace>, Arc<Numbered>)>,
    bytes: usize,
    dropped: usize,
    end: Option<oneshot::Sender<()>>,
}

/// A series with an identity, and how many of its traces are written.
struct Numbered {
    series: Series,
    number: u64,
    written: AtomicU64,
}

impl Writer {
    /// Writes to `path` and, where a series wants it, to `path.0` and so on. The files are made with
    /// the first trace.
    pub(super) fn start(path: PathBuf) -> Result<Arc<Writer>, String> {
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
        if !folder.unwrap_or(Path::new(".")).is_dir() || path.is_dir() {
            return Err(format!("cannot write traces to {}: no such folder", path.display()));
        }
        let (queue, wake, series) = (Mutex::default(), Condvar::new(), AtomicU64::new(0));
        let writer = Arc::new(Writer { queue, wake, series });
        let queue = writer.clone();
        let mut files = Files::new(path);
        thread::Builder::new()
            .name("traces".to_owned())
            .spawn(move || while files.write_next(&queue) {})
            .map_err(|error| format!("cannot write traces: {error}"))?;
        Ok(writer)
    }

    /// Where the traces of one series go.
    pub(super) fn sink(self: &Arc<Self>, series: Series) -> impl TraceSink + use<> {
        let number = self.series.fetch_add(1, Relaxed);
        let series = Arc::new(Numbered { series, number, written: AtomicU64::new(0) });
        ToFile { writer: self.clone(), series }
    }

    /// Has all that waits written. The other end hears of it.
    pub(super) fn end(&self) -> oneshot::Receiver<()> {
        let (sender, written) = oneshot::channel();
        self.queue.lock().end = Some(sender);
        self.wake.notify_one();
        written
    }
}

struct ToFile {
    writer: Arc<Writer>,
    series: Arc<Numbered>,
}

impl TraceSink for ToFile {
    fn take(&self, finished: Arc<FinishedTrace>) {
        let more = bytes(&finished);
        let mut queue = self.writer.queue.lock();
        if MOST_WAITING <= queue.waiting.len() || MOST_BYTES < queue.bytes + more {
            queue.dropped += 1;
            // It is done with all the same.
            self.series.written.fetch_add(1, Relaxed);
            return;
        }
        queue.bytes += more;
        queue.waiting.push_back((finished, self.series.clone()));
        self.writer.wake.notify_one();
    }
}

fn bytes(finished: &FinishedTrace) -> usize {
    let tensors = finished.model_spans.iter().flat_map(|it| it.inputs.iter().chain(&it.outputs));
    tensors.map(|(_, it)| it.data().len()).sum()
}

/// The thread's own part.
struct Files {
    path: PathBuf,
    /// Of all series that share it; and the one that has written to it, if it was only one.
    plain: Option<(Array, Option<u64>)>,
    indexed: HashMap<u64, Array>,
    next_index: u64,
    last_id: u64,
    lost: usize,
    said: Option<Instant>,
}

impl Files {
    fn new(path: PathBuf) -> Files {
        Files {
            path,
            plain: None,
            indexed: HashMap::new(),
            next_index: 0,
            last_id: 0,
            lost: 0,
            said: None,
        }
    }

    /// Waits for a trace and writes it; `false` at the end.
    fn write_next(&mut self, writer: &Writer) -> bool {
        let mut queue = writer.queue.lock();
        let next = loop {
            self.lost += std::mem::take(&mut queue.dropped);
            if let Some(next) = queue.waiting.pop_front() {
                break Some(next);
            }
            if let Some(end) = queue.end.take() {
                drop(queue);
                self.say("more waited than is kept", true);
                // The server may not wait any longer.
                let _ = end.send(());
                return false;
            }
            writer.wake.wait(&mut queue);
        };
        let Some((finished, series)) = next else { return true };
        queue.bytes -= bytes(&finished);
        drop(queue);
        if let Err(error) = self.write(&finished, &series) {
            self.lost += 1;
            self.say(&error.to_string(), false);
        } else {
            self.say("more waited than is kept", false);
        }
        true
    }

    fn write(&mut self, finished: &FinishedTrace, series: &Numbered) -> io::Result<()> {
        let Numbered { series: Series { levels, frequency, tally }, number, written } = series;
        let text = schema::text(finished, *levels, &mut self.last_id);
        let result = if text.is_empty() {
            Ok(())
        } else if *frequency == 0 {
            self.write_plain(&text, *number)
        } else {
            self.write_indexed(&text, (*number, *frequency))
        };
        let count = written.fetch_add(1, Relaxed) + 1;
        // As Triton does: those of a count that is used up are a file of their own.
        if tally.left.load(Relaxed) == 0 && count == tally.taken.load(Relaxed) {
            self.indexed.remove(number);
            if let Some((_, only)) = &self.plain
                && *only == Some(*number)
            {
                self.plain = None;
                let path = self.take_index();
                fs::rename(&self.path, path)?;
            }
        }
        result
    }

    fn write_plain(&mut self, text: &str, series: u64) -> io::Result<()> {
        let (array, only) = match &mut self.plain {
            Some(plain) => plain,
            none => none.insert((Array::create(&self.path)?, Some(series))),
        };
        *only = only.filter(|it| *it == series);
        array.push(text)
    }

    fn write_indexed(&mut self, text: &str, (series, frequency): (u64, u32)) -> io::Result<()> {
        if !self.indexed.contains_key(&series) {
            if MOST_OPEN <= self.indexed.len() {
                self.indexed.clear();
            }
            let path = self.take_index();
            self.indexed.insert(series, Array::create(&path)?);
        }
        let Some(array) = self.indexed.get_mut(&series) else { return Ok(()) };
        array.push(text)?;
        if frequency <= array.count {
            self.indexed.remove(&series);
        }
        Ok(())
    }

    fn take_index(&mut self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{}", self.next_index));
        self.next_index += 1;
        path.into()
    }

    fn say(&mut self, why: &str, is_end: bool) {
        let is_time = self.said.is_none_or(|it| SAID_EVERY <= it.elapsed());
        if 0 < self.lost && (is_time || is_end) {
            let (lost, path) = (std::mem::take(&mut self.lost), self.path.display());
            tracing::warn!("{lost} traces were not written to {path}: {why}");
            self.said = Some(Instant::now());
        }
    }
}

/// A file that is a JSON array after each write.
struct Array {
    file: File,
    /// Where the bracket is that closes it.
    end: u64,
    count: u32,
}

impl Array {
    fn create(path: &Path) -> io::Result<Array> {
        Ok(Array { file: File::create(path)?, end: 0, count: 0 })
    }

    fn push(&mut self, text: &str) -> io::Result<()> {
        let before = if self.count == 0 { '[' } else { ',' };
        let text = format!("{before}{text}]");
        self.file.write_all_at(text.as_bytes(), self.end)?;
        self.end += text.len() as u64 - 1;
        self.count += 1;
        Ok(())
    }
}
