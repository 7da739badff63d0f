//! `parameters` and `optimization.graph` of a config, under the names Triton's backend has for
//! them.

use std::{collections::BTreeMap, thread};

use ort::session::builder::GraphOptimizationLevel;

use super::{
    accelerators::{self, Accelerators},
    parameter::wrong,
};
use troupe_base::config::{ModelConfig, Problem};

/// More threads than any machine has are a slip of the keyboard.
const MAX_THREADS: usize = 1024;

/// Keys that begin so are entries of the session's own configuration, passed on as they are.
const SESSION_ENTRIES: [&str; 4] = ["session.", "optimization.", "ep.", "mlas."];

const SHRINKAGE: &str = "memory.enable_memory_arena_shrinkage";

/// How sessions of one model are made.
pub(super) struct OnnxOptions {
    pub(super) level: GraphOptimizationLevel,
    pub(super) parallel: bool,
    pub(super) intra_op_threads: usize,
    pub(super) inter_op_threads: usize,
    pub(super) arena: Option<bool>,
    pub(super) pattern: Option<bool>,
    pub(super) session_entries: Vec<(String, String)>,
    pub(super) run_entries: Vec<(String, String)>,
    pub(super) accelerators: Accelerators,
}

/// Reads a finished config; logs parameters that have no effect here.
pub(super) fn read(config: &ModelConfig) -> Result<OnnxOptions, Vec<Problem>> {
    let mut reader = Reader { config, problems: Vec::new() };
    let options = OnnxOptions {
        level: reader.level(),
        parallel: reader.parallel(),
        intra_op_threads: reader.threads("intra_op_thread_count", threads_of_an_instance(config)),
        inter_op_threads: reader.threads("inter_op_thread_count", 1),
        arena: reader.truth("enable_mem_arena"),
        pattern: reader.truth("enable_mem_pattern"),
        session_entries: reader.session_entries(),
        run_entries: reader.shrinkage().into_iter().collect(),
        accelerators: accelerators::read(config, &mut reader.problems),
    };
    for key in config.parameters.keys().filter(|it| !is_known(it)) {
        tracing::warn!("parameter '{key}' of model '{}' has no effect here", config.name);
    }
    if reader.problems.is_empty() { Ok(options) } else { Err(reader.problems) }
}

fn is_known(key: &str) -> bool {
    let plain = [
        "enable_mem_arena",
        "enable_mem_pattern",
        "execution_mode",
        "inter_op_thread_count",
        "intra_op_thread_count",
        "placement",
        SHRINKAGE,
    ];
    plain.contains(&key) || is_session_entry(key) || accelerators::is_parameter(key)
}

fn is_session_entry(key: &str) -> bool {
    SESSION_ENTRIES.iter().any(|it| key.starts_with(it))
}

/// All instances of a model together have as many threads as this process may use cores.
fn threads_of_an_instance(config: &ModelConfig) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (cores / config.instances().max(1)).max(1)
}

struct Reader<'a> {
    config: &'a ModelConfig,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    /// Triton's numbers, which are not those of ONNX Runtime.
    fn level(&mut self) -> GraphOptimizationLevel {
        let graph = self.config.proto.optimization.as_ref().and_then(|it| it.graph.as_ref());
        match graph.map_or(0, |it| it.level) {
            0 => GraphOptimizationLevel::All,
            -1 => GraphOptimizationLevel::Level1,
            1 => GraphOptimizationLevel::Level2,
            2 => GraphOptimizationLevel::Disable,
            other => {
                let text = format!(
                    "optimization.graph.level of model '{}' is {other}, expected -1 (basic), 0 \
                     (all), 1 (extended) or 2 (none)",
                    self.config.name
                );
                let path = "optimization.graph.level";
                self.problems.push(self.config.source_map.problem(path, text));
                GraphOptimizationLevel::All
            }
        }
    }

    fn parallel(&mut self) -> bool {
        let key = "execution_mode";
        match self.config.parameters.get(key).map(|it| it.trim()) {
            None | Some("0") => false,
            Some("1") => true,
            Some(other) => {
                let text = format!(
                    "Invalid configuration value provided. Expected values for  {key} are 0 or 1 \
                     but got {other} ."
                );
                let path = format!("parameters[\"{key}\"]");
                self.problems.push(self.config.source_map.problem(&path, text));
                false
            }
        }
    }

    /// 0 is the default, as in Triton.
    fn threads(&mut self, key: &str, default: usize) -> usize {
        let Some(text) = self.config.parameters.get(key) else { return default };
        match text.trim().parse() {
            Ok(0) => default,
            Ok(count) if count <= MAX_THREADS => count,
            _ => {
                let expected = format!("a number of threads from 0 to {MAX_THREADS}");
                self.problems.push(wrong(self.config, key, &expected));
                default
            }
        }
    }

    fn truth(&mut self, key: &str) -> Option<bool> {
        match self.config.parameters.get(key)?.trim().to_lowercase().as_str() {
            "1" | "true" => Some(true),
            "0" | "false" => Some(false),
            _ => {
                self.problems.push(wrong(self.config, key, "0, 1, false or true"));
                None
            }
        }
    }

    fn session_entries(&mut self) -> Vec<(String, String)> {
        let parameters: &BTreeMap<String, String> = &self.config.parameters;
        let entries = parameters.iter().filter(|(key, _)| is_session_entry(key));
        entries.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// ONNX Runtime would say what is wrong with it at each request.
    fn shrinkage(&mut self) -> Option<(String, String)> {
        let text = self.config.parameters.get(SHRINKAGE)?;
        let is_device = |it: &str| {
            it.split_once(':').is_some_and(|(kind, id)| {
                matches!(kind, "cpu" | "gpu") && id.parse::<u16>().is_ok()
            })
        };
        if !text.split(';').all(is_device) {
            let expected = "devices as in `cpu:0` or `cpu:0;gpu:0`";
            self.problems.push(wrong(self.config, SHRINKAGE, expected));
        }
        Some((SHRINKAGE.to_owned(), text.clone()))
    }
}
