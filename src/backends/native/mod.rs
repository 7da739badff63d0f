//! Ops built into the server: for pictures and text in them, and doubles of other backends in tests.

mod add_sub;
mod concat;
mod crop_warp;
mod ctc_decode;
mod delay_ms;
mod east_boxes;
mod elements;
mod identity;
mod image_decode;
mod mul;
mod parameters;
mod resize_normalize;
mod split;
mod tensors;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use super::{
    Backend, Batch, Executor, InstanceName, OpenLocal, Place, Placement, Settings, Tensors,
};
use troupe_base::{
    config::ModelConfig,
    error::{Error, Result},
};

/// Checks the config at load and says how to run it.
type Prepare = fn(&ModelConfig) -> Result<Op>;

const OPS: &[(&str, Prepare)] = &[
    ("add_sub", add_sub::prepare),
    ("concat", concat::prepare),
    ("crop_warp", crop_warp::prepare),
    ("ctc_decode", ctc_decode::prepare),
    ("delay_ms", delay_ms::prepare),
    ("east_boxes", east_boxes::prepare),
    ("identity", identity::prepare),
    ("image_decode", image_decode::prepare),
    ("mul", mul::prepare),
    ("resize_normalize", resize_normalize::prepare),
    ("split", split::prepare),
];

/// A checked op: pure but for its configuration and the scratch of each instance.
struct Op {
    placement: Placement,
    open: Box<dyn Fn() -> Box<Run> + Send + Sync>,
    /// It knows of batch inputs, and of inputs and outputs without their requests' shapes.
    takes_batch_io: bool,
}

/// Inputs and rows to outputs, as `Executor::execute`.
type Run = dyn FnMut(Tensors, u32) -> Result<Tensors> + Send;

impl Op {
    fn new(
        placement: Placement,
        run: impl Fn(Tensors, u32) -> Result<Tensors> + Send + Sync + 'static,
    ) -> Op {
        Op::with_scratch(placement, move |(), inputs, rows| run(inputs, rows))
    }

    fn with_batch_io(self) -> Op {
        Op { takes_batch_io: true, ..self }
    }

    /// An op whose instances each keep something from one run to the next.
    fn with_scratch<S: Default + Send + 'static>(
        placement: Placement,
        run: impl Fn(&mut S, Tensors, u32) -> Result<Tensors> + Send + Sync + 'static,
    ) -> Op {
        let run = Arc::new(run);
        let open = move || -> Box<Run> {
            let (run, mut scratch) = (run.clone(), S::default());
            Box::new(move |inputs, rows| run(&mut scratch, inputs, rows))
        };
        Op { placement, open: Box::new(open), takes_batch_io: false }
    }
}

/// Finds the op that `parameters { key: "op" }` names.
pub fn prepare(_: &Settings, _: &Place, config: Arc<ModelConfig>) -> Result<Backend> {
    let known = || OPS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let Some(name) = config.parameters.get("op") else {
        return Err(Error::invalid(format!(
            "model '{}' has backend 'native' but no parameter 'op', expected one of: {}",
            config.name,
            known()
        )));
    };
    let Some((_, prepare)) = OPS.iter().find(|(it, _)| it == name) else {
        return Err(Error::invalid(format!(
            "model '{}' names the native op '{name}', expected one of: {}",
            config.name,
            known()
        )));
    };
    let op = prepare(&config)?;
    let is_so = op.takes_batch_io || !config.has_batch_io();
    expect(&config, is_so, "no ragged input, batch_input or batch_output for this op")?;
    Ok(Backend::Local(Arc::new(op)))
}

impl OpenLocal for Op {
    fn placement(&self) -> Placement {
        self.placement
    }
    fn open(&self, _: &InstanceName) -> Result<Box<dyn Executor>> {
        Ok(Box::new(Runner((self.open)())))
    }
}

struct Runner(Box<Run>);

impl Executor for Runner {
    fn execute(&mut self, batch: Batch<'_>) -> Result<Tensors> {
        (self.0)(batch.inputs, batch.rows)
    }
}

/// Says what an op wants of its config when it is not so.
fn expect(config: &ModelConfig, is_so: bool, wanted: &str) -> Result<()> {
    if is_so {
        return Ok(());
    }
    Err(Error::invalid(format!("native model '{}': expected {wanted}", config.name)))
}
