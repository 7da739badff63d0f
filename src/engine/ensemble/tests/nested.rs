//! Steps that start within the end of the step before: no message, no thread, and a stack that holds.

use super::*;

/// So many steps of one model, one after another, each adding one.
async fn counting(fixture: &mut Fixture, steps: usize) -> String {
    let name = format!("count{steps}");
    if !fixture.models.contains_key("add") {
        fixture.native("add", "add_sub", 0, ("A:1 B:1", "SUM:1 DIFF:1")).await;
    }
    let step = |index: usize| {
        let name = |index: usize| match index {
            0 => "IN".to_owned(),
            index if index == steps => "OUT".to_owned(),
            index => format!("t{index}"),
        };
        format!("add: A={} B=ONE -> SUM={}", name(index), name(index + 1))
    };
    let steps: Vec<String> = (0..steps).map(step).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    fixture.ensemble(&name, 0, ("IN:1 ONE:1", "OUT:1"), &steps).await.unwrap();
    name
}

/// Is the answer there when the call returns?
fn answers_at_once(model: &Arc<Model>) -> bool {
    let one = || Tensor::new(DataType::Int32, [1].into_iter().collect(), vec![1, 0, 0, 0].into());
    let inputs = vec![Some(one().unwrap()), Some(one().unwrap())];
    let (reply, mut answer) = Reply::channel();
    model.infer(Request { inputs, ..Request::default() }, reply);
    answer.try_recv().is_ok()
}

#[test]
fn steps_that_need_nobody_else_have_run_when_the_call_returns() {
    on_one_thread(|mut fixture| async move {
        for steps in [1, 2, 8, 16] {
            let name = counting(&mut fixture, steps).await;
            assert!(answers_at_once(&fixture.models[&name]), "{steps} steps");
        }
        fixture.limit = 1;
        let name = counting(&mut fixture, 3).await;
        assert!(!answers_at_once(&fixture.models[&name]), "turns are waited for");
    });
}

#[test]
fn however_many_steps_there_are_the_stack_holds() {
    on_one_thread(|mut fixture| async move {
        let name = counting(&mut fixture, 300).await;
        assert!(!answers_at_once(&fixture.models[&name]), "some start by message");
        let answer = fixture.ask(&name, &[&[5], &[1]], Wanted::All).await;
        assert_eq!(answer.unwrap(), [[305]]);
    });
}

#[test]
fn many_threads_run_as_many_requests_of_one_model() {
    with_fixture(|mut fixture| async move {
        let name = counting(&mut fixture, 40).await;
        let threads = fixture.engines.all().to_vec();
        let model = fixture.models[&name].clone();
        let mut answers = Vec::new();
        for request in 0..300_i32 {
            let (model, (reply, answer)) = (model.clone(), Reply::channel());
            threads[request as usize % threads.len()].spawn_fn(move || {
                let tensor = |number: i32| {
                    let shape = [1].into_iter().collect();
                    let bytes = number.to_le_bytes().to_vec();
                    Some(Tensor::new(DataType::Int32, shape, bytes.into()).unwrap())
                };
                let inputs = vec![tensor(request), tensor(1)];
                model.infer(Request { inputs, ..Request::default() }, reply);
            });
            answers.push((request, answer));
        }
        for (request, answer) in answers {
            let response = answer.await.unwrap().unwrap();
            let sum = response.outputs[0].as_ref().unwrap().data().to_vec();
            assert_eq!(sum, (request + 40).to_le_bytes());
        }
        assert_eq!(fixture.executions("add"), 300 * 40);
        assert_eq!(fixture.models["add"].stats.pending(), 0);
    });
}
