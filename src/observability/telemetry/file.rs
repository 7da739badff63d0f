//! Writes traces to files, from a thread of its own behind a bounded queue; a file is a valid JSON
//! array after each write.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::{schema, setting::SampleCounter};
use crate::drop_queue::{DropQueue, Limits, ReportTimer};
use troupe_base::trace::{FinishedTrace, TraceSink};
use troupe_options::TraceLevels;

/// Traces that may wait, and bytes of the tensors in them; further traces are dropped.
const LIMITS: Limits = Limits { max_items: 4096, max_weight: 256 << 20, takes_oversized: false };
/// Open files; all are closed before another one is opened, for settings may no longer apply.
const MAX_OPEN_FILES: usize = 64;

/// Traces taken under one setting.
pub(super) struct TraceSeries {
    /// What is written of them.
    pub(super) levels: TraceLevels,
    /// So many share a file; 0: all of them.
    pub(super) frequency: u32,
    /// How many there will be.
    pub(super) tally: Arc<SampleCounter>,
}

/// The queue of traces for the thread that writes files.
pub(super) struct FileWriter {
    queue: Mutex<TraceQueue>,
    wake: Condvar,
    series: AtomicU64,
}

struct TraceQueue {
    traces: DropQueue<(Arc<FinishedTrace>, Arc<NumberedSeries>)>,
    end: Option<oneshot::Sender<()>>,
}

/// A series with an identity, and how many of its traces are written.
struct NumberedSeries {
    series: TraceSeries,
    number: u64,
    written: AtomicU64,
}

impl FileWriter {
    /// Writes to `path` and, where a series wants it, to `path.0` and so on. The files are made
    /// with the first trace.
    pub(super) fn start(path: PathBuf) -> Result<Arc<FileWriter>, String> {
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
        if !folder.unwrap_or(Path::new(".")).is_dir() || path.is_dir() {
            return Err(format!("cannot write traces to {}: no such folder", path.display()));
        }
        let (queue, wake, series) = (
            Mutex::new(TraceQueue { traces: DropQueue::new(LIMITS), end: None }),
            Condvar::new(),
            AtomicU64::new(0),
        );
        let writer = Arc::new(FileWriter { queue, wake, series });
        let queue = writer.clone();
        let mut files = Files::new(path);
        thread::Builder::new()
            .name("traces".to_owned())
            .spawn(move || while files.write_next(&queue) {})
            .map_err(|error| format!("cannot write traces: {error}"))?;
        Ok(writer)
    }

    /// Where the traces of one series go.
    pub(super) fn sink(self: &Arc<Self>, series: TraceSeries) -> impl TraceSink + use<> {
        let number = self.series.fetch_add(1, Relaxed);
        let series = Arc::new(NumberedSeries { series, number, written: AtomicU64::new(0) });
        FileSink { writer: self.clone(), series }
    }

    /// Has all that waits written. The other end hears of it.
    pub(super) fn end(&self) -> oneshot::Receiver<()> {
        let (sender, written) = oneshot::channel();
        self.queue.lock().end = Some(sender);
        self.wake.notify_one();
        written
    }
}

struct FileSink {
    writer: Arc<FileWriter>,
    series: Arc<NumberedSeries>,
}

impl TraceSink for FileSink {
    fn take(&self, finished: Arc<FinishedTrace>) {
        let more = bytes(&finished);
        let mut queue = self.writer.queue.lock();
        if queue.traces.push((finished, self.series.clone()), more) {
            self.writer.wake.notify_one();
        } else {
            // A dropped trace counts as written, so that the series can end.
            self.series.written.fetch_add(1, Relaxed);
        }
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
    plain: Option<(ArrayFile, Option<u64>)>,
    indexed: HashMap<u64, ArrayFile>,
    next_index: u64,
    last_id: u64,
    /// Traces that were lost and not reported yet.
    lost: usize,
    report: ReportTimer,
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
            report: ReportTimer::default(),
        }
    }

    /// Waits for a trace and writes it; `false` at the end.
    fn write_next(&mut self, writer: &FileWriter) -> bool {
        let mut queue = writer.queue.lock();
        let next = loop {
            self.lost += queue.traces.take_dropped().items;
            if let Some(next) = queue.traces.pop() {
                break Some(next);
            }
            if let Some(end) = queue.end.take() {
                drop(queue);
                self.report_losses("more waited than is kept", true);
                // The server may not wait any longer.
                let _ = end.send(());
                return false;
            }
            writer.wake.wait(&mut queue);
        };
        let Some((finished, series)) = next else { return true };
        drop(queue);
        if let Err(error) = self.write(&finished, &series) {
            self.lost += 1;
            self.report_losses(&error.to_string(), false);
        } else {
            self.report_losses("more waited than is kept", false);
        }
        true
    }

    fn write(&mut self, finished: &FinishedTrace, series: &NumberedSeries) -> io::Result<()> {
        let NumberedSeries { series: TraceSeries { levels, frequency, tally }, number, written } =
            series;
        let text = schema::text(finished, *levels, &mut self.last_id);
        let result = if text.is_empty() {
            Ok(())
        } else if *frequency == 0 {
            self.write_plain(&text, *number)
        } else {
            self.write_indexed(&text, *number, *frequency)
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
            none => none.insert((ArrayFile::create(&self.path)?, Some(series))),
        };
        *only = only.filter(|it| *it == series);
        array.push(text)
    }

    fn write_indexed(&mut self, text: &str, series: u64, frequency: u32) -> io::Result<()> {
        if !self.indexed.contains_key(&series) {
            if MAX_OPEN_FILES <= self.indexed.len() {
                self.indexed.clear();
            }
            let path = self.take_index();
            self.indexed.insert(series, ArrayFile::create(&path)?);
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

    /// Reports losses: now and then, and at the end.
    fn report_losses(&mut self, why: &str, is_end: bool) {
        if 0 < self.lost && (self.report.is_due() || is_end) {
            let (lost, path) = (std::mem::take(&mut self.lost), self.path.display());
            tracing::warn!("{lost} traces were not written to {path}: {why}");
            self.report.reported();
        }
    }
}

/// A file that is a JSON array after each write.
struct ArrayFile {
    file: File,
    /// Where the bracket is that closes it.
    end: u64,
    count: u32,
}

impl ArrayFile {
    fn create(path: &Path) -> io::Result<ArrayFile> {
        Ok(ArrayFile { file: File::create(path)?, end: 0, count: 0 })
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
