//! Ensembles of decoupled models, whose answers the test gives in any order.

use super::{fakes::*, *};

const ONE: (&str, &str) = ("x:-1", "y:-1");

const CHAIN: [&str; 2] = ["makes: x=IN -> y=mid", "reads: x=mid -> y=OUT"];

async fn chain(fixture: &mut Fixture) -> (ModelRequests, ModelRequests) {
    let asked = (fixture.fake_decoupled("makes", ONE), fixture.fake("reads", ONE));
    fixture.ensemble("chain", 0, ("IN:-1", "OUT:-1"), &CHAIN).await.unwrap();
    asked
}

#[test]
fn iterations_run_side_by_side_and_answer_in_their_order() {
    with_fixture(|mut fixture| async move {
        let (mut makes, mut reads) = chain(&mut fixture).await;
        assert!(fixture.models["chain"].config.decoupled);
        let mut client = fixture.stream("chain", 7);
        let mut made = makes.next().await;
        assert_eq!(made.values(), [7]);
        (1..=3).for_each(|it| made.part(it));
        let mut all = reads.take(3).await;
        assert_eq!(all.iter().flat_map(OpenRequest::values).collect::<Vec<_>>(), [1, 2, 3]);
        all.pop_back().unwrap().answer(30);
        all.pop_back().unwrap().answer(20);
        made.end();
        assert!(client.has_heard_nothing());
        all.pop_back().unwrap().answer(10);
        assert_eq!(client.take(4).await, ["10", "20", "30", "end"]);
        client.ends().await;
        let stats = &fixture.models["chain"].stats;
        assert_eq!((stats.totals().success.count, fixture.executions("chain")), (1, 1));
    });
}

#[test]
fn there_may_be_no_response_and_the_last_may_carry_the_end() {
    with_fixture(|mut fixture| async move {
        let (mut makes, mut reads) = chain(&mut fixture).await;
        let mut client = fixture.stream("chain", 1);
        makes.next().await.end();
        assert_eq!(client.next().await, "end");
        client.ends().await;
        let mut client = fixture.stream("chain", 1);
        let mut made = makes.next().await;
        made.part(1);
        made.answer(2);
        let mut all = reads.take(2).await;
        all.pop_back().unwrap().echo();
        all.pop_back().unwrap().echo();
        assert_eq!(client.take(2).await, ["1", "last 2"]);
        client.ends().await;
    });
}

#[test]
fn responses_may_go_to_the_client_as_they_are() {
    with_fixture(|mut fixture| async move {
        let mut makes = fixture.fake_decoupled("makes", ONE);
        let mut reads = fixture.fake("reads", ONE);
        let steps = ["reads: x=IN -> y=mid", "makes: x=mid -> y=OUT"];
        fixture.ensemble("direct", 0, ("IN:-1", "OUT:-1"), &steps).await.unwrap();
        let mut client = fixture.stream("direct", 7);
        reads.next().await.answer(8);
        let mut made = makes.next().await;
        assert_eq!(made.values(), [8]);
        (1..=2).for_each(|it| made.part(it));
        assert_eq!(client.take(2).await, ["1", "2"]);
        made.end();
        assert_eq!(client.next().await, "end");
    });
}

#[test]
fn a_failed_iteration_is_the_last_one_told() {
    with_fixture(|mut fixture| async move {
        let (mut makes, mut reads) = chain(&mut fixture).await;
        let mut client = fixture.stream("chain", 7);
        let mut made = makes.next().await;
        (1..=4).for_each(|it| made.part(it));
        let mut all = reads.take(4).await;
        let (one, two) = (all.pop_front().unwrap(), all.pop_front().unwrap());
        all.pop_front().unwrap().fail("no three");
        all.pop_front().unwrap().echo();
        made.part(5);
        two.echo();
        assert!(client.has_heard_nothing() && !made.request.context.is_stopped());
        one.echo();
        let told = client.take(3).await;
        let error = "last in ensemble 'chain', step 1 (model 'reads' version 1): no three";
        assert_eq!(told, ["1", "2", error]);
        assert!(made.request.context.is_stopped() && reads.is_idle());
        made.part(6);
        made.end();
        client.ends().await;
        let stats = &fixture.models["chain"].stats;
        assert_eq!((stats.totals().success.count, stats.fail().count), (0, 1));
        assert_eq!(fixture.executions("chain"), 0);
    });
}

#[test]
fn an_error_among_the_responses_ends_the_request() {
    with_fixture(|mut fixture| async move {
        let (mut makes, mut reads) = chain(&mut fixture).await;
        let mut client = fixture.stream("chain", 7);
        let mut made = makes.next().await;
        made.part(1);
        made.reply.part(Err(Error::invalid("stumbled")));
        made.part(2);
        made.end();
        reads.next().await.echo();
        let error = "last in ensemble 'chain', step 0 (model 'makes' version 1): stumbled";
        assert_eq!(client.take(2).await, ["1", error]);
        assert!(reads.is_idle());
        client.ends().await;
        let mut client = fixture.stream("chain", 7);
        makes.next().await.fail("no");
        let error = "last in ensemble 'chain', step 0 (model 'makes' version 1): no";
        assert_eq!(client.next().await, error);
    });
}

#[test]
fn a_model_that_goes_away_fails_the_request() {
    with_fixture(|mut fixture| async move {
        let (mut makes, _reads) = chain(&mut fixture).await;
        let mut client = fixture.stream("chain", 7);
        let made = makes.next().await;
        drop(made);
        let told = client.next().await;
        assert!(told.ends_with("the model stopped before it answered"), "{told}");
    });
}

#[test]
fn credit_is_held_until_the_client_has_the_response() {
    with_fixture(|mut fixture| async move {
        let held = UnreturnedCredit::default();
        let (mut makes, mut reads) = chain(&mut fixture).await;
        let mut client = fixture.stream("chain", 7);
        let mut made = makes.next().await;
        (1..=3).for_each(|it| made.counted_part(it, &held));
        let mut all = reads.take(3).await;
        all.pop_front().unwrap().echo();
        assert_eq!(client.next().await, "1");
        assert!(held.is(3));
        client.taken.clear();
        assert!(held.is(2));
        // A failed iteration gives it back at once, and so does a response nobody waits for.
        all.pop_front().unwrap().fail("no");
        client.next().await;
        made.counted_part(4, &held);
        all.pop_front().unwrap().echo();
        made.end();
        client.ends().await;
        held.becomes(0).await;
    });
}

const ROW: [&str; 3] = ["makes: x=IN -> y=one", "again: x=one -> y=two", "reads: x=two -> y=OUT"];

#[test]
fn decoupled_steps_in_a_row_answer_in_the_order_of_both() {
    with_fixture(|mut fixture| async move {
        let held = UnreturnedCredit::default();
        let mut again = fixture.fake_decoupled("again", ONE);
        let mut makes = fixture.fake_decoupled("makes", ONE);
        let mut reads = fixture.fake("reads", ONE);
        fixture.ensemble("row", 0, ("IN:-1", "OUT:-1"), &ROW).await.unwrap();
        let mut client = fixture.stream("row", 7);
        let mut made = makes.next().await;
        (1..=3).for_each(|it| made.counted_part(it, &held));
        made.end();
        for number in 1..=3 {
            let mut once = again.next().await;
            assert_eq!(once.values(), [number]);
            assert!(again.is_idle(), "one at a time");
            // The second has no response at all.
            if number == 2 {
                once.end();
                continue;
            }
            once.counted_part(10 * number, &held);
            once.counted_part(10 * number + 1, &held);
            once.end();
        }
        let mut all = reads.take(4).await;
        all.drain(..).rev().for_each(OpenRequest::echo);
        assert_eq!(client.take(5).await, ["10", "11", "30", "31", "end"]);
        // Of the first and the third, and two of each of these.
        assert!(held.is(6));
        client.taken.truncate(1);
        assert!(held.is(2));
        client.taken.clear();
        assert!(held.is(0));
        client.ends().await;
    });
}

#[test]
fn after_a_failure_later_decoupled_steps_are_not_asked_again() {
    with_fixture(|mut fixture| async move {
        let mut again = fixture.fake_decoupled("again", ONE);
        let mut makes = fixture.fake_decoupled("makes", ONE);
        let mut reads = fixture.fake("reads", ONE);
        fixture.ensemble("row", 0, ("IN:-1", "OUT:-1"), &ROW).await.unwrap();
        let mut client = fixture.stream("row", 7);
        let mut made = makes.next().await;
        (1..=3).for_each(|it| made.part(it));
        let mut once = again.next().await;
        once.part(10);
        reads.next().await.fail("no ten");
        assert_eq!(
            client.next().await,
            "last in ensemble 'row', step 2 (model 'reads' version 1): no ten"
        );
        once.end();
        made.part(4);
        made.end();
        client.ends().await;
        assert!(again.is_idle());
    });
}

#[test]
fn a_decoupled_ensemble_can_be_a_step() {
    with_fixture(|mut fixture| async move {
        let (mut makes, mut reads) = chain(&mut fixture).await;
        let mut after = fixture.fake("after", ONE);
        let steps = ["chain: IN=A -> OUT=mid", "after: x=mid -> y=B"];
        fixture.ensemble("outer", 0, ("A:-1", "B:-1"), &steps).await.unwrap();
        assert!(fixture.models["outer"].config.decoupled);
        let mut client = fixture.stream("outer", 7);
        let mut made = makes.next().await;
        made.part(1);
        made.answer(2);
        let mut all = reads.take(2).await;
        all.pop_back().unwrap().answer(20);
        all.pop_back().unwrap().answer(10);
        let mut all = after.take(2).await;
        assert_eq!(all.iter().flat_map(OpenRequest::values).collect::<Vec<_>>(), [10, 20]);
        all.pop_back().unwrap().fail("no twenty");
        // The failure of a later iteration, even in an ensemble within, cancels nothing earlier.
        assert!(!all[0].request.context.is_stopped());
        all.pop_back().unwrap().answer(100);
        let error = "last in ensemble 'outer', step 1 (model 'after' version 1): no twenty";
        assert_eq!(client.take(2).await, ["100", error]);
        client.ends().await;
    });
}

#[test]
fn a_failing_ensemble_within_an_iteration_cancels_no_other() {
    with_fixture(|mut fixture| async move {
        let mut makes = fixture.fake_decoupled("makes", ONE);
        let mut reads = fixture.fake("reads", ONE);
        fixture.ensemble("inner", 0, ("A:-1", "B:-1"), &["reads: x=A -> y=B"]).await.unwrap();
        let steps = ["makes: x=IN -> y=mid", "inner: A=mid -> B=OUT"];
        fixture.ensemble("outer", 0, ("IN:-1", "OUT:-1"), &steps).await.unwrap();
        let mut client = fixture.stream("outer", 7);
        let mut made = makes.next().await;
        (1..=2).for_each(|it| made.part(it));
        let mut all = reads.take(2).await;
        all.pop_back().unwrap().fail("no");
        assert!(!made.request.context.is_stopped());
        all.pop_back().unwrap().echo();
        let error = "last in ensemble 'outer', step 1 (model 'inner' version 1): in ensemble \
                     'inner', step 0 (model 'reads' version 1): no";
        assert_eq!(client.take(2).await, ["1", error]);
        assert!(made.request.context.is_stopped());
    });
}

#[test]
fn a_tensor_that_a_response_lacks_is_left_out() {
    with_fixture(|mut fixture| async move {
        let mut makes = fixture.fake_decoupled("makes", ("x:-1", "y:-1 z:-1"));
        let mut reads = fixture.fake("reads", ONE);
        let steps = ["makes: x=IN -> y=mid z=OUT1", "reads: x=mid -> y=OUT0"];
        fixture.ensemble("uneven", 0, ("IN:-1", "OUT0:-1 OUT1:-1"), &steps).await.unwrap();
        let mut client = fixture.stream("uneven", 7);
        let mut made = makes.next().await;
        let send = |made: &mut OpenRequest, y: Option<i32>, z: Option<i32>| {
            let outputs = [y, z].map(|it| it.map(|it| tensor(&[it]))).to_vec();
            made.reply.part(Ok(Response { outputs, ..Response::default() }));
        };
        send(&mut made, Some(1), Some(2));
        reads.next().await.echo();
        send(&mut made, Some(3), None);
        reads.next().await.echo();
        assert_eq!(client.take(2).await, ["1 2", "3"]);
        send(&mut made, None, Some(4));
        let told = client.next().await;
        assert!(told.contains("expected 1 inputs but got 0 inputs for model 'reads'"), "{told}");
        made.end();
    });
}

#[test]
fn only_what_the_requested_outputs_need_runs_in_an_iteration() {
    with_fixture(|mut fixture| async move {
        let mut makes = fixture.fake_decoupled("makes", ("x:-1", "y:-1 z:-1"));
        let reads = fixture.fake("reads", ONE);
        let steps = ["makes: x=IN -> y=mid z=OUT1", "reads: x=mid -> y=OUT0"];
        fixture.ensemble("two", 0, ("IN:-1", "OUT0:-1 OUT1:-1"), &steps).await.unwrap();
        let (reply, answer) = Reply::drained();
        let wanted = Wanted::Only([1].into_iter().collect());
        let inputs = vec![Some(tensor(&[1]))];
        fixture.models["two"].infer(Request { inputs, wanted, ..Request::default() }, reply);
        let mut made = makes.next().await;
        let outputs = vec![Some(tensor(&[1])), Some(tensor(&[2]))];
        made.reply.part(Ok(Response { outputs, ..Response::default() }));
        made.end();
        answer.await.unwrap().unwrap();
        assert!(reads.is_idle());
    });
}

#[test]
fn batches_that_do_not_fit_a_decoupled_step_are_refused() {
    with_fixture(|mut fixture| async move {
        let fields = "max_batch_size: 2 model_transaction_policy { decoupled: true }";
        let mut makes = fixture.faked("makes", fields, ONE);
        fixture.native("rows", "identity", 0, ("I:-1,1", "O:-1,1")).await;
        let io = ("IN:-1,1", "OUT:-1,1");
        let steps = ["rows: I=IN -> O=mid", "makes: x=mid -> y=OUT"];
        fixture.ensemble("fits", 0, io, &steps).await.unwrap();
        let ask = |rows: i64| {
            let data = vec![0; 4 * rows as usize].into();
            let shape = [rows, 1].into_iter().collect();
            let tensor = Tensor::new(DataType::Int32, shape, data).unwrap();
            let (reply, answer) = Reply::drained();
            let request = Request { inputs: vec![Some(tensor)], ..Request::default() };
            fixture.models["fits"].infer(request, reply);
            answer
        };
        let error = ask(3).await.unwrap().unwrap_err().to_string();
        let text = "a batch of 3 rows for model 'makes', which takes up to 2 rows at once";
        assert!(error.contains(text), "{error}");
        ask(0).await.unwrap().unwrap();
        let answer = ask(2);
        makes.next().await.end();
        answer.await.unwrap().unwrap();

        let steps = ["makes: x=IN -> y=OUT"];
        let problems = fixture.ensemble("large", 4, ("IN:-1", "OUT:-1"), &steps).await.unwrap_err();
        let text = "ensemble large allows maximum batch size 4, but it contains model makes which \
                    only allows maximum batch size to be 2 (config.pbtxt:1:";
        assert!(problems.len() == 1 && problems[0].starts_with(text), "{problems:?}");
    });
}

#[test]
fn what_runs_again_on_its_own_responses_does_not_wait_for_itself() {
    with_fixture(|mut fixture| async move {
        let held = UnreturnedCredit::default();
        let mut makes = fixture.fake_decoupled("makes", ONE);
        let steps = ["makes: x=IN -> y=mid", "makes: x=mid -> y=OUT"];
        fixture.ensemble("twice", 0, ("IN:-1", "OUT:-1"), &steps).await.unwrap();
        let mut client = fixture.stream("twice", 7);
        let mut made = makes.next().await;
        made.counted_part(1, &held);
        assert!(held.is(0));
        let mut again = makes.next().await;
        again.counted_part(2, &held);
        again.end();
        made.end();
        assert_eq!(client.take(2).await, ["2", "end"]);
        assert!(held.is(1));
    });
}
