//! How far iterations run ahead of their first one and of their client, and what sets them free.

use super::{fakes::*, *};

const ONE: (&str, &str) = ("x:-1", "y:-1");
const IO: (&str, &str) = ("IN:-1", "OUT:-1");
/// One MiB.
const LARGE: usize = 1 << 18;

async fn chain(fixture: &mut Fixture) -> (ModelRequests, ModelRequests) {
    let asked = (fixture.fake_decoupled("makes", ONE), fixture.fake("reads", ONE));
    let steps = ["makes: x=IN -> y=mid", "reads: x=mid -> y=OUT"];
    fixture.ensemble("chain", 0, IO, &steps).await.unwrap();
    asked
}

/// A request of a chain whose first iteration is slow: all that could be made of the others was.
struct Stuck {
    client: Client,
    made: OpenRequest,
    reads: ModelRequests,
    first: OpenRequest,
    held: UnreturnedCredit,
    /// Iterations that have begun.
    begun: usize,
}

const ALL: usize = 500;

async fn stuck(fixture: &mut Fixture) -> Stuck {
    let held = UnreturnedCredit::default();
    let (mut makes, mut reads) = chain(fixture).await;
    let client = fixture.stream("chain", 7);
    let mut made = makes.next().await;
    (0..ALL as i32).for_each(|it| made.counted_part(it, &held));
    let first = reads.next().await;
    let mut begun = 1;
    loop {
        settle().await;
        let next = reads.all();
        if next.is_empty() {
            return Stuck { client, made, reads, first, held, begun };
        }
        begun += next.len();
        next.into_iter().for_each(|it| it.swell(LARGE));
    }
}

#[test]
fn iterations_wait_once_those_before_them_hold_enough() {
    on_all_threads(|mut fixture| async move {
        let Stuck { mut client, made, mut reads, first, held, begun } = stuck(&mut fixture).await;
        assert!((60..=64).contains(&begun), "{begun}");
        assert!(held.is(ALL) && client.has_heard_nothing());
        first.swell(LARGE);
        made.end();
        let mut next = 0;
        loop {
            settle().await;
            let (told, has_ended) = client.all();
            for text in &told {
                let expected = if next == ALL { "end".to_owned() } else { next.to_string() };
                assert_eq!(text.split(' ').next(), Some(&*expected));
                next += 1;
            }
            if has_ended {
                break;
            }
            // Neither taken by the client nor on their way there.
            let open = reads.all();
            assert!(client.taken.len() + open.len() <= 65, "{} and {}", told.len(), open.len());
            open.into_iter().for_each(|it| it.swell(LARGE));
            client.taken.clear();
        }
        assert_eq!(next, ALL + 1);
        client.taken.clear();
        assert!(held.is(0));
    });
}

#[test]
fn a_client_that_does_not_read_is_not_run_ahead_of_either() {
    on_all_threads(|mut fixture| async move {
        let held = UnreturnedCredit::default();
        let (mut makes, mut reads) = chain(&mut fixture).await;
        let mut client = fixture.stream("chain", 7);
        let mut made = makes.next().await;
        (0..300).for_each(|it| made.counted_part(it, &held));
        let mut told = 0;
        for taken in 0..200 {
            loop {
                settle().await;
                told += client.all().0.len();
                let open = reads.all();
                if open.is_empty() {
                    break;
                }
                open.into_iter().for_each(|it| it.swell(LARGE));
            }
            assert!((taken + 60..=taken + 64).contains(&told), "{told} told and {taken} taken");
            client.taken.remove(0);
        }
    });
}

#[test]
fn a_client_that_leaves_sets_free_what_waits_whatever_is_slow() {
    on_all_threads(|mut fixture| async move {
        let Stuck { mut client, mut made, reads, first, held, begun } = stuck(&mut fixture).await;
        assert!(held.is(ALL));
        client.context.cancel();
        later().await;
        assert_eq!(client.all(), (vec!["last request has been cancelled".to_owned()], true));
        // The slow one knows nothing of it.
        assert!(held.is(1) && reads.is_idle() && begun <= 64);
        made.counted_part(ALL as i32, &held);
        assert!(held.is(1));
        first.echo();
        made.end();
        settle().await;
        assert!(held.is(0) && reads.is_idle());
    });
}

#[test]
fn a_failure_sets_free_what_waits_behind_it() {
    on_all_threads(|mut fixture| async move {
        let Stuck { mut client, made, reads, first, held, .. } = stuck(&mut fixture).await;
        first.fail("no");
        settle().await;
        assert!(held.is(0) && reads.is_idle());
        let error = "last in ensemble 'chain', step 1 (model 'reads' version 1): no";
        assert_eq!(client.all(), (vec![error.to_owned()], true));
        drop(made);
    });
}

#[test]
fn the_window_is_what_the_config_says() {
    for (window, least, most) in [("1", 16, 16), ("8M", 16, 16), ("100M", 95, 100)] {
        on_all_threads(|mut fixture| async move {
            let more = format!(
                "parameters {{ key: 'ITERATION_WINDOW_BYTES' value {{ string_value: '{window}' }} }}"
            );
            fixture.more = more.leak();
            let Stuck { begun, .. } = stuck(&mut fixture).await;
            assert!((least..=most).contains(&begun), "{begun} of {window}");
        });
    }
    on_all_threads(|mut fixture| async move {
        fixture.more = "parameters { key: 'ITERATION_WINDOW_BYTES' value { string_value: 'all' } }";
        let _asked = (fixture.fake_decoupled("makes", ONE), fixture.fake("reads", ONE));
        let steps = ["makes: x=IN -> y=mid", "reads: x=mid -> y=OUT"];
        let problems = fixture.ensemble("chain", 0, IO, &steps).await.unwrap_err();
        let text = "parameter 'ITERATION_WINDOW_BYTES' of model 'chain' is 'all', expected a \
                    positive whole number of bytes, or one with K, M or G (config.pbtxt:1:";
        assert!(problems.len() == 1 && problems[0].starts_with(text), "{problems:?}");
    });
}

#[test]
fn what_iterations_hold_on_their_way_counts() {
    on_all_threads(|mut fixture| async move {
        let mut makes = fixture.fake_decoupled("makes", ONE);
        let (mut swells, mut shrinks) = (fixture.fake("swells", ONE), fixture.fake("shrinks", ONE));
        let steps = ["makes: x=IN -> y=a", "swells: x=a -> y=b", "shrinks: x=b -> y=OUT"];
        fixture.ensemble("both", 0, IO, &steps).await.unwrap();
        let _client = fixture.stream("both", 7);
        let mut made = makes.next().await;
        (0..ALL as i32).for_each(|it| made.part(it));
        settle().await;
        let mut held = Vec::new();
        loop {
            let open = swells.all();
            if open.is_empty() {
                break;
            }
            open.into_iter().for_each(|it| it.swell(LARGE));
            settle().await;
            held.extend(shrinks.all());
            // Until one is through nobody knows how large they get; the others stay.
            if held.len() == 16 {
                held.pop().unwrap().echo();
            }
            settle().await;
        }
        assert!((60..=64).contains(&held.len()), "{}", held.len());
    });
}

#[test]
fn responses_of_an_ensemble_within_wait_there() {
    on_all_threads(|mut fixture| async move {
        let (mut makes, mut reads) = chain(&mut fixture).await;
        let mut after = fixture.fake("after", ONE);
        let steps = ["chain: IN=A -> OUT=mid", "after: x=mid -> y=B"];
        fixture.ensemble("outer", 0, ("A:-1", "B:-1"), &steps).await.unwrap();
        let held = UnreturnedCredit::default();
        let mut client = fixture.stream("outer", 7);
        let mut made = makes.next().await;
        (0..ALL as i32).for_each(|it| made.counted_part(it, &held));
        made.end();
        let (mut first, mut swollen) = (None, 0);
        loop {
            settle().await;
            let (open, more) = (after.all(), reads.all());
            if open.is_empty() && more.is_empty() {
                break;
            }
            swollen += more.len();
            more.into_iter().for_each(|it| it.swell(LARGE));
            for it in open {
                if it.values()[0] == 0 { first = Some(it) } else { it.echo() }
            }
        }
        assert!(swollen <= 64 && held.is(ALL), "{swollen}");
        first.unwrap().echo();
        let mut told = Vec::new();
        loop {
            settle().await;
            let (more, has_ended) = client.all();
            told.extend(more);
            if has_ended {
                break;
            }
            reads.all().into_iter().for_each(|it| it.swell(LARGE));
            after.all().into_iter().for_each(OpenRequest::echo);
            client.taken.clear();
        }
        let expected = (0..ALL).map(|it| it.to_string()).chain(["end".to_owned()]);
        assert_eq!(told, expected.collect::<Vec<_>>());
        client.taken.clear();
        assert!(held.is(0));
    });
}

#[test]
fn a_failure_within_an_iteration_stops_its_own_maker_only() {
    on_all_threads(|mut fixture| async move {
        let (mut makes, mut reads) = chain(&mut fixture).await;
        let mut first = fixture.fake_decoupled("first", ONE);
        let steps = ["first: x=A -> y=mid", "chain: IN=mid -> OUT=B"];
        fixture.ensemble("outer", 0, ("A:-1", "B:-1"), &steps).await.unwrap();
        let mut client = fixture.stream("outer", 7);
        let mut outer = first.next().await;
        (1..=2).for_each(|it| outer.part(it));
        let mut made = makes.next().await;
        made.part(10);
        reads.next().await.fail("no ten");
        settle().await;
        assert!(made.request.context.is_stopped() && outer.request.context.is_stopped());
        let error = "last in ensemble 'outer', step 1 (model 'chain' version 1): in ensemble 'chain', \
                     step 1 (model 'reads' version 1): no ten";
        assert_eq!(client.all(), (vec![error.to_owned()], true));
        assert!(makes.is_idle() && !client.context.is_stopped());
    });
}
