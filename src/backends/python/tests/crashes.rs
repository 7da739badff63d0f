//! Workers that die, hang or flood: what they had fails, everything else goes on.

use std::time::{Duration, Instant};

use super::*;

/// Dies as the input says, else returns it.
const MORTAL: &str = "
    import ctypes, os, signal, sys, troupe_requests
    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                if array[0] == 1:
                    print('famous last words', file=sys.stderr)
                    os._exit(3)
                if array[0] == 2:
                    ctypes.string_at(0)
                if array[0] == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                if array[0] == 4:
                    troupe_requests.worker.frames.control.send(b'nonsense, and plenty of it')
                if array[0] == 5:
                    while True:
                        pass
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor('OUT0', array)]))
            return answers
    ";

#[actix_rt::test]
async fn a_worker_that_dies_fails_its_batch_and_is_replaced() {
    let one: (DataType, &[i64]) = (FP32, &[1]);
    let model = model(MORTAL, &[one], &[one]);
    let health = Arc::new(Health::default());
    health.join();
    let mut remote = model.open_with(&health).unwrap();
    let send = |x: f32| request(vec![fp32(&[1], &[x])]);
    let cases = [
        (1.0, "it exited with status 3; its last lines on stderr:\nfamous last words"),
        (2.0, "it was ended by signal 11 (SIGSEGV); its last lines on stderr:\nFatal Python error"),
        (
            3.0,
            "it was ended by signal 9 (SIGKILL, which is also what ends a process when memory runs \
             out); it wrote nothing to stderr",
        ),
        (4.0, "it sent a frame of "),
    ];
    for (how, expected) in cases {
        let answers = run(&mut *remote, vec![vec![send(how)], vec![send(0.0)]]).await;
        let errors = answers.iter().map(|it| it.as_ref().map(|_| ()).expect_err(expected));
        let errors: Vec<_> = errors.map(|it| (it.kind(), it.to_string())).collect();
        let start = "Failed to process the request(s) for model instance 'm_0_0', message: Stub \
                     process 'm_0_0' is not healthy. Model 'm': ";
        assert!(errors[0].1.starts_with(&format!("{start}{expected}")), "{}", errors[0].1);
        assert_eq!(errors[0].0, ErrorKind::Crashed);
        // What it had not begun is given back, to be executed by the next worker; after nonsense it
        // may have gone on for a moment.
        let is_sure = how != 4.0;
        assert!(errors[1].1 == "not started" || !is_sure && errors[1] == errors[0], "{errors:?}");
        assert!(health.is_ready(), "the new worker is up once the batch is through");
        assert_eq!(floats(&output(&mut *remote, send(0.0)).await), [0.0]);
    }
}

#[actix_rt::test]
async fn a_worker_that_is_replaced_runs_what_was_loaded_whatever_was_saved_since() {
    let source = "
        import os
        import numpy as np
        import above, helper
        class TritonPythonModel:
            def execute(self, requests):
                array = requests[0].inputs()[0].as_numpy()
                if array[0] == 1:
                    os._exit(3)
                if array[0] == 2:
                    helper.fail()
                from package import late
                sum = helper.VALUE + above.VALUE + late.VALUE
                out = pb_utils.Tensor('OUT0', np.array([sum], dtype=np.float32))
                return [pb_utils.InferenceResponse([out])]
        ";
    let one: (DataType, &[i64]) = (FP32, &[1]);
    let model = model(source, &[one], &[one]);
    model.file("1/helper.py", "VALUE = 1\ndef fail():\n    raise ValueError(VALUE)\n");
    model.file("above.py", "VALUE = 10\n");
    fs::create_dir(model.files.model_dir.join("1/package")).unwrap();
    model.file("1/package/__init__.py", "");
    model.file("1/package/late.py", "VALUE = 100\n");
    let mut remote = model.open();
    model.file("1/model.py", "raise RuntimeError('this was never loaded')");
    model.file("1/helper.py", "VALUE = 2\n");
    fs::remove_file(model.files.model_dir.join("above.py")).unwrap();
    fs::remove_dir_all(model.files.model_dir.join("1/package")).unwrap();
    let send = |x: f32| request(vec![fp32(&[1], &[x])]);
    for _ in 0..2 {
        assert_eq!(floats(&output(&mut *remote, send(0.0)).await), [111.0]);
        let error = ask(&mut *remote, send(2.0)).await.unwrap_err().to_string();
        let line = format!("{}/1/helper.py(3): fail", model.files.model_dir.display());
        assert!(error.contains("ValueError: 1") && error.contains(&line), "{error}");
        assert!(ask(&mut *remote, send(1.0)).await.is_err(), "it should die");
    }
}

/// A model that starts once, and ends when it executes.
const ONLY_ONCE: &str = "
        import os
        class TritonPythonModel:
            def initialize(self, args):
                marker = args['model_repository'] + '/once'
                if os.path.exists(marker):
                    raise RuntimeError('only once')
                open(marker, 'w').close()
            def execute(self, requests):
                os._exit(0)
        ";

#[actix_rt::test]
async fn a_worker_that_cannot_come_back_says_why() {
    let one: (DataType, &[i64]) = (FP32, &[1]);
    let model = model(ONLY_ONCE, &[one], &[one]);
    let health = Arc::new(Health::default());
    health.join();
    let mut remote = model.open_with(&health).unwrap();
    let send = || request(vec![fp32(&[1], &[0.0])]);
    let first = ask(&mut *remote, send()).await.unwrap_err();
    assert!(first.to_string().contains("it exited with status 0"), "{first}");
    assert!(!health.is_ready());
    let second = ask(&mut *remote, send()).await.unwrap_err();
    let text = second.to_string();
    assert_eq!(second.kind(), ErrorKind::Crashed);
    assert!(text.contains("is not healthy. Model 'm': RuntimeError: only once"), "{text}");
    assert!(text.contains("Next attempt within"), "{text}");
    fs::remove_file(model.files.model_dir.join("once")).unwrap();
    while !health.is_ready() {
        tokio::task::yield_now().await;
    }
}

#[actix_rt::test]
async fn a_worker_that_stays_down_lets_go_of_what_it_is_given_when_it_is_to_go() {
    let one: (DataType, &[i64]) = (FP32, &[1]);
    let model = model(ONLY_ONCE, &[one], &[one]);
    let health = Arc::new(Health::default());
    // Another instance stays up.
    (0..2).for_each(|_| health.join());
    let mut remote = model.open_with(&health).unwrap();
    assert!(!remote.is_down() && remote.let_go().is_empty());
    let start = |remote: &mut dyn Remote| {
        let (sender, receiver) = oneshot::channel();
        let through = RefCell::new(Some(sender));
        let done = Collect { groups: RefCell::new(vec![None]), through, stopped: Cell::default() };
        let done = Rc::new(done);
        remote.start(vec![vec![request(vec![fp32(&[1], &[0.0])])]], done.clone());
        (done, receiver)
    };
    let (first, through) = start(&mut *remote);
    while !first.stopped.get() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(remote.is_down() && health.is_ready());
    drop(first);
    let (second, turned_away) = start(&mut *remote);
    assert!(second.stopped.get(), "nothing executes");
    drop(second);
    assert_eq!(remote.let_go().len(), 2);
    assert!(through.await.unwrap()[0].is_err());
    let answers = turned_away.await.unwrap();
    assert_eq!(answers[0].as_ref().unwrap_err().to_string(), "not started");
}

#[actix_rt::test]
async fn a_worker_that_never_returns_can_be_dropped() {
    let one: (DataType, &[i64]) = (FP32, &[1]);
    let model = model(MORTAL, &[one], &[one]);
    let mut stuck = model.open();
    let mut other = model.open();
    let send = |x: f32| request(vec![fp32(&[1], &[x])]);
    let (sender, receiver) = oneshot::channel();
    let through = RefCell::new(Some(sender));
    let done = Collect { groups: RefCell::new(vec![None]), through, stopped: Cell::default() };
    stuck.start(vec![vec![send(5.0)]], Rc::new(done));
    assert_eq!(floats(&output(&mut *other, send(0.0)).await), [0.0]);
    drop(stuck);
    let answers = receiver.await.unwrap();
    assert_eq!(answers[0].as_ref().unwrap_err().to_string(), "the model was unloaded");
}

#[actix_rt::test]
async fn a_flood_of_output_stops_nobody() {
    let source = IDENTITY.replace(
        "answers = []",
        "answers = []; print('x' * 30_000_000); [print('y' * 80) for _ in range(50_000)]",
    );
    let one: (DataType, &[i64]) = (FP32, &[1]);
    let model = model(&source, &[one], &[one]);
    let mut remote = model.open();
    assert_eq!(floats(&output(&mut *remote, request(vec![fp32(&[1], &[1.0])])).await), [1.0]);
}

#[actix_rt::test]
async fn finalize_runs_when_the_model_goes() {
    let source = format!(
        "{}        def finalize(self):\n            open(self.place + '/gone', 'w').close()\n        \
         def initialize(self, args):\n            self.place = args['model_repository']\n",
        dedent(IDENTITY).replace("class", "    class").replace("\n    ", "\n        ")
    );
    let one: (DataType, &[i64]) = (FP32, &[1]);
    let model = model(&source, &[one], &[one]);
    let remote = model.open();
    drop(remote);
    while !model.files.model_dir.join("gone").exists() {
        tokio::task::yield_now().await;
    }
}

#[actix_rt::test]
async fn threads_of_a_model_may_ask_whether_a_request_is_cancelled() {
    let source = "
        import threading
        import numpy as np
        class TritonPythonModel:
            def execute(self, requests):
                answers = []
                for request in requests:
                    told = []
                    ask = lambda: told.append(request.is_cancelled())
                    threads = [threading.Thread(target=ask) for _ in range(4)]
                    for thread in threads:
                        thread.start()
                    ask()
                    for thread in threads:
                        thread.join()
                    # Some ask while the next group is executed, and while nothing is.
                    late = lambda: [request.is_cancelled() for _ in range(20)]
                    threading.Thread(target=late).start()
                    out = pb_utils.Tensor('OUT0', np.array([sum(told), len(told)], 'f4'))
                    answers.append(pb_utils.InferenceResponse([out]))
                return answers
        ";
    let model = model(source, &[(FP32, &[1])], &[(FP32, &[2])]);
    let mut remote = model.open();
    let send = || request(vec![fp32(&[1], &[0.0])]);
    for _ in 0..10 {
        let answers = run(&mut *remote, (0..20).map(|_| vec![send()]).collect()).await;
        for answer in answers {
            let response = answer.unwrap().pop().unwrap().unwrap();
            assert_eq!(floats(response.outputs[0].as_ref().unwrap()), [0.0, 5.0]);
        }
    }
    let gone = Request { context: Arc::new(Context::default()), ..send() };
    gone.context.cancel();
    assert_eq!(floats(&output(&mut *remote, gone).await), [5.0, 5.0]);
}

#[actix_rt::test]
async fn two_servers_in_one_process_have_workers_of_their_own() {
    let one: (DataType, &[i64]) = (FP32, &[1]);
    let model = model(IDENTITY, &[one], &[one]);
    let send = || request(vec![fp32(&[1], &[2.0])]);
    let (ending, staying) = (Runtime::default(), Runtime::default());
    let health = Arc::new(Health::default());
    health.join();
    let mut first = model.open_in(&ending, &health).unwrap();
    let mut second = model.open_in(&staying, &Arc::default()).unwrap();
    assert_eq!(floats(&output(&mut *first, send()).await), [2.0]);
    // Its worker is killed, for there is no time to wait.
    ending.wait_for_workers(Instant::now());
    assert!(ask(&mut *first, send()).await.is_err());
    assert_eq!(floats(&output(&mut *second, send()).await), [2.0]);
    let error = model.open_in(&ending, &Arc::default()).err().unwrap().to_string();
    assert!(error.contains("the server is stopping"), "{error}");
    let unused = Runtime::default();
    unused.wait_for_workers(Instant::now());
    let error = model.open_in(&unused, &Arc::default()).err().unwrap().to_string();
    assert_eq!(error, "the server is stopping");
    drop(second);
    staying.wait_for_workers(Instant::now() + Duration::from_secs(10));
}
