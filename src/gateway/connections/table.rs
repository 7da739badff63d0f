//! The table of open connections: admits, marks as busy, closes those that have not asked for anything
//! and those that are idle the longest.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown, sockopt::socket_cookie};

use super::{
    pressure::{ConnectionLimits, Verdict},
    unsent::UnsentPieces,
};
use troupe_base::{
    budget::{Account, ByteBudget, Charge, Kept, Kind},
    error::Result,
};

/// Closed when room runs out; younger pauses of a client are no idleness.
const MIN_IDLE_TO_CLOSE: Duration = Duration::from_secs(10);
/// Closed for a new connection when there is no room left.
const MIN_IDLE_TO_REPLACE: Duration = Duration::from_secs(1);
/// Closed before those if nothing was ever asked over it: its greeting has had its time, where others
/// come faster.
const MIN_UNASKED_TO_REPLACE: Duration = Duration::from_millis(100);
/// Closed at a time when room runs out: this, or a quarter of all if that is less.
const MAX_CLOSED_AT_ONCE: usize = 64;
/// Between two looks for idle connections.
const RECLAIM_PAUSE: Duration = Duration::from_millis(100);
/// Between two warnings about refused connections.
const WARNING_PAUSE: Duration = Duration::from_secs(10);

/// All connections of a server.
pub struct Connections {
    limits: ConnectionLimits,
    /// What requests may hold; each connection has a share.
    budget: Arc<ByteBudget>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By the cookie of the socket, which the kernel never gives twice.
    open: HashMap<u64, Arc<Connection>>,
    /// Cookies by age, of all over which nothing was asked yet, and of some others.
    unasked: VecDeque<u64>,
    reclaimed_at: Option<u64>,
    warned_at: Option<u64>,
    refused: u64,
    refused_since_warning: u64,
}

/// A connection that is open, or was.
#[derive(Debug)]
pub struct Connection {
    cookie: u64,
    descriptor: RawFd,
    /// In milliseconds of `now_ms`, as are all times here.
    admitted_at: u64,
    /// Requests being answered.
    busy: AtomicU32,
    /// When the last of them ended; until then, when it was admitted.
    used_at: AtomicU64,
    /// What its requests hold.
    account: Arc<Account>,
    unsent: Arc<UnsentPieces>,
}

/// Keeps a connection in the table. It must be dropped before its socket is.
pub struct ConnectionGuard {
    connections: Arc<Connections>,
    connection: Arc<Connection>,
}

/// A request of a connection that is being answered.
#[derive(Debug)]
pub struct Busy(Arc<Connection>);

impl Busy {
    /// The connection.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Connections {
    /// With room for so many, and for what their requests hold.
    pub fn new(limits: ConnectionLimits, budget: &Arc<ByteBudget>) -> Arc<Connections> {
        Arc::new(Connections { limits, budget: budget.clone(), table: Mutex::default() })
    }

    /// Takes a connection on that was just accepted; `None`: there is no room, it must be closed.
    pub fn admit(self: &Arc<Connections>, socket: impl AsFd) -> Option<ConnectionGuard> {
        let socket = socket.as_fd();
        let descriptor = socket.as_raw_fd();
        let cookie = socket_cookie(socket).ok()?;
        let now = now_ms();
        let mut table = self.table.lock();
        let number = usize::try_from(descriptor).unwrap_or(usize::MAX);
        let mut verdict = self.limits.verdict(table.open.len(), number);
        match verdict {
            Verdict::Admit => (),
            Verdict::Reclaim => table.reclaim(now, MIN_IDLE_TO_CLOSE),
            Verdict::Refuse => {
                if !table.close_unasked(now) {
                    table.reclaim(now, MIN_IDLE_TO_REPLACE);
                }
                verdict = self.limits.verdict(table.open.len(), number);
            }
        }
        if verdict == Verdict::Refuse {
            table.refuse(self.limits, now);
            return None;
        }
        let connection = Arc::new(Connection {
            cookie,
            descriptor,
            admitted_at: now,
            busy: AtomicU32::new(0),
            used_at: AtomicU64::new(now),
            account: Account::new(&self.budget),
            unsent: Arc::default(),
        });
        table.insert(connection.clone());
        Some(ConnectionGuard { connections: self.clone(), connection })
    }

    /// How many there are.
    pub fn open(&self) -> usize {
        self.table.lock().open.len()
    }

    /// How many were refused since the start.
    pub fn refused(&self) -> u64 {
        self.table.lock().refused
    }

    /// How many there may be.
    pub fn limits(&self) -> ConnectionLimits {
        self.limits
    }
}

impl Table {
    fn insert(&mut self, connection: Arc<Connection>) {
        self.unasked.push_back(connection.cookie);
        self.open.insert(connection.cookie, connection);
        if 2 * self.open.len() + MAX_CLOSED_AT_ONCE < self.unasked.len() {
            self.unasked.retain(|it| self.open.get(it).is_some_and(|it| it.is_unasked()));
        }
    }

    /// Closes the oldest one over which nothing was asked yet, and forgets it: a flood of them, or of
    /// half greetings, takes no place of those that are used. `false`: there is none that is old
    /// enough.
    fn close_unasked(&mut self, now: u64) -> bool {
        while let Some(cookie) = self.unasked.front() {
            let oldest = self.open.get(cookie).filter(|it| it.is_unasked());
            if let Some(oldest) = oldest {
                let age = now.saturating_sub(oldest.admitted_at);
                if u128::from(age) < MIN_UNASKED_TO_REPLACE.as_millis() {
                    return false;
                }
                oldest.close();
                self.open.remove(cookie);
                self.unasked.pop_front();
                return true;
            }
            self.unasked.pop_front();
        }
        false
    }

    /// Closes those that are idle the longest, for so long at least, and forgets them: who serves
    /// them finds them ended.
    fn reclaim(&mut self, now: u64, min_idle: Duration) {
        if !is_due(&mut self.reclaimed_at, now, RECLAIM_PAUSE) {
            return;
        }
        let is_idle = |ms: u64| min_idle.as_millis() <= u128::from(ms);
        let idle = self.open.values().filter(|it| it.idle_ms(now).is_some_and(is_idle));
        let mut idle: Vec<Arc<Connection>> = idle.cloned().collect();
        idle.sort_unstable_by_key(|it| it.used_at.load(Relaxed));
        let most = self.open.len().div_ceil(4).min(MAX_CLOSED_AT_ONCE);
        for connection in idle.into_iter().take(most) {
            connection.close();
            self.open.remove(&connection.cookie);
        }
    }

    fn refuse(&mut self, limits: ConnectionLimits, now: u64) {
        self.refused += 1;
        self.refused_since_warning += 1;
        if is_due(&mut self.warned_at, now, WARNING_PAUSE) {
            tracing::warn!(
                "{} connections were refused: {} are open, of at most {}, and the process may have \
                 {} descriptors",
                self.refused_since_warning,
                self.open.len(),
                limits.connections,
                limits.descriptors
            );
            self.refused_since_warning = 0;
        }
    }
}

/// Is it `pause` after the last time? Then this is the last time.
fn is_due(last: &mut Option<u64>, now: u64, pause: Duration) -> bool {
    let is_due = last.is_none_or(|it| pause.as_millis() <= u128::from(now.saturating_sub(it)));
    if is_due {
        *last = Some(now);
    }
    is_due
}

impl Connection {
    /// A request of it begins; it is not idle until all such are dropped.
    pub fn begin(self: &Arc<Connection>) -> Busy {
        self.busy.fetch_add(1, Relaxed);
        Busy(self.clone())
    }

    /// Pieces of its answers that are on their way.
    pub(crate) fn unsent(&self) -> &Arc<UnsentPieces> {
        &self.unsent
    }

    /// Is a request of it being answered?
    pub fn is_busy(&self) -> bool {
        self.busy.load(Relaxed) != 0
    }

    /// Begins to count the memory of a request; RESOURCE_EXHAUSTED if there is none for it.
    pub fn charge(&self) -> Result<Charge> {
        Charge::open(&self.account)
    }

    /// The bytes that its requests hold, if the server's memory is short.
    pub(crate) fn held_of_short_memory(&self) -> Option<usize> {
        self.account.budget().is_short().then(|| self.account.in_use())
    }

    /// Has nothing been asked over it yet?
    fn is_unasked(&self) -> bool {
        !self.is_busy() && self.used_at.load(Relaxed) == self.admitted_at
    }

    /// Counts memory that it holds for itself, until the result is dropped.
    pub(super) fn keep(&self, kind: Kind, bytes: usize) -> Kept {
        self.account.budget().keep(kind, bytes)
    }

    /// For how long nothing of it is being answered; `None`: something is.
    fn idle_ms(&self, now: u64) -> Option<u64> {
        (!self.is_busy()).then(|| now.saturating_sub(self.used_at.load(Relaxed)))
    }

    /// Ends it for its client and for those who serve it. Only for a connection in the table.
    #[allow(unsafe_code, reason = "the table knows sockets by number, their owners are elsewhere")]
    fn close(&self) {
        // SAFETY: it is in the table, so its guard was not dropped yet, and the guard goes before
        // the socket is closed: the number is still that of an open descriptor.
        let socket = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        // Another socket under this number would have another cookie.
        if socket_cookie(socket).is_ok_and(|it| it == self.cookie) {
            // Fails if the client has gone already.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }
}

impl ConnectionGuard {
    /// The connection.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.connections.table.lock().open.remove(&self.connection.cookie);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // It differs from when it was admitted, also within a millisecond.
        self.0.used_at.store(now_ms().max(self.0.admitted_at + 1), Relaxed);
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

/// Milliseconds that grow from a day on: there are times before the process began.
fn now_ms() -> u64 {
    const FIRST_MS: u64 = 24 * 60 * 60 * 1000;
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    FIRST_MS.saturating_add(u64::try_from(ORIGIN.elapsed().as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
impl Connection {
    /// As if nothing had been asked over it for so long.
    pub(super) fn age(&self, by: Duration) {
        let by = u64::try_from(by.as_millis()).unwrap();
        self.used_at.store(now_ms().saturating_sub(by), Relaxed);
    }
}
