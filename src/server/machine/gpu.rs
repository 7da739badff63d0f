//! GPUs by the driver's own count, where there is a driver.

use std::collections::BTreeMap;

use nvml_wrapper::{Device, Nvml, error::NvmlError};

use troupe_backends::gpus;
use troupe_base::metrics::GpuUsage;

/// The driver's library, and what GPUs had used when the server started.
pub(super) struct GpuSampler {
    nvml: Nvml,
    /// By UUID, with the millijoules at the start if it tells.
    gpus: Vec<(String, Option<u64>)>,
}

impl GpuSampler {
    /// `None` without a driver or a GPU that can be seen, of which nothing is said.
    pub(super) fn open() -> Option<GpuSampler> {
        let nvml =
            Nvml::init().inspect_err(|error| tracing::debug!("no GPU metrics: {error}")).ok()?;
        let gpus = visible(&nvml).into_iter().filter_map(|uuid| {
            let device = nvml.device_by_uuid(&*uuid).ok()?;
            let energy = device.total_energy_consumption().ok();
            Some((uuid, energy))
        });
        let gpus: Vec<_> = gpus.collect();
        (!gpus.is_empty()).then_some(GpuSampler { nvml, gpus })
    }

    /// What a GPU does not tell is left out.
    pub(super) fn sample(&mut self) -> BTreeMap<String, GpuUsage> {
        let sample = |(uuid, begin): &(String, Option<u64>)| {
            let device = self.nvml.device_by_uuid(&**uuid).ok()?;
            Some((uuid.clone(), usage(&device, *begin)))
        };
        self.gpus.iter().filter_map(sample).collect()
    }
}

/// The GPUs models can run on; all of them where the driver for models says nothing.
fn visible(nvml: &Nvml) -> Vec<String> {
    let usable = gpus::usable().unwrap_or_default();
    let by_cuda: Vec<String> =
        usable.iter().filter_map(|it| gpus::uuid(*it)).map(str::to_owned).collect();
    if !by_cuda.is_empty() {
        return by_cuda;
    }
    let by_index = |it| nvml.device_by_index(it).and_then(|it| it.uuid()).ok();
    (0..nvml.device_count().unwrap_or(0)).filter_map(by_index).collect()
}

fn usage(device: &Device<'_>, begin: Option<u64>) -> GpuUsage {
    let watts = |it: Result<u32, NvmlError>| it.ok().map(|it| f64::from(it) / 1000.0);
    let memory = device.memory_info().ok();
    let energy = device.total_energy_consumption().ok();
    let since_begin = |(now, begin): (u64, u64)| now.saturating_sub(begin) as f64 / 1000.0;
    GpuUsage {
        utilization: device.utilization_rates().ok().map(|it| f64::from(it.gpu) / 100.0),
        memory_total: memory.as_ref().map(|it| it.total),
        memory_used: memory.as_ref().map(|it| it.used),
        power_usage: watts(device.power_usage()),
        power_limit: watts(device.enforced_power_limit()),
        energy: energy.zip(begin).map(since_begin),
    }
}
