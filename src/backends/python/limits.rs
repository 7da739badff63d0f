//! Limits of a model's workers, by its parameters: timeouts, memory, and whether to preload.

use std::time::Duration;

use troupe_base::{
    config::{ModelConfig, did_you_mean, parse_bytes},
    error::{Error, Result},
};

/// The parameter that limits one `execute`.
pub(crate) const EXECUTE_TIMEOUT: &str = "EXECUTE_TIMEOUT_MS";
/// The parameter that limits one start of a worker, `initialize` included.
pub(crate) const INITIALIZE_TIMEOUT: &str = "INITIALIZE_TIMEOUT_MS";
/// The parameter that limits a worker's address space.
pub(crate) const MEMORY_LIMIT: &str = "MEMORY_LIMIT_BYTES";
const PRELOAD: &str = "PRELOAD";
/// The parameter that says how many executions a worker may have in work at once; for models whose
/// `execute` is a coroutine function.
pub(crate) const CONCURRENCY: &str = "MAX_CONCURRENT_EXECUTIONS";
/// The parameter that names an environment of Python.
pub const ENVIRONMENT: &str = "EXECUTION_ENV_PATH";
/// What this backend reads, and one of Triton's that changes nothing here.
const KNOWN: [&str; 7] = [
    EXECUTE_TIMEOUT,
    INITIALIZE_TIMEOUT,
    MEMORY_LIMIT,
    PRELOAD,
    CONCURRENCY,
    ENVIRONMENT,
    "FORCE_CPU_ONLY_INPUT_TENSORS",
];

/// What is probably a misspelled parameter of this backend: models have others of their own.
pub(crate) fn misspelled(config: &ModelConfig) -> Vec<String> {
    let guess = |key: &str| {
        let meant = did_you_mean(key, KNOWN).filter(|_| !KNOWN.contains(&key))?;
        let model = &config.name;
        Some(format!("parameter '{key}' of model '{model}' has no effect, did you mean `{meant}`?"))
    };
    config.parameters.keys().filter_map(|key| guess(key)).collect()
}

/// What a model may take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WorkerLimits {
    /// Of one `execute`; longer ones end their worker.
    pub(crate) execute: Option<Duration>,
    /// Until a worker is ready; one that takes longer is ended.
    pub(crate) initialize: Option<Duration>,
    /// Bytes of address space of each worker.
    pub(crate) memory: Option<u64>,
    /// Import the model once and fork all instances.
    pub(crate) preload: bool,
}

impl WorkerLimits {
    /// Refuses what cannot be meant.
    pub(crate) fn of(config: &ModelConfig) -> Result<WorkerLimits> {
        let value = |key: &str| config.parameters.get(key).map(String::as_str);
        let wrong = |key: &str, expected: &str| {
            let got = value(key).unwrap_or_default();
            Error::invalid(format!(
                "parameter '{key}' of model '{}' is '{got}', expected {expected}",
                config.name
            ))
        };
        let time = |key: &str| {
            let positive = "a positive whole number of milliseconds";
            let time = |text| milliseconds(text).ok_or_else(|| wrong(key, positive));
            value(key).map(time).transpose()
        };
        let (execute, initialize) = (time(EXECUTE_TIMEOUT)?, time(INITIALIZE_TIMEOUT)?);
        let memory = match value(MEMORY_LIMIT) {
            None => None,
            Some(text) => Some(parse_bytes(text).ok_or_else(|| {
                wrong(MEMORY_LIMIT, "a positive whole number of bytes, or one with K, M or G")
            })?),
        };
        let preload = match value(PRELOAD) {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(wrong(PRELOAD, "'true' or 'false'")),
        };
        Ok(WorkerLimits { execute, initialize, memory, preload })
    }
}

/// `None` where it is not positive.
pub(crate) fn milliseconds(text: &str) -> Option<Duration> {
    text.trim().parse().ok().filter(|it| 0 < *it).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use troupe_base::config::read_text;

    fn check(parameters: &[(&str, &str)], expected: Result<WorkerLimits, &str>) {
        let mut text = "name: 'm' backend: 'python'\n".to_owned();
        for tensors in ["input { name: 'x'", "output { name: 'y'"] {
            text += &format!("{tensors} data_type: TYPE_FP32 dims: [1] }}\n");
        }
        for (key, value) in parameters {
            text += &format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n");
        }
        let config = read_text(&text, "config.pbtxt").unwrap().finish(&Default::default()).unwrap();
        let limits = WorkerLimits::of(&config).map_err(|it| it.to_string());
        assert_eq!(limits, expected.map_err(str::to_owned), "{parameters:?}");
    }

    #[test]
    fn parameters_become_limits() {
        check(&[], Ok(WorkerLimits::default()));
        let execute = Some(Duration::from_millis(1500));
        check(
            &[("EXECUTE_TIMEOUT_MS", "1500")],
            Ok(WorkerLimits { execute, ..WorkerLimits::default() }),
        );
        let initialize = Some(Duration::from_secs(60));
        check(
            &[("INITIALIZE_TIMEOUT_MS", " 60000")],
            Ok(WorkerLimits { initialize, ..WorkerLimits::default() }),
        );
        for (text, bytes) in
            [("4096", 4096), ("8K", 8 << 10), (" 512M ", 512 << 20), ("3G", 3 << 30)]
        {
            let limits = WorkerLimits { memory: Some(bytes), ..WorkerLimits::default() };
            check(&[("MEMORY_LIMIT_BYTES", text)], Ok(limits));
        }
        check(
            &[("PRELOAD", "true")],
            Ok(WorkerLimits { preload: true, ..WorkerLimits::default() }),
        );
        check(&[("PRELOAD", "false")], Ok(WorkerLimits::default()));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (key, values, expected) in [
            (
                "EXECUTE_TIMEOUT_MS",
                &["0", "-1", "soon", "1.5", ""][..],
                "a positive whole number of milliseconds",
            ),
            ("INITIALIZE_TIMEOUT_MS", &["0", "1s"], "a positive whole number of milliseconds"),
            (
                "MEMORY_LIMIT_BYTES",
                &["0", "0K", "-1", "G", "1T", "1.5G", "99999999999G"],
                "a positive whole number of bytes, or one with K, M or G",
            ),
            ("PRELOAD", &["yes", "1", ""], "'true' or 'false'"),
        ] {
            for value in values {
                let text =
                    format!("parameter '{key}' of model 'm' is '{value}', expected {expected}");
                check(&[(key, value)], Err(&text));
            }
        }
    }
}
