//! Log of what workers print: stdout and stderr become lines, escaped, cut and limited in number.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{io::AsyncReadExt, net::unix::pipe, sync::watch};

use troupe_base::log_window::LogWindow;

/// Longer lines are cut.
const MAX_LINE_BYTES: usize = 8 << 10;
/// Lines a worker may log in a second; the rest is counted.
const MAX_LINES_PER_SECOND: u32 = 500;
/// Lines kept for the error of a crash, and the most bytes of them: gRPC has errors in headers.
const TAIL_LINES: usize = 20;
const TAIL_BYTES: usize = 4 << 10;
/// How a line of a Python stack begins that is in the backend itself.
const BACKEND_FRAME: &str = "  File \"<troupe>/";
/// How the line begins in which a crashing interpreter lists all modules that are no Python.
const EXTENSIONS: &str = "Extension modules: ";
/// Of each line; one always fits, whatever the letters.
const TAIL_LINE_LETTERS: usize = 1000;
/// How long the last lines of a process that has ended may be under way. They are there at once,
/// unless a child of it lives on and has the pipe too.
const TAIL_TIMEOUT: Duration = Duration::from_millis(100);

/// The last lines of a worker's stderr.
#[derive(Clone, Default)]
pub(crate) struct StderrTail(Arc<TailLines>);

#[derive(Default)]
struct TailLines {
    lines: Mutex<VecDeque<String>>,
    /// The pipe has ended.
    is_whole: watch::Sender<bool>,
}

/// Marks the tail as complete when it is dropped.
pub(crate) struct TailEnd(StderrTail);

impl Drop for TailEnd {
    fn drop(&mut self) {
        self.0.0.is_whole.send_replace(true);
    }
}

impl StderrTail {
    /// To be held by whoever reads the lines.
    pub(crate) fn begin(&self) -> TailEnd {
        TailEnd(self.clone())
    }

    fn push(&self, line: &str) {
        // Of a stack that is written when a worker crashes, only the model's part says something.
        if line.starts_with(BACKEND_FRAME) || line.starts_with(EXTENSIONS) {
            return;
        }
        let mut lines = self.0.lines.lock();
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line.chars().take(TAIL_LINE_LETTERS).collect());
    }

    /// The lines, one below the other, once all are read.
    pub(crate) async fn text(&self) -> String {
        let mut is_whole = self.0.is_whole.subscribe();
        let _ = tokio::time::timeout(TAIL_TIMEOUT, is_whole.wait_for(|it| *it)).await;
        let lines = self.0.lines.lock();
        let mut room = TAIL_BYTES;
        let fits = |line: &&String| {
            let fits = line.len() < room;
            room = room.saturating_sub(line.len() + 1);
            fits
        };
        let mut last: Vec<&str> = lines.iter().rev().take_while(fits).map(String::as_str).collect();
        if last.is_empty() {
            return "it wrote nothing to stderr".into();
        }
        last.reverse();
        format!("its last lines on stderr:\n{}", last.join("\n"))
    }
}

/// Whose output it is.
#[derive(Clone)]
pub(crate) struct OutputSource {
    pub(crate) model: Arc<str>,
    pub(crate) instance: Arc<str>,
    pub(crate) stream: &'static str,
    pub(crate) tail: StderrTail,
}

/// What a worker may log.
pub(crate) fn line_budget() -> LogWindow {
    LogWindow::new(MAX_LINES_PER_SECOND, Duration::from_secs(1))
}

/// Logs lines until the pipe ends.
pub(crate) async fn follow(mut receiver: pipe::Receiver, source: OutputSource) {
    let mut chunk = vec![0; 16 << 10];
    let mut splitter = Splitter::default();
    let mut budget = line_budget();
    loop {
        let size = receiver.read(&mut chunk).await.unwrap_or(0);
        splitter.feed(&chunk[..size], &mut |line| {
            if source.stream == "stderr" {
                source.tail.push(&escape(line));
            }
            if let Some(dropped) = budget.take(Instant::now()) {
                report_dropped(&source, dropped);
                let OutputSource { model, instance, stream, .. } = &source;
                tracing::info!(target: "troupe::python", %model, %instance, stream, "{line}");
            }
        });
        if size == 0 {
            report_dropped(&source, budget.left_out());
            return;
        }
        // Whoever prints without end must not keep the others' lines from being read.
        tokio::task::yield_now().await;
    }
}

fn report_dropped(source: &OutputSource, dropped: u64) {
    if 0 < dropped {
        let OutputSource { model, instance, stream, .. } = source;
        tracing::warn!(
            target: "troupe::python", %model, %instance, stream,
            "{dropped} lines were not logged: more than {MAX_LINES_PER_SECOND} in a second"
        );
    }
}

/// Bytes into lines of bounded length.
#[derive(Default)]
struct Splitter {
    line: Vec<u8>,
    cut: usize,
}

impl Splitter {
    /// Every finished line; an empty `bytes` ends the last one.
    fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(&str)) {
        if bytes.is_empty() {
            if !self.line.is_empty() {
                self.end(each);
            }
            return;
        }
        for part in bytes.split_inclusive(|it| *it == b'\n') {
            let (text, is_whole) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            let room = MAX_LINE_BYTES - self.line.len();
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            self.cut += text.len().saturating_sub(room);
            if is_whole {
                self.end(each);
            }
        }
    }

    fn end(&mut self, each: &mut dyn FnMut(&str)) {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        let mut text = String::from_utf8_lossy(line).into_owned();
        if 0 < self.cut {
            text.push_str(&format!(" … {} bytes cut", self.cut));
        }
        each(&text);
        self.line.clear();
        self.cut = 0;
    }
}

/// Control characters made visible, so that a line stays a line.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\t' => escaped.push('\t'),
            it if it.is_control() => escaped.extend(it.escape_default()),
            it => escaped.push(it),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(chunks: &[&[u8]], expected: &[&str]) {
        let mut splitter = Splitter::default();
        let mut lines = Vec::new();
        for chunk in chunks.iter().chain([&&b""[..]]) {
            splitter.feed(chunk, &mut |line| lines.push(line.to_owned()));
        }
        assert_eq!(lines, expected);
    }

    #[test]
    fn output_becomes_whole_lines() {
        check(&[b"a\nb", b"c\n\nd"], &["a", "bc", "", "d"]);
        check(&[b"\x1b[31mred\r\n"], &["\x1b[31mred"]);
        assert_eq!(escape("\x1b[31mred\x07"), "\\u{1b}[31mred\\u{7}");
        check(&[b"\xff\xfe\n"], &["\u{fffd}\u{fffd}"]);
    }

    #[test]
    fn a_long_line_is_cut() {
        let long = vec![b'x'; MAX_LINE_BYTES + 10];
        let expected = format!("{} … 10 bytes cut", "x".repeat(MAX_LINE_BYTES));
        check(&[&long[..5], &long[5..], b"\nnext\n"], &[&expected, "next"]);
    }

    #[test]
    fn a_flood_is_counted_instead_of_logged() {
        let mut budget = line_budget();
        let logged = (0..MAX_LINES_PER_SECOND + 100)
            .filter(|_| budget.take(Instant::now()).is_some())
            .count();
        assert_eq!((logged, budget.left_out()), (MAX_LINES_PER_SECOND as usize, 100));
    }
}
