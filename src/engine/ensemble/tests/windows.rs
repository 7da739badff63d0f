//! `max_inflight_requests`: how many requests of a step are in flight, decoupled ones included.

use super::{fakes::*, *};

const ONE: (&str, &str) = ("x:-1", "y:-1");

async fn limited(fixture: &mut Fixture, limit: u32) -> (ModelRequests, ModelRequests) {
    fixture.limit = limit;
    let asked = (fixture.fake_decoupled("makes", ONE), fixture.fake("reads", ONE));
    let steps = ["makes: x=IN -> y=mid", "reads: x=mid -> y=OUT"];
    fixture.ensemble("limited", 0, ("IN:-1", "OUT:-1"), &steps).await.unwrap();
    asked
}

#[test]
fn no_step_has_more_in_flight_than_the_limit() {
    for limit in [1, 3] {
        with_fixture(|mut fixture| async move {
            let (mut makes, mut reads) = limited(&mut fixture, limit).await;
            let mut client = fixture.stream("limited", 7);
            let mut made = makes.next().await;
            (0..10).for_each(|it| made.part(it));
            made.end();
            let mut open = reads.take(limit as usize).await;
            for number in 0..10 {
                // Whoever comes next comes for one that has gone.
                assert!(reads.is_idle());
                let first = open.pop_front().unwrap();
                assert_eq!(first.values(), [number]);
                first.echo();
                assert_eq!(client.next().await, number.to_string());
                if number + (limit as i32) < 10 {
                    open.push_back(reads.next().await);
                }
            }
            assert_eq!(client.next().await, "end");
        });
    }
}

#[test]
fn a_decoupled_request_is_in_flight_until_its_end() {
    with_fixture(|mut fixture| async move {
        let (mut makes, mut reads) = limited(&mut fixture, 1).await;
        let mut first = fixture.stream("limited", 1);
        let mut second = fixture.stream("limited", 2);
        let mut made = makes.next().await;
        made.part(10);
        reads.next().await.echo();
        assert_eq!(first.next().await, "10");
        assert!(makes.is_idle());
        made.end();
        let mut made = makes.next().await;
        assert_eq!(made.values(), [2]);
        made.part(20);
        reads.next().await.echo();
        made.end();
        assert_eq!(first.next().await, "end");
        assert_eq!(second.take(2).await, ["20", "end"]);
    });
}

#[test]
fn failures_leave_the_window_open() {
    with_fixture(|mut fixture| async move {
        let (mut makes, mut reads) = limited(&mut fixture, 1).await;
        for round in 0..20 {
            let mut client = fixture.stream("limited", round);
            let mut made = makes.next().await;
            (0..3).for_each(|it| made.part(it));
            reads.next().await.echo();
            assert_eq!(client.next().await, "0");
            match round % 3 {
                0 => reads.next().await.fail("no"),
                1 => drop(reads.next().await),
                _ => made.reply.part(Err(Error::invalid("no"))),
            }
            if round % 3 == 2 {
                reads.next().await.echo();
                reads.next().await.echo();
                assert_eq!(client.take(2).await, ["1", "2"]);
            }
            assert!(client.next().await.starts_with("last in ensemble 'limited', step "));
            made.end();
            client.ends().await;
        }
        let mut client = fixture.stream("limited", 1);
        makes.next().await.answer(5);
        reads.next().await.echo();
        assert_eq!(client.next().await, "last 5");
    });
}

#[test]
fn who_waits_for_room_is_let_go_when_its_client_leaves() {
    with_fixture(|mut fixture| async move {
        let held = UnreturnedCredit::default();
        let (mut makes, mut reads) = limited(&mut fixture, 2).await;
        let mut stays = fixture.stream("limited", 1);
        let mut leaves = fixture.stream("limited", 2);
        let (mut kept, mut given_up) = (makes.next().await, makes.next().await);
        (1..=2).for_each(|it| kept.part(it));
        let mut open = reads.take(2).await;
        (0..50).for_each(|it| given_up.counted_part(it, &held));
        assert!(held.is(50));
        leaves.context.cancel();
        // Nobody makes room; those who wait are looked through.
        let told = leaves.next().await;
        assert!(told.ends_with("request has been cancelled"), "{told}");
        given_up.end();
        leaves.ends().await;
        held.becomes(0).await;
        kept.end();
        open.drain(..).for_each(OpenRequest::echo);
        assert_eq!(stays.take(3).await, ["1", "2", "end"]);
    });
}

#[test]
fn later_work_of_a_failed_request_is_let_go() {
    with_fixture(|mut fixture| async move {
        let held = UnreturnedCredit::default();
        let (mut makes, mut reads) = limited(&mut fixture, 2).await;
        let mut client = fixture.stream("limited", 1);
        let mut made = makes.next().await;
        (0..50).for_each(|it| made.counted_part(it, &held));
        let mut open = reads.take(2).await;
        open.pop_back().unwrap().fail("no");
        open.pop_back().unwrap().echo();
        assert_eq!(client.next().await, "0");
        assert!(client.next().await.ends_with("no"));
        client.taken.clear();
        made.end();
        client.ends().await;
        held.becomes(0).await;
        assert!(reads.is_idle());
    });
}
