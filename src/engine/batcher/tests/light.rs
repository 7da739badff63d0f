//! Where executions run: on the thread that asks where their bytes or shapes say that they are
//! short, else on another.

use std::{sync::Arc, thread};

use actix_rt::{Arbiter, System};
use bytes::Bytes;

use super::{Mailbox, setup, start};
use crate::engines::Engines;
use troupe_base::{
    backend::{Backend, Batch, Executor, InstanceName, OpenLocal, Placement, Tensors},
    config::{ServerFeatures, read_text},
    error::Result,
    model::Infer,
    request::{Reply, Request},
    tensor::{DataType, Tensor},
};

/// Answers with whether it runs on the engine's thread.
#[derive(Clone, Copy)]
struct WhereItRuns {
    placement: Placement,
    is_predictable: bool,
    engine: thread::ThreadId,
}

impl OpenLocal for WhereItRuns {
    fn placement(&self) -> Placement {
        self.placement
    }

    fn is_predictable(&self) -> bool {
        self.is_predictable
    }

    fn open(&self, _: &InstanceName) -> Result<Box<dyn Executor>> {
        Ok(Box::new(*self))
    }
}

impl Executor for WhereItRuns {
    fn execute(&mut self, _: Batch<'_>) -> Result<Tensors> {
        let is_here = u8::from(thread::current().id() == self.engine);
        let shape = [1].into_iter().collect();
        Ok(vec![Some(Tensor::new(DataType::Uint8, shape, vec![is_here].into()).unwrap())])
    }
}

async fn open(placement: Placement, is_predictable: bool, more: &str) -> Arc<Mailbox> {
    open_of("native", placement, is_predictable, more).await
}

async fn open_of(
    backend: &str,
    placement: Placement,
    is_predictable: bool,
    more: &str,
) -> Arc<Mailbox> {
    let text = format!(
        "name: 'm' backend: '{backend}' {more} \
         input {{ name: 'x' data_type: TYPE_UINT8 dims: [ -1, -1 ] }} \
         output {{ name: 'y' data_type: TYPE_UINT8 dims: -1 }}"
    );
    let features = ServerFeatures { gpus: || Some(&[0]) };
    let config = read_text(&text, "f").unwrap().finish(&features).unwrap();
    let where_it_runs = WhereItRuns { placement, is_predictable, engine: thread::current().id() };
    let backend = Backend::Local(Arc::new(where_it_runs));
    start(setup(config, backend, Engines::new(vec![Arbiter::current()]))).await.unwrap()
}

/// Does a request of this shape run on the engine's thread?
async fn runs_here(mailbox: &Mailbox, shape: [i64; 2]) -> bool {
    let bytes = Bytes::from(vec![0; (shape[0] * shape[1]) as usize]);
    let input = Tensor::new(DataType::Uint8, shape.as_slice().into(), bytes).unwrap();
    let (reply, answer) = Reply::channel();
    mailbox.infer(Request { inputs: vec![Some(input)], ..Request::default() }, reply);
    let response = answer.await.unwrap().unwrap();
    response.outputs[0].as_ref().unwrap().data()[0] == 1
}

/// Asks so often that an executor that does nothing is known to be light; on a busy machine some
/// executions are interrupted.
async fn is_here_at_last(mailbox: &Mailbox, shape: [i64; 2]) -> bool {
    for _ in 0..10_000 {
        if runs_here(mailbox, shape).await {
            return true;
        }
    }
    false
}

#[test]
fn bytes_decide_where_work_is_in_proportion_to_them() {
    System::new().block_on(async {
        let mailbox = open(Placement::SharedUpTo(64), true, "").await;
        for _ in 0..3 {
            for (shape, expected) in [([1, 64], true), ([5, 13], false), ([0, 9], true)] {
                assert_eq!(runs_here(&mailbox, shape).await, expected, "{shape:?}");
            }
        }
        for (placement, expected) in [("own", false), ("shared", true)] {
            let config = format!(
                "parameters {{ key: 'placement' value {{ string_value: '{placement}' }} }}"
            );
            let mailbox = open(Placement::SharedUpTo(64), true, &config).await;
            assert_eq!(runs_here(&mailbox, [9, 9]).await, expected);
        }
    });
}

#[test]
fn a_shape_that_was_short_says_nothing_of_another() {
    System::new().block_on(async {
        let mailbox = open(Placement::Own, true, "").await;
        assert!(!runs_here(&mailbox, [1, 36]).await);
        assert!(is_here_at_last(&mailbox, [1, 36]).await);
        // As many bytes, in another shape; and more of them.
        assert!(!runs_here(&mailbox, [6, 6]).await);
        assert!(!runs_here(&mailbox, [1, 37]).await);
        assert!(!runs_here(&mailbox, [300, 300]).await);
        assert!(is_here_at_last(&mailbox, [6, 6]).await);
    });
}

#[test]
fn what_depends_on_more_than_shapes_never_runs_on_an_engine_thread() {
    System::new().block_on(async {
        let mailbox = open(Placement::Own, false, "").await;
        for _ in 0..300 {
            assert!(!runs_here(&mailbox, [1, 36]).await);
        }
    });
}

#[test]
fn what_runs_on_a_gpu_never_runs_on_an_engine_thread() {
    System::new().block_on(async {
        for (kind, expected) in [("KIND_CPU", true), ("KIND_GPU", false)] {
            let group = format!("instance_group {{ kind: {kind} }}");
            let mailbox = open_of("onnxruntime", Placement::Own, true, &group).await;
            if expected {
                assert!(is_here_at_last(&mailbox, [1, 36]).await);
                continue;
            }
            for _ in 0..300 {
                assert!(!runs_here(&mailbox, [1, 36]).await);
            }
        }
    });
}
