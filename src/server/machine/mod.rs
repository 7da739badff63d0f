//! Samples the usage of CPU, memory and GPUs for the metrics, at an interval.

mod cpu;
mod gpu;

use std::time::Duration;

use tokio::{task::spawn_blocking, time::MissedTickBehavior};

use self::{cpu::CpuSampler, gpu::GpuSampler};
use troupe_base::metrics::{LatencyMetrics, MachineUsage, Metrics};
use troupe_options::Serve;

/// The metrics that the command line asks for; the machine is sampled from now on if they are to be
/// shown. To be called on a runtime.
pub(super) fn metrics(options: &Serve) -> Metrics {
    let (latencies, skipped) = LatencyMetrics::read(&options.metrics.metrics_config);
    for text in skipped {
        tracing::error!("{text}");
    }
    if !options.listeners.allow_metrics {
        return Metrics::off();
    }
    let metrics = Metrics::with(latencies);
    let (cpu, gpu) = (options.metrics.allow_cpu_metrics, options.metrics.allow_gpu_metrics);
    if cpu || gpu {
        let interval = Duration::from_millis(options.metrics.metrics_interval_ms);
        actix_rt::spawn(sample_machine(metrics.clone(), cpu, gpu, interval));
    }
    metrics
}

struct MachineSampler {
    cpu: Option<CpuSampler>,
    gpu: Option<GpuSampler>,
}

impl MachineSampler {
    fn sample(&mut self) -> MachineUsage {
        let cpu = self.cpu.as_mut().and_then(CpuSampler::sample);
        MachineUsage { cpu, gpus: self.gpu.as_mut().map(GpuSampler::sample).unwrap_or_default() }
    }
}

/// Ends only if there is nothing to sample.
async fn sample_machine(metrics: Metrics, cpu: bool, gpu: bool, interval: Duration) {
    // Drivers may take their time: on a thread that may block.
    let opened = spawn_blocking(move || MachineSampler {
        cpu: cpu.then(CpuSampler::default),
        gpu: if gpu { GpuSampler::open() } else { None },
    });
    let Ok(mut sampler) = opened.await else { return };
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while sampler.cpu.is_some() || sampler.gpu.is_some() {
        ticks.tick().await;
        let sampled = spawn_blocking(move || (sampler.sample(), sampler)).await;
        let Ok((machine, again)) = sampled else { return };
        metrics.set_machine(machine);
        sampler = again;
    }
}
