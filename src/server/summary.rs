//! Start-up tables in the log: models with their status, and options.

use super::{cpu_limit, settings::repositories};
use troupe_base::table::table;
use troupe_gateway::{metadata, settings::Settings};
use troupe_options::{ControlMode, RateLimit, RateLimitResource, Serve};
use troupe_repository::{self as repository, Summary};

/// Logs the tables, once the first load is through.
pub(super) fn log_summary(summary: &Summary, options: &Serve, settings: &Settings) {
    let version = |it: Option<i64>| it.map_or_else(|| "-".to_owned(), |it| it.to_string());
    let row = |it: &repository::SummaryRow| {
        vec![it.model.to_string(), version(it.version), it.status.clone()]
    };
    let rows: Vec<Vec<String>> = summary.rows.iter().map(row).collect();
    let log = &settings.log;
    log.table(&table(&["Model", "Version", "Status"], &rows));
    log.table(&table(&["Option", "Value"], &option_rows(options, settings)));
}

fn option_rows(options: &Serve, settings: &Settings) -> Vec<Vec<String>> {
    let mut rows = vec![
        ("server_id".to_owned(), options.id.clone()),
        ("server_version".to_owned(), metadata::VERSION.to_owned()),
        ("troupe_version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ];
    for (index, path) in repositories(options).iter().enumerate() {
        rows.push((format!("model_repository_path[{index}]"), path.display().to_string()));
    }
    let mode = match options.model_control_mode {
        ControlMode::None => "MODE_NONE",
        ControlMode::Explicit => "MODE_EXPLICIT",
    };
    rows.push(("model_control_mode".to_owned(), mode.to_owned()));
    for (index, model) in options.load_model.iter().enumerate() {
        rows.push((format!("startup_models_{index}"), model.clone()));
    }
    let rate_limit = match options.rate_limits.rate_limit {
        RateLimit::Off => "OFF",
        RateLimit::ExecutionCount => "EXEC_COUNT",
    };
    rows.push(("rate_limit".to_owned(), rate_limit.to_owned()));
    for (index, resource) in options.rate_limits.rate_limit_resource.iter().enumerate() {
        let RateLimitResource { name, count, device } = resource;
        let device = device.map_or_else(|| "each".to_owned(), |it| it.to_string());
        let value = format!("{name}: {count}, device {device}");
        rows.push((format!("rate_limit_resource[{index}]"), value));
    }
    let number = |it: bool| u8::from(it).to_string();
    rows.push(("strict_model_config".to_owned(), number(!options.auto_complete())));
    rows.push(("strict_readiness".to_owned(), number(options.strict_readiness)));
    rows.push(("exit_timeout".to_owned(), options.exit_timeout_secs.to_string()));
    rows.push(("cache_enabled".to_owned(), number(matches!(options.cache(), Ok(Some(_))))));
    rows.push(("cpu_cores".to_owned(), cpu_limit::describe()));
    rows.push(("engine_threads".to_owned(), cpu_limit::engine_threads(options).to_string()));
    rows.push(("max_inflight_bytes".to_owned(), settings.budget.cap().to_string()));
    rows.push(("http_max_input_size".to_owned(), settings.max_input_size.to_string()));
    rows.push(("provision".to_owned(), number(options.provision)));
    rows.into_iter().map(|(name, value)| vec![name, value]).collect()
}
