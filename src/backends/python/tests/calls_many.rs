//! Calls with many responses: no more on the way than wanted, and none after the end.

use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;

use super::{
    calls::{calling, response},
    *,
};
use troupe_base::request::{Credit, Part, Reply};

#[actix_rt::test]
async fn an_iterator_that_takes_nothing_is_sent_no_more_than_its_window() {
    const PARTS: usize = 40;
    let back = Arc::new(AtomicUsize::new(0));
    let given = back.clone();
    let other = move |_: Request, mut reply: Reply| {
        for number in 0..PARTS {
            let back = given.clone();
            let credit = Credit::new(move || {
                back.fetch_add(1, Ordering::Relaxed);
            });
            let tensor = fp32(&[1 << 14], &[number as f32; 1 << 14]);
            reply.part(Part { result: Ok(response(tensor)), credit: Some(credit) });
        }
        reply.end(Default::default());
    };
    // Each has 64 KiB: 16 of them fill the window, and each quarter that is taken is told.
    let body = "
        if not self.kept:
            self.kept.append(call(np.zeros(1, 'f4'), True))
            call(np.zeros(1, 'f4'), True)
        frames = pb_utils._requests.worker.frames
        got = [next(self.kept[0], None) for _ in range(int(requests[0].inputs()[0].as_numpy()[0]))]
        ys = [it.output_tensors()[0].as_numpy()[0] for it in got if it]
        waiting = frames.replies.get(self.kept[0]._call, ())
        return [out(np.array([len(waiting), *ys], 'f4'))]";
    let model = calling(body, other);
    let mut remote = model.open();
    let mut next = 0.0;
    for (takes, comes) in [(0, 0), (1, 1), (3, 3), (12, 12), (40, 24), (1, 0)] {
        let answer = output(&mut *remote, request(vec![fp32(&[1], &[takes as f32])])).await;
        let said = floats(&answer);
        assert!(said[0] <= 16.0, "{said:?}");
        for value in &said[1..] {
            assert_eq!(*value, next);
            next += 1.0;
        }
        assert_eq!(said.len() - 1, comes);
    }
    // All of this one, and all of the one that was let go of at once.
    assert_eq!(back.load(Ordering::Relaxed), 2 * PARTS);
}

#[actix_rt::test]
async fn a_maker_that_waits_for_each_small_response_is_not_kept_waiting() {
    let other = |_: Request, mut reply: Reply| {
        let (send, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for number in 0..50 {
                let send = send.clone();
                let credit = Credit::new(move || {
                    let _ = send.send(());
                });
                let result = Ok(response(fp32(&[1], &[number as f32])));
                reply.part(Part { result, credit: Some(credit) });
                told.recv().unwrap();
            }
            reply.end(Default::default());
        });
    };
    let body = "
        got = [it.output_tensors()[0].as_numpy()[0] for it in call(np.zeros(1, 'f4'), True)]
        return [out(np.array(got, 'f4'))]";
    let model = calling(body, other);
    let mut remote = model.open();
    let got = output(&mut *remote, request(vec![fp32(&[1], &[0.0])])).await;
    assert_eq!(floats(&got), (0..50).map(|it| it as f32).collect::<Vec<_>>());
}

/// A request that nobody answers.
type ModelCall = (Arc<Context>, Reply);

#[actix_rt::test]
async fn a_call_that_is_let_go_of_is_cancelled_and_so_is_that_of_a_worker_that_dies() {
    let contexts: Arc<Mutex<Vec<ModelCall>>> = Arc::default();
    let asked = contexts.clone();
    let other = move |request: Request, reply: Reply| {
        asked.lock().push((request.context.clone(), reply));
    };
    let body = "
        what = requests[0].inputs()[0].as_numpy()[0]
        self.kept.append(call(np.zeros(1, 'f4'), True))
        if what == 1:
            self.kept[0].cancel()
        if what == 2:
            self.kept.clear()
        if what == 3:
            import os
            os.kill(os.getpid(), 9)
        return [out(np.zeros(1, 'f4'))]";
    let model = calling(body, other);
    let mut remote = model.open();
    for (what, cancelled) in [
        (0, vec![false]),
        (1, vec![true, false]),
        (2, vec![true; 3]),
        (0, vec![true, true, true, false]),
        (3, vec![true; 5]),
    ] {
        let answer = ask(&mut *remote, request(vec![fp32(&[1], &[what as f32])])).await;
        assert_eq!(answer.is_ok(), what != 3);
        let is_cancelled = |it: &ModelCall| it.0.is_stopped();
        assert_eq!(contexts.lock().iter().map(is_cancelled).collect::<Vec<_>>(), cancelled);
    }
    // An answer to the dead worker's call is none to the next one's.
    let answer = ask(&mut *remote, request(vec![fp32(&[1], &[0.0])]));
    contexts.lock().clear();
    assert!(answer.await.is_ok() || !contexts.lock().is_empty());
}

#[actix_rt::test]
async fn large_outputs_that_lie_elsewhere_are_placed_in_shared_memory_in_order() {
    let sizes = [1 << 10, 1 << 19, 4, 1 << 13, 1 << 20, 5];
    let other = move |_: Request, mut reply: Reply| {
        for size in sizes {
            reply.part(Ok(response(fp32(&[size as i64], &vec![size as f32; size]))));
        }
        reply.end(Default::default());
    };
    let body = "
        got = [it.output_tensors()[0].as_numpy() for it in call(np.zeros(1, 'f4'), True)]
        assert all((it == it.size).all() for it in got)
        return [out(np.array([it.size for it in got], 'f4'))]";
    let model = calling(body, other);
    let mut remote = model.open();
    let got = output(&mut *remote, request(vec![fp32(&[1], &[0.0])])).await;
    assert_eq!(floats(&got), sizes.map(|it| it as f32));
}
