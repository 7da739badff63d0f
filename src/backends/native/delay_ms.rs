//! `delay_ms`: an identity that blocks its thread for `parameters { key: "delay_ms" }`.

use std::time::Duration;

use super::{
    identity,
    op::{Op, expect},
};
use troupe_base::{backend::Placement, config::ModelConfig, error::Result};

/// Nobody means to wait longer.
const MAX_DELAY_MS: f64 = 600_000.0;

pub(super) fn prepare(config: &ModelConfig) -> Result<Op> {
    identity::prepare(config)?;
    let delay = config.parameters.get("delay_ms").and_then(|it| it.parse::<f64>().ok());
    let delay = delay.filter(|it| (0.0..=MAX_DELAY_MS).contains(it));
    expect(config, delay.is_some(), "parameter 'delay_ms' with a number from 0 to 600000")?;
    let delay = Duration::from_secs_f64(delay.unwrap_or(0.0) / 1000.0);
    Ok(Op::new(Placement::Own, move |inputs, _| {
        std::thread::sleep(delay);
        Ok(inputs)
    })
    .with_any_effort()
    .with_batch_io())
}
