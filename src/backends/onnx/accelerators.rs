//! `optimization.execution_accelerators` of a config: which part of ONNX Runtime executes a model.

use std::collections::BTreeMap;

use ort::{
    ep::{self, ArbitrarilyConfigurableExecutionProvider, ExecutionProviderDispatch},
    session::builder::SessionBuilder,
};

use super::parameter::wrong;
use troupe_base::{
    backend::InstanceName,
    config::{InstanceKind, ModelConfig, Problem},
    error::{Error, Result},
};
use troupe_proto::inference::model_optimization_policy::execution_accelerators::Accelerator;

/// Old parameters of a config that are options of CUDA: key, and what its numbers mean.
const CUDA_PARAMETERS: &[(&str, &[&str])] = &[
    ("arena_extend_strategy", &["kNextPowerOfTwo", "kSameAsRequested"]),
    ("cudnn_conv_algo_search", &["EXHAUSTIVE", "HEURISTIC", "DEFAULT"]),
    ("do_copy_in_default_stream", &["0", "1"]),
    ("gpu_mem_limit", &[]),
];

/// Triton's names of TensorRT's options, where they differ.
const TENSORRT_NAMES: &[(&str, &str)] = &[
    ("int8_calibration_table_name", "trt_int8_calibration_table_name"),
    ("int8_use_native_calibration_table", "trt_int8_use_native_calibration_table"),
    ("max_workspace_size_bytes", "trt_max_workspace_size"),
];

/// What each precision turns on.
const PRECISIONS: &[(&str, Option<&str>)] = &[
    ("FP32", None),
    ("FP16", Some("trt_fp16_enable")),
    ("BF16", Some("trt_bf16_enable")),
    ("INT8", Some("trt_int8_enable")),
];

/// Keys and values as ONNX Runtime has them.
type Entries = BTreeMap<String, String>;

/// The accelerators a config asks for.
#[derive(Default)]
pub(super) struct Accelerators {
    /// Tried before CUDA.
    tensorrt: Option<Entries>,
    /// `cuda` was named.
    asks_cuda: bool,
    cuda: Entries,
    openvino: Option<Entries>,
    has_gpu_instances: bool,
}

/// Is it an option of CUDA among a config's parameters?
pub(super) fn is_parameter(key: &str) -> bool {
    CUDA_PARAMETERS.iter().any(|(it, _)| *it == key)
}

/// Reads a finished config.
pub(super) fn read(config: &ModelConfig, problems: &mut Vec<Problem>) -> Accelerators {
    let mut read = Accelerators {
        has_gpu_instances: config.instance_groups.iter().any(|it| it.kind == InstanceKind::Gpu),
        cuda: old_parameters(config, problems),
        ..Accelerators::default()
    };
    let optimization = config.proto.optimization.as_ref();
    let Some(all) = optimization.and_then(|it| it.execution_accelerators.as_ref()) else {
        return read;
    };
    let mut problem = |path: &str, text: String| {
        let path = format!("optimization.execution_accelerators.{path}");
        problems.push(config.source_map.problem(&path, text));
    };
    let unknown = |name: &str| format!("unknown Execution Accelerator '{name}' is requested");
    for (index, it) in all.gpu_execution_accelerator.iter().enumerate() {
        let path = format!("gpu_execution_accelerator[{index}]");
        if let Some(text) = unprintable(it) {
            problem(&path, text);
        }
        match it.name.as_str() {
            "cuda" => {
                read.asks_cuda = true;
                read.cuda.extend(it.parameters.clone());
            }
            "tensorrt" => match tensorrt(&it.parameters) {
                Ok(entries) => read.tensorrt = Some(entries),
                Err(text) => problem(&format!("{path}.parameters"), text),
            },
            name => problem(&format!("{path}.name"), unknown(name)),
        }
    }
    for (index, it) in all.cpu_execution_accelerator.iter().enumerate() {
        let path = format!("cpu_execution_accelerator[{index}]");
        if let Some(text) = unprintable(it) {
            problem(&path, text);
        }
        match it.name.as_str() {
            "openvino" => read.openvino = Some(it.parameters.clone()),
            name => problem(&format!("{path}.name"), unknown(name)),
        }
    }
    read
}

/// The C API ends texts with NUL.
fn unprintable(accelerator: &Accelerator) -> Option<String> {
    let mut texts = accelerator.parameters.iter().flat_map(|(key, value)| [key, value]);
    texts
        .any(|it| it.contains('\0'))
        .then(|| format!("parameters of Execution Accelerator '{}' hold a NUL", accelerator.name))
}

fn old_parameters(config: &ModelConfig, problems: &mut Vec<Problem>) -> Entries {
    let mut entries = Entries::new();
    for (key, meanings) in CUDA_PARAMETERS {
        let Some(text) = config.parameters.get(*key) else { continue };
        let number = text.trim().parse::<usize>().ok();
        let value = match (number, meanings.is_empty()) {
            (Some(number), true) => Some(number.to_string()),
            (Some(number), false) => meanings.get(number).map(|it| (*it).to_owned()),
            (None, _) => None,
        };
        match value {
            Some(value) => drop(entries.insert((*key).to_owned(), value)),
            None if meanings.is_empty() => problems.push(wrong(config, key, "a number of bytes")),
            None => {
                let expected = format!("a number from 0 to {}", meanings.len() - 1);
                problems.push(wrong(config, key, &expected));
            }
        }
    }
    entries
}

fn tensorrt(parameters: &Entries) -> Result<Entries, String> {
    let mut entries = Entries::new();
    for (key, value) in parameters {
        if key == "precision_mode" {
            let (_, option) = PRECISIONS
                .iter()
                .find(|(it, _)| it == value)
                .ok_or_else(|| format!("unsupported precision mode '{value}' is requested"))?;
            entries.extend(option.map(|it| (it.to_owned(), "1".to_owned())));
            continue;
        }
        let renamed = TENSORRT_NAMES.iter().find(|(it, _)| it == key).map(|(_, name)| *name);
        let name = renamed.unwrap_or(key);
        if !name.starts_with("trt_") {
            return Err(format!(
                "unknown parameter '{key}' is provided for TensorRT Execution Accelerator"
            ));
        }
        entries.insert(name.to_owned(), value.clone());
    }
    Ok(entries)
}

impl Accelerators {
    /// Registers what executes an instance, in order; what nobody else takes, the CPU does.
    ///
    /// Fails with the library's reason when it does not have something that was asked for.
    pub(super) fn register(
        &self,
        builder: &mut SessionBuilder,
        instance: &InstanceName,
        model: &str,
    ) -> Result<()> {
        for provider in self.providers(instance) {
            provider.register(builder).map_err(|error| {
                Error::unsupported(format!(
                    "model '{model}', instance '{}': ONNX Runtime has no {}: {}",
                    instance.name,
                    provider.name(),
                    error.message()
                ))
            })?;
        }
        if instance.kind != "GPU" && !self.has_gpu_instances && self.asks_gpu() {
            return Err(Error::invalid(format!(
                "model '{model}' names a gpu_execution_accelerator, but none of its instances is \
                 KIND_GPU"
            )));
        }
        Ok(())
    }

    fn asks_gpu(&self) -> bool {
        self.asks_cuda || self.tensorrt.is_some()
    }

    fn providers(&self, instance: &InstanceName) -> Vec<ExecutionProviderDispatch> {
        let device = [("device_id".to_owned(), instance.device.to_string())];
        let mut providers = Vec::new();
        // Without any instance on a GPU they are tried for the library's reason.
        let is_gpu = instance.kind == "GPU" || !self.has_gpu_instances;
        if let Some(entries) = self.tensorrt.as_ref().filter(|_| is_gpu) {
            let entries = entries.clone().into_iter().chain(device.clone());
            providers.push(with(ep::TensorRT::default(), entries).build());
        }
        if instance.kind == "GPU" || (self.asks_cuda && is_gpu) {
            let entries = self.cuda.clone().into_iter().chain(device);
            providers.push(with(ep::CUDA::default(), entries).build());
        }
        if let Some(entries) = &self.openvino {
            providers.push(with(ep::OpenVINO::default(), entries.clone()).build());
        }
        providers
    }
}

fn with<P: ArbitrarilyConfigurableExecutionProvider>(
    provider: P,
    entries: impl IntoIterator<Item = (String, String)>,
) -> P {
    entries.into_iter().fold(provider, |it, (key, value)| it.with_arbitrary_config(key, value))
}
