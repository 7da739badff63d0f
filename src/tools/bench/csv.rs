//! The levels as CSV, as perf_analyzer writes it: one file of the model, one of each step's model.

use std::{fs, path::Path};

use super::{
    counts::{Counts, ModelKey},
    level::LoadLevel,
    report::BenchReport,
};

const SERVER: &str = "Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,\
                      Server Compute Infer,Server Compute Output,Client Recv";

/// Writes the files that are asked for.
pub(super) fn write(report: &BenchReport<'_>) -> Result<(), String> {
    let Some(path) = &report.arguments.csv else { return Ok(()) };
    let file = |path: &Path, text: String| {
        fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    file(path, whole(report))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    for member in report.members.iter().skip(1) {
        file(&path.with_file_name(beside(&member.key, &name)), step(report, &member.key))?;
    }
    Ok(())
}

/// The file of a step's model; the name of a model is the server's word, and no path.
fn beside(ModelKey { name, version }: &ModelKey, file: &str) -> String {
    let part = |text: &str| -> String {
        let is_plain = |it: char| it.is_alphanumeric() || "_-.".contains(it);
        text.chars().map(|it| if is_plain(it) { it } else { '_' }).collect()
    };
    format!("{}_v{}.{file}", part(name), part(version))
}

/// As perf_analyzer does: the level with the least throughput first, times in whole microseconds.
fn whole(report: &BenchReport<'_>) -> String {
    let responses = if report.is_decoupled { "Response Throughput," } else { "" };
    let mut text = format!("Concurrency,Inferences/Second,{responses}{SERVER}");
    text += ",p50 latency,p90 latency,p95 latency,p99 latency\n";
    let key = report.members.first().map(|it| &it.key);
    for level in sorted(report) {
        let counts = key.and_then(|it| level.counts.get(it)).cloned().unwrap_or_default();
        text += &format!("{},{},", level.in_flight, short(level.throughput()));
        if report.is_decoupled {
            text += &format!("{},", short(level.response_rate()));
        }
        let each = |ns: u64| ns as f64 / level.answered().max(1) as f64;
        let (sent, received) =
            (each(level.seen.codec_time.write_ns), each(level.seen.codec_time.read_ns));
        let [queue, input, infer, output] = parts(&counts);
        let known = sent + received + queue + input + infer + output;
        let network = (level.seen.latency.mean() - known).max(0.0);
        text += &micros(&[sent, network, queue, input, infer, output, received]);
        let percentiles = [50.0, 90.0, 95.0, 99.0].map(|it| level.seen.latency.percentile(it));
        text += &format!(",{}\n", micros(&percentiles));
    }
    text
}

/// Its requests against those of the whole; the time between steps is what is left of its own.
fn step(report: &BenchReport<'_>, key: &ModelKey) -> String {
    let mut text = format!("Concurrency,Inferences/Second,{SERVER}\n");
    let asked = report.members.first().map(|it| &it.key);
    for level in sorted(report) {
        let of = |key: &ModelKey| level.counts.get(key).cloned().unwrap_or_default();
        let (counts, whole) = (of(key), asked.map(of).unwrap_or_default());
        let ratio = counts.answered as f64 / whole.answered.max(1) as f64;
        let [queue, input, infer, output] = parts(&counts);
        let all = counts.each(counts.whole_ns);
        let between = (all - queue - input - infer - output).max(0.0);
        let times = micros(&[0.0, between, queue, input, infer, output, 0.0]);
        text += &format!("{},{},{times}\n", level.in_flight, short(ratio * level.throughput()));
    }
    text
}

fn sorted<'a>(report: &'a BenchReport<'_>) -> Vec<&'a LoadLevel> {
    let mut levels: Vec<&LoadLevel> = report.levels.iter().collect();
    levels.sort_by(|one, other| one.throughput().total_cmp(&other.throughput()));
    levels
}

fn parts(counts: &Counts) -> [f64; 4] {
    [counts.queue_ns, counts.input_ns, counts.infer_ns, counts.output_ns].map(|it| counts.each(it))
}

fn micros(times: &[f64]) -> String {
    let all: Vec<_> = times.iter().map(|ns| format!("{:.0}", (ns / 1000.0).floor())).collect();
    all.join(",")
}

/// Six digits, as C++ prints a number.
fn short(value: f64) -> String {
    let before = if value < 1.0 { 1 } else { value.log10() as usize + 1 };
    let text = format!("{value:.*}", 6usize.saturating_sub(before));
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use clap::Parser;

    use super::{
        super::{advice::ClientMachine, codec::CodecTime, load::LoadTotals, members::Member},
        *,
    };
    use troupe_options::{Command, Options};

    fn level(in_flight: usize, requests: u64) -> LoadLevel {
        let mut seen = LoadTotals {
            codec_time: CodecTime { write_ns: requests * 5_000, read_ns: requests * 3_000 },
            ..LoadTotals::default()
        };
        (0..requests).for_each(|_| seen.latency.add(Duration::from_micros(100)));
        seen.responses = 3 * requests;
        let key = |name: &str| ModelKey { name: name.to_owned(), version: "2".to_owned() };
        let whole = Counts {
            answered: requests,
            whole_ns: requests * 90_000,
            queue_ns: requests * 20_999,
            infer_ns: requests * 50_000,
            ..Counts::default()
        };
        let step = Counts { answered: 2 * requests, ..whole.clone() };
        let counts = BTreeMap::from([(key("m"), whole), (key("s/../x"), step)]);
        LoadLevel { in_flight, batch: 2, seconds: 4.0, seen, counts, ..LoadLevel::default() }
    }

    fn check(is_decoupled: bool, run: impl FnOnce(&BenchReport<'_>)) {
        let options = Options::try_parse_from(["troupe", "bench", "m"]).unwrap();
        let Some(Command::Bench(arguments)) = options.command else { panic!("no bench") };
        let member = |name: &str| Member {
            key: ModelKey { name: name.to_owned(), version: "2".to_owned() },
            ..Member::default()
        };
        run(&BenchReport {
            arguments: &arguments,
            server: String::new(),
            is_decoupled,
            sequence_length: None,
            process: None,
            machine: ClientMachine { cores: 2, threads: 1 },
            members: vec![member("m"), member("s/../x")],
            levels: vec![level(1, 10), level(4, 5), level(8, 4000)],
            advice: None,
        });
    }

    #[test]
    fn columns_are_those_of_perf_analyzer() {
        check(false, |report| {
            assert_eq!(
                whole(report),
                "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,\
                 Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv,\
                 p50 latency,p90 latency,p95 latency,p99 latency\n\
                 4,2.5,5,21,20,0,50,0,3,100,100,100,100\n\
                 1,5,5,21,20,0,50,0,3,100,100,100,100\n\
                 8,2000,5,21,20,0,50,0,3,100,100,100,100\n"
            );
            let key = &report.members[1].key;
            assert_eq!(
                step(report, key),
                "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,\
                 Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv\n\
                 4,5,0,9,10,0,25,0,0\n1,10,0,9,10,0,25,0,0\n8,4000,0,9,10,0,25,0,0\n"
            );
            assert_eq!(beside(key, "perf.csv"), "s_.._x_v2.perf.csv");
        });
    }

    #[test]
    fn decoupled_models_have_responses() {
        check(true, |report| {
            let text = whole(report);
            assert!(
                text.starts_with("Concurrency,Inferences/Second,Response Throughput,Client Send,")
            );
            assert!(text.contains("\n4,2.5,3.75,5,21,"), "{text}");
        });
    }

    #[test]
    fn numbers_have_six_digits() {
        for (value, expected) in [
            (0.0, "0"),
            (69.2, "69.2"),
            (0.123_456_78, "0.12346"),
            (12_345.678, "12345.7"),
            (7_654_321.0, "7654321"),
            (100.0, "100"),
            (99.999_999, "100"),
        ] {
            assert_eq!(short(value), expected);
        }
    }
}
