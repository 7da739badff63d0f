//! Usage of the machine's CPU, memory and GPUs, as measured last.

use std::collections::BTreeMap;

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

use super::proto;

/// The machine's usage at one moment; what was not measured is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineUsage {
    /// CPU and memory.
    pub cpu: Option<CpuUsage>,
    /// GPUs by UUID.
    pub gpus: BTreeMap<String, GpuUsage>,
}

/// CPU and memory usage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuUsage {
    /// From 0 to 1.
    pub utilization: f64,
    /// Bytes of memory there are.
    pub memory_total: u64,
    /// Bytes of them that are not available.
    pub memory_used: u64,
}

/// One GPU; drivers do not report everything.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuUsage {
    /// From 0 to 1.
    pub utilization: Option<f64>,
    /// Bytes.
    pub memory_total: Option<u64>,
    /// Bytes.
    pub memory_used: Option<u64>,
    /// Watts.
    pub power_usage: Option<f64>,
    /// Watts.
    pub power_limit: Option<f64>,
    /// Joules since the server started.
    pub energy: Option<f64>,
}

struct CpuRow {
    name: &'static str,
    help: &'static str,
    value: fn(&CpuUsage) -> f64,
}

struct GpuRow {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    value: fn(&GpuUsage) -> Option<f64>,
}

const CPU: [CpuRow; 3] = [
    CpuRow {
        name: "nv_cpu_utilization",
        help: "CPU utilization rate [0.0 - 1.0]",
        value: |it| it.utilization,
    },
    CpuRow {
        name: "nv_cpu_memory_total_bytes",
        help: "CPU total memory (RAM), in bytes",
        value: |it| it.memory_total as f64,
    },
    CpuRow {
        name: "nv_cpu_memory_used_bytes",
        help: "CPU used memory (RAM), in bytes",
        value: |it| it.memory_used as f64,
    },
];

const GPU: [GpuRow; 6] = [
    GpuRow {
        name: "nv_gpu_utilization",
        help: "GPU utilization rate [0.0 - 1.0)",
        kind: MetricType::GAUGE,
        value: |it| it.utilization,
    },
    GpuRow {
        name: "nv_gpu_memory_total_bytes",
        help: "GPU total memory, in bytes",
        kind: MetricType::GAUGE,
        value: |it| it.memory_total.map(|it| it as f64),
    },
    GpuRow {
        name: "nv_gpu_memory_used_bytes",
        help: "GPU used memory, in bytes",
        kind: MetricType::GAUGE,
        value: |it| it.memory_used.map(|it| it as f64),
    },
    GpuRow {
        name: "nv_gpu_power_usage",
        help: "GPU power usage in watts",
        kind: MetricType::GAUGE,
        value: |it| it.power_usage,
    },
    GpuRow {
        name: "nv_gpu_power_limit",
        help: "GPU power management limit in watts",
        kind: MetricType::GAUGE,
        value: |it| it.power_limit,
    },
    GpuRow {
        name: "nv_energy_consumption",
        help: "GPU energy consumption in joules since the Triton Server started",
        kind: MetricType::COUNTER,
        value: |it| it.energy,
    },
];

/// Names of the families of GPUs.
pub fn gpu_families() -> impl Iterator<Item = &'static str> {
    GPU.iter().map(|it| it.name)
}

impl MachineUsage {
    /// Its metric families, those without series included.
    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        let cpu = CPU.iter().map(|row| {
            let series = self.cpu.iter().map(|it| proto::gauge(Vec::new(), (row.value)(it)));
            proto::family(row.name, row.help, MetricType::GAUGE, series)
        });
        let gpu = GPU.iter().map(|row| {
            let metric: fn(Vec<LabelPair>, f64) -> Metric = match row.kind {
                MetricType::COUNTER => proto::counter,
                _ => proto::gauge,
            };
            let series = self.gpus.iter().filter_map(|(uuid, gpu)| {
                Some(metric(proto::labels([("gpu_uuid", &**uuid)]), (row.value)(gpu)?))
            });
            proto::family(row.name, row.help, row.kind, series)
        });
        cpu.chain(gpu).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn a_machine_is_told_in_tritons_words() {
        let metrics = Metrics::new();
        assert!(metrics.gather().is_empty());
        let cpu = CpuUsage { utilization: 0.25, memory_total: 1 << 30, memory_used: 1 << 20 };
        let gpu = GpuUsage { utilization: Some(0.5), energy: Some(2.5), ..GpuUsage::default() };
        let gpus = BTreeMap::from([("GPU-1".to_owned(), gpu)]);
        metrics.set_machine(MachineUsage { cpu: Some(cpu), gpus });
        let text = prometheus::TextEncoder::new().encode_to_string(&metrics.gather()).unwrap();
        let expected = "\
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.25
# HELP nv_cpu_memory_total_bytes CPU total memory (RAM), in bytes
# TYPE nv_cpu_memory_total_bytes gauge
nv_cpu_memory_total_bytes 1073741824
# HELP nv_cpu_memory_used_bytes CPU used memory (RAM), in bytes
# TYPE nv_cpu_memory_used_bytes gauge
nv_cpu_memory_used_bytes 1048576
# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid=\"GPU-1\"} 0.5
# HELP nv_energy_consumption GPU energy consumption in joules since the Triton Server started
# TYPE nv_energy_consumption counter
nv_energy_consumption{gpu_uuid=\"GPU-1\"} 2.5
";
        assert_eq!(text, expected);
    }
}
