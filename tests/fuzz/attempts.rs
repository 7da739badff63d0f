//! The loop of all fuzzers: inputs made from seeds, a server that is looked at in between, a report.

use std::{
    env, fs,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::mutate::{Corpus, Random};
use crate::support::{
    Repository, Server,
    http::floats,
    models::{native, same},
    subject::Subject,
};

/// A server is looked at after so many inputs.
const BATCH: usize = 64;
/// Small limits, so that they are met.
const LIMITS: &[&str] = &[
    "--max-inflight-bytes=67108864",
    "--http-max-input-size=1048576",
    "--stalled-connection-secs=2",
    "--exit-on-error=false",
];

/// Sends pieces as far as the server takes them; `false`: so late that the server may have given up
/// a client that stalls (`--stalled-connection-secs`), which a machine that stands still looks like.
pub(super) fn send_in_time(mut stream: impl Write, pieces: &[&[u8]]) -> bool {
    let begin = Instant::now();
    // It may have been closed in the middle, which is what reading finds.
    let _ = pieces.iter().try_for_each(|it| stream.write_all(it));
    begin.elapsed() < Duration::from_millis(500)
}

/// A server with these limits, and more flags.
pub(super) fn attacked(repository: Repository, flags: &[&str], works: fn(&Server)) -> Subject {
    Subject::new(repository, &[LIMITS, flags].concat(), works)
}

/// An identity of numbers in the server's process, and one in a worker.
pub(super) fn identities() -> Subject {
    let numbers = "x:FP32[-1] -> y:FP32[-1]";
    let models = [("native", native("identity", numbers)), ("python", same(numbers))];
    attacked(Repository::of(models), &[], |server| {
        for model in ["native", "python"] {
            let answer = server.infer(model, &floats(&[("x", &[1.0, 2.5])]));
            assert_eq!(answer.numbers("y"), [1.0, 2.5]);
        }
    })
}

/// Gives mutated inputs to a function that reads them; a panic is a failure.
pub(super) fn fuzz(name: &str, corpus: &Corpus<'_>, mut check: impl FnMut(&[u8], &mut Random)) {
    let one = |random: &mut Random| {
        let input = random.input(corpus);
        check(&input, random);
    };
    attempt(name, one, || ());
}

/// Attacks a server; `one` makes an input, keeps it, sends it and checks the answer.
pub(super) fn fuzz_server(name: &str, subject: &Subject, one: impl FnMut(&mut Random)) {
    attempt(name, one, || subject.is_sound());
}

fn attempt(name: &str, mut one: impl FnMut(&mut Random), is_sound: impl Fn()) {
    let number = |name: &str| env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
    let seconds = number("FUZZ_SECONDS");
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let first = number("FUZZ_SEED").unwrap_or_else(|| if seconds.is_some() { now() } else { 1 });
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(1));
    let (mut seed, mut inputs) = (first, Vec::new());
    loop {
        // Each input has a seed, so that the last one is found again at once.
        let mut random = Random::new(seed);
        let tried = catch_unwind(AssertUnwindSafe(|| one(&mut random)));
        inputs.push(random.made);
        if tried.is_err() {
            let folder = write(name, seed, &inputs[inputs.len() - 1..]);
            panic!("{name}: FUZZ_SEED={seed}, {}", folder.display());
        }
        seed = seed.wrapping_add(1);
        let is_over = end <= Instant::now();
        if is_over || inputs.len() == BATCH {
            if catch_unwind(AssertUnwindSafe(&is_sound)).is_err() {
                let begin = seed.wrapping_sub(inputs.len() as u64);
                let folder = write(name, begin, &inputs);
                panic!("{name}: after FUZZ_SEED={begin} to {seed}, {}", folder.display());
            }
            inputs.clear();
        }
        if is_over {
            break;
        }
    }
    println!("{name}: {} inputs from FUZZ_SEED={first} on", seed.wrapping_sub(first));
}

/// Writes inputs to files named by their seeds; where they lie.
fn write(name: &str, first: u64, inputs: &[Vec<u8>]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz").join(name.replace(' ', "-"));
    fs::create_dir_all(&folder).unwrap();
    for (seed, input) in (first..).zip(inputs) {
        fs::write(folder.join(seed.to_string()), input).unwrap();
    }
    folder
}
