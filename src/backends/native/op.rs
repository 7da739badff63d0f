//! What every native op is made of: a checked config, a placement and a pure function.

use std::sync::Arc;

use troupe_base::{
    backend::{Batch, Executor, InstanceName, OpenLocal, Placement, Tensors},
    config::ModelConfig,
    error::{Error, Result},
};

/// A checked op: pure but for its configuration and the scratch of each instance.
pub(super) struct Op {
    pub(super) placement: Placement,
    pub(super) open: Box<dyn Fn() -> Box<Run> + Send + Sync>,
    /// The shapes of its inputs say about how long it takes.
    pub(super) is_predictable: bool,
    /// It knows of batch inputs, and of inputs and outputs without their requests' shapes.
    pub(super) takes_batch_io: bool,
}

/// Inputs and rows to outputs, as `Executor::execute`.
pub(super) type Run = dyn FnMut(Tensors, u32) -> Result<Tensors> + Send;

impl Op {
    pub(super) fn new(
        placement: Placement,
        run: impl Fn(Tensors, u32) -> Result<Tensors> + Send + Sync + 'static,
    ) -> Op {
        Op::with_scratch(placement, move |(), inputs, rows| run(inputs, rows))
    }

    pub(super) fn with_batch_io(self) -> Op {
        Op { takes_batch_io: true, ..self }
    }

    /// What its inputs say makes more or less work.
    pub(super) fn with_any_effort(self) -> Op {
        Op { is_predictable: false, ..self }
    }

    /// An op whose instances each keep something from one run to the next.
    pub(super) fn with_scratch<S: Default + Send + 'static>(
        placement: Placement,
        run: impl Fn(&mut S, Tensors, u32) -> Result<Tensors> + Send + Sync + 'static,
    ) -> Op {
        let run = Arc::new(run);
        let open = move || -> Box<Run> {
            let (run, mut scratch) = (run.clone(), S::default());
            Box::new(move |inputs, rows| run(&mut scratch, inputs, rows))
        };
        Op { placement, open: Box::new(open), is_predictable: true, takes_batch_io: false }
    }
}

impl OpenLocal for Op {
    fn placement(&self) -> Placement {
        self.placement
    }
    fn is_predictable(&self) -> bool {
        self.is_predictable
    }
    fn open(&self, _: &InstanceName) -> Result<Box<dyn Executor>> {
        Ok(Box::new(NativeRunner((self.open)())))
    }
}

struct NativeRunner(Box<Run>);

impl Executor for NativeRunner {
    fn execute(&mut self, batch: Batch<'_>) -> Result<Tensors> {
        (self.0)(batch.inputs, batch.rows)
    }
}

/// Says what an op wants of its config when it is not so.
pub(super) fn expect(config: &ModelConfig, is_so: bool, wanted: &str) -> Result<()> {
    if is_so {
        return Ok(());
    }
    Err(Error::invalid(format!("native model '{}': expected {wanted}", config.name)))
}
