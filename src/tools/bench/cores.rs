//! CPU time: of this process, of the server if it runs on this machine, of the whole machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{SocketAddr, ToSocketAddrs, UdpSocket},
    thread,
    time::Instant,
};

use troupe_options::UNIX_SOCKET;

/// Where CPU time is read.
pub(super) struct Cores {
    /// How many this process may use.
    pub(super) count: usize,
    /// The process that listens, and its name; `None`: it runs elsewhere, or is not ours to look
    /// at.
    pub(super) server: Option<(u32, String)>,
}

/// CPU seconds at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuReading {
    at: Instant,
    client: f64,
    server: Option<f64>,
    machine: Option<f64>,
}

/// How many cores were at work on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CoresUsed {
    /// By this process.
    pub(super) client: f64,
    /// By the server and its workers.
    pub(super) server: Option<f64>,
    /// By everybody.
    pub(super) machine: Option<f64>,
}

impl Cores {
    /// Looks for the server that listens at this address.
    pub(super) fn new(address: &str) -> Cores {
        let count = thread::available_parallelism().map_or(1, Into::into);
        Cores { count, server: listener(address) }
    }

    /// The times now.
    pub(super) fn read(&self) -> CpuReading {
        let processes = processes();
        let of = |pid| tree(pid, &processes);
        // A share of a machine's cores says nothing about the machine.
        let machine = machine().filter(|it| it.1 == self.count);
        CpuReading {
            at: Instant::now(),
            client: of(std::process::id()).unwrap_or(0.0),
            server: self.server.as_ref().and_then(|it| of(it.0)),
            machine: machine.map(|it| it.0),
        }
    }
}

impl CpuReading {
    /// The use of cores since then.
    pub(super) fn since(&self, then: &CpuReading) -> CoresUsed {
        let seconds = (self.at - then.at).as_secs_f64().max(1e-3);
        let rate = |now: f64, then: f64| (now - then).max(0.0) / seconds;
        let both = |now: Option<f64>, then: Option<f64>| Some(rate(now?, then?));
        CoresUsed {
            client: rate(self.client, then.client),
            server: both(self.server, then.server),
            machine: both(self.machine, then.machine),
        }
    }
}

/// The process that listens at an address of this machine.
fn listener(address: &str) -> Option<(u32, String)> {
    let sockets = match address.strip_prefix(UNIX_SOCKET) {
        Some(path) => listening_at(&fs::read_to_string("/proc/net/unix").ok()?, path),
        None => {
            let addresses: Vec<SocketAddr> = address.to_socket_addrs().ok()?.collect();
            // Only an address of our own can be bound.
            let ours = addresses.iter().find(|it| UdpSocket::bind((it.ip(), 0)).is_ok())?;
            let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
            tables.iter().flatten().flat_map(|it| listening(it, ours.port())).collect()
        }
    };
    let holds = |pid: u32| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().filter_map(|it| fs::read_link(it.path()).ok()).any(|it| {
            let link = it.to_string_lossy();
            sockets.iter().any(|socket| link == format!("socket:[{socket}]"))
        })
    };
    let processes = processes();
    let pid = processes.keys().copied().find(|pid| holds(*pid))?;
    Some((pid, processes.get(&pid)?.name.clone()))
}

/// Inodes of the sockets that listen at a port, of a table of the kernel's.
fn listening(table: &str, port: u16) -> Vec<String> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let is_it = *fields.get(3)? == "0A" && u16::from_str_radix(local, 16).ok()? == port;
        is_it.then_some((*fields.get(9)?).to_owned())
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// Inodes of the Unix sockets that listen at a path, of the kernel's table.
fn listening_at(table: &str, path: &str) -> Vec<String> {
    let path = path.strip_prefix("//").unwrap_or(path);
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = *fields.get(3)? == "00010000" && *fields.get(7)? == path;
        is_it.then_some((*fields.get(6)?).to_owned())
    };
    table.lines().skip(1).filter_map(row).collect()
}

#[derive(Debug, PartialEq)]
struct ProcessStat {
    name: String,
    parent: u32,
    seconds: f64,
}

fn processes() -> BTreeMap<u32, ProcessStat> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    let one = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, process(&fs::read_to_string(entry.path().join("stat")).ok()?)?))
    };
    entries.flatten().filter_map(one).collect()
}

/// A line of `/proc/PID/stat`; the name in it may hold anything.
fn process(line: &str) -> Option<ProcessStat> {
    let (head, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some(ProcessStat {
        name: head.split_once('(')?.1.to_owned(),
        parent: fields.get(1)?.parse().ok()?,
        // Children that have ended count for whoever waited for them.
        seconds: [11, 12, 13, 14].into_iter().filter_map(ticks).sum::<f64>() / per_second(),
    })
}

/// CPU seconds of a process and all below it.
fn tree(root: u32, processes: &BTreeMap<u32, ProcessStat>) -> Option<f64> {
    let mut found = BTreeSet::from([processes.contains_key(&root).then_some(root)?]);
    loop {
        let is_below = |it: &(&u32, &ProcessStat)| found.contains(&it.1.parent);
        let below: Vec<u32> = processes.iter().filter(is_below).map(|it| *it.0).collect();
        let before = found.len();
        found.extend(below);
        if found.len() == before {
            return Some(
                found.iter().filter_map(|it| processes.get(it)).map(|it| it.seconds).sum(),
            );
        }
    }
}

/// CPU seconds of all cores, and how many cores there are.
fn machine() -> Option<(f64, usize)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = line.split_whitespace().filter_map(|it| it.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let busy = [0, 1, 2, 5, 6, 7].into_iter().filter_map(|it| ticks.get(it)).sum::<f64>();
    let is_core = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
    Some((busy / per_second(), text.lines().filter(is_core).count()))
}

fn per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_process_that_listens_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(Cores::new(&address).server.unwrap().0, std::process::id());
        drop(listener);
        assert_eq!(Cores::new(&address).server, None);
        assert_eq!(Cores::new("192.0.2.1:8001").server, None);
    }

    #[test]
    fn a_name_may_hold_anything() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 4194304 1 2 3 4 100 50 10 5 20 0 1 0";
        let seconds = 165.0 / per_second();
        let expected = ProcessStat { name: "a) b (c".to_owned(), parent: 3, seconds };
        assert_eq!(process(line), Some(expected));
        assert_eq!(process("7 (a"), None);
    }

    #[test]
    fn children_count() {
        let process = |parent, seconds| ProcessStat { name: String::new(), parent, seconds };
        let rows = [(1, process(0, 9.0)), (2, process(4, 1.0)), (3, process(2, 2.0))];
        let all: BTreeMap<_, _> = rows.into_iter().chain([(4, process(3, 4.0))]).collect();
        assert_eq!((tree(2, &all), tree(5, &all)), (Some(7.0), None));
    }

    #[test]
    fn work_is_seen() {
        let cores = Cores::new("192.0.2.1:8001");
        let before = cores.read();
        let mut sum = 0u64;
        // The kernel counts in hundredths of a second.
        while cores.read().client < before.client + 0.03 {
            sum = std::hint::black_box((0..1 << 20).fold(sum, u64::wrapping_add));
        }
        let used = cores.read().since(&before);
        assert!(0.0 < used.client && used.server.is_none(), "{used:?}");
    }
}
