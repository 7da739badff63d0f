//! Settings of the repository, from the command line.

use std::{path::PathBuf, sync::Arc};

use troupe_backends::Backends;
use troupe_base::{backend, config};
use troupe_engine::response_cache::ResponseCache;
use troupe_options::ControlMode;

/// Where models are, which of them are loaded, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folders of model folders.
    pub repositories: Vec<PathBuf>,
    /// Who decides which models are loaded.
    pub mode: ControlMode,
    /// Loaded at the start in `Explicit` mode; `*` is all.
    pub load_models: Vec<String>,
    /// What has changed on disk is loaded again.
    pub watch: bool,
    /// Backends may complete configs, and a model may have none.
    pub auto_complete: bool,
    /// `configs/NAME.pbtxt` goes before `config.pbtxt`.
    pub config_name: Option<String>,
    /// Versions that load at the same time.
    pub threads: usize,
    /// How often a load is tried again.
    pub retry_count: u32,
    /// Where the files of load requests are kept while their models live.
    pub scratch: PathBuf,
    /// What runs models.
    pub backends: Backends,
    /// Settings of the backends.
    pub backend: backend::Settings,
    /// What the server has that a config may ask for.
    pub config: config::ServerFeatures,
    /// Where answers are kept, if anywhere.
    pub cache: Option<Arc<ResponseCache>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            repositories: Vec::new(),
            mode: ControlMode::None,
            load_models: Vec::new(),
            watch: false,
            auto_complete: true,
            config_name: None,
            threads: 4,
            retry_count: 0,
            scratch: std::env::temp_dir(),
            backends: Backends::new(),
            backend: backend::Settings::default(),
            config: config::ServerFeatures::default(),
            cache: None,
        }
    }
}
