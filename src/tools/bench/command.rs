//! `troupe bench`: measures level after level, then writes the files and the text asked for.

use std::{fs, path::Path};

use tokio::{runtime::Builder, signal::ctrl_c, sync::watch};

use super::{
    advice::{ClientMachine, advise},
    batch_probe,
    cores::Cores,
    counts::ModelKey,
    csv,
    format::{digits, plain, time},
    html, json,
    level::LoadLevel,
    load::{self, Job},
    measure::{BenchRun, LevelPosition, measure},
    members::{self, Member},
    progress::ProgressBar,
    report::BenchReport,
    request,
    sequence_load::sequence_load,
    server::ServerClient,
    tables,
};
use crate::client::{address, connect, endpoint, headers, with};
use troupe_options as options;

/// How a run ended.
pub struct BenchOutcome {
    /// Tables and advice, of what was measured.
    pub text: String,
    /// Why there is not more, if not everything was measured.
    pub problem: Option<String>,
}

/// Measures, writes the files asked for, and says what to print.
///
/// # Errors
/// When there is nothing to report: the model cannot be asked, or every request failed.
pub fn bench(arguments: &options::BenchArguments) -> Result<BenchOutcome, String> {
    let files = [&arguments.csv, &arguments.html, &arguments.json];
    files.into_iter().flatten().try_for_each(|it| is_writable(it))?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let (report, problem) = runtime.block_on(run(arguments))?;
    if report.levels.iter().all(|it| it.answered() == 0) {
        return Err(problem.unwrap_or_else(|| "nothing was measured".to_owned()));
    }
    csv::write(&report)?;
    write(&arguments.html, || html::page(&report))?;
    write(&arguments.json, || json::text(&report))?;
    Ok(BenchOutcome { text: tables::text(&report), problem })
}

async fn run(
    arguments: &options::BenchArguments,
) -> Result<(BenchReport<'_>, Option<String>), String> {
    let headers = headers(&arguments.connection.header)?;
    let client = connect(&arguments.connection).await?;
    let metadata = with((), &headers).metadata().clone();
    let mut server = ServerClient::new(client, headers, &arguments.connection.url);
    let config = server.config(&arguments.model, &arguments.model_version).await?;
    let request = request::build(arguments, &config)?;
    let known = server.statistics().await?.counts;
    let (name, version) = (&arguments.model, &arguments.model_version);
    let members = members::members(&mut server, name, version, &known).await?;
    let sequences = sequence_load(arguments, &members)?;
    let is_decoupled = request::is_decoupled(&config);
    let endpoint = endpoint(&arguments.connection)?;
    let mut bench = BenchRun {
        job: Job { endpoint, headers: metadata, request, is_decoupled, sequences },
        cores: Cores::new(address(&arguments.connection.url)),
        progress: ProgressBar::new(),
        stops: stops(),
        warmup: arguments.warmup,
        seconds: arguments.seconds,
        batch: arguments.batch_size.into(),
        server,
    };
    let machine = ClientMachine { cores: bench.cores.count, threads: load::thread_count() };
    let (levels, problem) = levels(&mut bench, &arguments.concurrency.0).await;
    let mut members = with_called(&mut bench.server, members, &levels).await;
    if problem.is_none() {
        batch_probe::note(&mut bench, &mut members, &levels, arguments, &config).await;
    }
    let report = BenchReport {
        arguments,
        server: bench.server.name().await.unwrap_or_default(),
        is_decoupled,
        sequence_length: sequences.map(|it| it.length),
        process: bench.cores.server,
        advice: advise(&members, &levels, machine, arguments.target),
        machine,
        members,
        levels,
    };
    Ok((report, problem))
}

/// Counts how often the user asks to stop, from now on.
fn stops() -> watch::Receiver<u32> {
    let (count, stops) = watch::channel(0);
    tokio::spawn(async move {
        while ctrl_c().await.is_ok() {
            count.send_modify(|it| *it += 1);
        }
    });
    stops
}

/// As many levels as can be measured, and why not more.
async fn levels(bench: &mut BenchRun, all: &[usize]) -> (Vec<LoadLevel>, Option<String>) {
    let mut levels = Vec::new();
    for (index, in_flight) in all.iter().copied().enumerate() {
        let place = LevelPosition { in_flight, index, count: all.len() };
        let level = match measure(bench, place).await {
            Ok(Some(level)) => level,
            Ok(None) => return (levels, Some(stopped())),
            Err(why) => return (levels, Some(why)),
        };
        bench.progress.line(&line(&level));
        let problem = match (level.answered(), &level.error) {
            (0, Some(error)) => Some(format!("every request failed: {}", plain(error))),
            (0, None) => Some(format!(
                "no request was answered in {}: measure for longer with --seconds",
                time(level.seconds * 1e9)
            )),
            _ => level.is_cut.then(stopped),
        };
        levels.push(level);
        if problem.is_some() {
            return (levels, problem);
        }
    }
    (levels, None)
}

fn stopped() -> String {
    "stopped before everything was measured".to_owned()
}

fn line(level: &LoadLevel) -> String {
    let latency = |percent| time(level.seen.latency.percentile(percent));
    let mut line = format!(
        "{} in flight: {} infer/s, latency {} (p50), {} (p99)",
        level.in_flight,
        digits(level.throughput()),
        latency(50.0),
        latency(99.0)
    );
    if let Some(error) = &level.error {
        line += &format!("; {} failed, the first: {}", level.seen.failed, plain(error));
    }
    line
}

/// The members, and whoever else was at work.
async fn with_called(
    server: &mut ServerClient,
    mut members: Vec<Member>,
    levels: &[LoadLevel],
) -> Vec<Member> {
    let mut others: Vec<&ModelKey> = levels
        .iter()
        .flat_map(|it| &it.counts)
        .filter(|it| 0 < it.1.executions)
        .map(|it| it.0)
        .collect();
    others.sort_unstable();
    others.dedup();
    for key in others {
        if members.iter().all(|it| it.key != *key) {
            // One that has been unloaded since is nobody's bottleneck.
            members.extend(members::called(server, key).await.ok());
        }
    }
    members
}

/// Better now than after minutes of load.
fn is_writable(path: &Path) -> Result<(), String> {
    let opened = fs::OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Option<std::path::PathBuf>, text: impl FnOnce() -> String) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    fs::write(path, text()).map_err(|error| format!("{}: {error}", path.display()))
}
