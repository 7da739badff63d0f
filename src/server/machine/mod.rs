//! Looks at CPU, memory and GPUs now and then, for whoever reads metrics.

mod cpu;
mod gpu;

use std::time::Duration;

use tokio::{task::spawn_blocking, time::MissedTickBehavior};

use self::{cpu::CpuWatch, gpu::GpuWatch};
use troupe_base::metrics::{LatencyMetrics, MachineUsage, Metrics};
use troupe_options::Serve;

/// The metrics that the command line asks for; the machine is watched from now on if they are to be
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
        actix_rt::spawn(watch(metrics.clone(), cpu, gpu, interval));
    }
    metrics
}

struct Watch {
    cpu: Option<CpuWatch>,
    gpu: Option<GpuWatch>,
}

impl Watch {
    fn look(&mut self) -> MachineUsage {
        let cpu = self.cpu.as_mut().and_then(CpuWatch::look);
        MachineUsage { cpu, gpus: self.gpu.as_mut().map(GpuWatch::look).unwrap_or_default() }
    }
}

/// Never ends unless there is nothing to look at.
async fn watch(metrics: Metrics, cpu: bool, gpu: bool, interval: Duration) {
    // Drivers may take their time: on a thread that may block.
    let opened = spawn_blocking(move || Watch {
        cpu: cpu.then(CpuWatch::default),
        gpu: if gpu { GpuWatch::open() } else { None },
    });
    let Ok(mut watch) = opened.await else { return };
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while watch.cpu.is_some() || watch.gpu.is_some() {
        ticks.tick().await;
        let looked = spawn_blocking(move || (watch.look(), watch)).await;
        let Ok((machine, again)) = looked else { return };
        metrics.set_machine(machine);
        watch = again;
    }
}
