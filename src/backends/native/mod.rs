//! Ops built into the server: for pictures and text in them, and doubles of other backends in
//! tests.

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
mod op;
mod parameters;
mod resize_normalize;
mod split;
mod tensors;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use self::op::{Op, expect};
use troupe_base::{
    backend::Backend,
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

/// The ops that configs may name.
pub fn names() -> impl Iterator<Item = &'static str> {
    OPS.iter().map(|(name, _)| *name)
}

/// Finds the op that `parameters { key: "op" }` names.
pub fn prepare(config: Arc<ModelConfig>) -> Result<Backend> {
    let known = || names().collect::<Vec<_>>().join(", ");
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
