//! Pages of made-up reports.

use std::{collections::BTreeMap, time::Duration};

use clap::Parser;

use super::{
    super::super::{
        advice::{ClientMachine, advise},
        cores::CoresUsed,
        counts::{Batches, Counts, ModelKey},
        load::LoadTotals,
        members::Member,
    },
    *,
};
use troupe_options::{Command, Options};

const EVIL: &str = "<script>alert('x')</script>\"&";

fn key(name: &str) -> ModelKey {
    ModelKey { name: name.to_owned(), version: "1".to_owned() }
}

fn level(in_flight: usize, answered: u64) -> LoadLevel {
    let mut seen = LoadTotals { failed: 1, ..LoadTotals::default() };
    (0..answered).for_each(|_| seen.latency.add(Duration::from_millis(3)));
    let busy = Batches { count: answered, ns: 980_000_000 };
    let counts = Counts {
        answered,
        executions: answered,
        inferences: answered,
        batches: BTreeMap::from([(1, busy)]),
        infer_ns: 980_000_000,
        queue_ns: 5_000_000_000,
        ..Counts::default()
    };
    LoadLevel {
        in_flight,
        batch: 1,
        seconds: 1.0,
        seen,
        counts: BTreeMap::from([(key(EVIL), counts)]),
        server_seconds: 1.0,
        used: CoresUsed { client: 0.1, server: None, machine: None },
        error: Some(format!("{EVIL}\u{1b}[2J")),
        ..LoadLevel::default()
    }
}

fn page_of(levels: Vec<LoadLevel>) -> String {
    let options = Options::try_parse_from(["troupe", "bench", EVIL, "--url", EVIL]).unwrap();
    let Some(Command::Bench(arguments)) = options.command else { panic!("no bench") };
    let members = vec![
        Member { key: key("all"), ..Member::default() },
        Member { key: key(EVIL), instances: 1, ..Member::default() },
    ];
    let machine = ClientMachine { cores: 8, threads: 4 };
    page(&BenchReport {
        arguments: &arguments,
        server: EVIL.to_owned(),
        is_decoupled: true,
        sequence_length: None,
        process: Some((7, EVIL.to_owned())),
        machine,
        advice: advise(&members, &levels, machine, None),
        members,
        levels,
    })
}

#[test]
fn names_are_text_and_never_markup() {
    let page = page_of(vec![level(1, 90), level(2, 100)]);
    assert!(!page.contains("<script") && !page.contains('\u{1b}'), "{page}");
    assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;"));
    for part in ["is the bottleneck", "Best throughput", "1 → <b>2</b>", "<details open>"] {
        assert!(page.contains(part), "no {part} in {page}");
    }
}

#[test]
fn nothing_comes_from_elsewhere() {
    let page = page_of(vec![level(1, 90)]);
    for token in ["http:", "https:", "//", "src=", "href=", "url(", "@import", "NaN", "inf\""] {
        assert!(!page.contains(token), "{token} in {page}");
    }
}

#[test]
fn a_page_of_nothing_is_a_page() {
    let page = page_of(Vec::new());
    assert!(page.contains("Levels") && !page.contains("Best throughput"), "{page}");
}

#[test]
fn long_names_keep_their_ends() {
    assert_eq!(short("detect"), "detect");
    assert_eq!(short("text_recognition_with_a_long_name"), "text_recogni…a_long_name");
}
