//! Warms models up while they load; reads the files of their samples.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::task::spawn_blocking;

use troupe_base::{
    config::{ModelConfig, Problem},
    error::Result,
    model::{
        Infer, ModelParts,
        warmup::{self, ReadLimit, WarmupSample},
    },
    request::Pending,
};
use troupe_engine::batcher::Mailbox;

/// In a model's directory; holds raw tensors.
const FOLDER: &str = "warmup";

/// A warm-up that takes longer is worth a line in the log.
const NOTICEABLE: Duration = Duration::from_secs(1);

/// The samples of a model, or every problem they have. Blocks.
pub(super) fn samples(
    config: &ModelConfig,
    model_dir: &Path,
) -> Result<Vec<WarmupSample>, Vec<Problem>> {
    let folder = model_dir.join(FOLDER);
    warmup::samples(config, &|file, size| read(&folder, file, size))
}

/// Warms up every instance of a model.
pub(super) async fn single(
    opened: &Mailbox,
    samples: &[WarmupSample],
    (name, version): (&str, i64),
) -> Result<()> {
    timed(name, version, opened.warm_up(samples)).await
}

/// Warms up the way through all models of an ensemble; by themselves they are warm.
pub(super) async fn ensemble(
    answers: &dyn Infer,
    parts: &ModelParts,
    model_dir: PathBuf,
) -> Result<(), Vec<String>> {
    let config = parts.config.clone();
    let samples = spawn_blocking(move || samples(&config, &model_dir)).await;
    let samples = samples.map_err(|_| vec!["reading warmup samples panicked".to_owned()])?;
    let samples = samples.map_err(|it| it.iter().map(Problem::message).collect::<Vec<_>>())?;
    let name = &parts.config.name;
    let run = |group: Vec<Pending>| {
        group.into_iter().for_each(|it| answers.infer(it.request, it.reply));
    };
    let target = format!("ensemble '{name}'");
    let warm = timed(name, parts.version, warmup::run(&samples, &target, run)).await;
    warm.map_err(|error| vec![error.to_string()])
}

/// Says how long a warm-up took, if that was noticeable.
async fn timed(name: &str, version: i64, warming: impl Future<Output = Result<()>>) -> Result<()> {
    let since = Instant::now();
    warming.await?;
    let took = since.elapsed();
    if NOTICEABLE <= took {
        tracing::info!("warmed up `{name}` version {version} in {:.2} s", took.as_secs_f64());
    }
    Ok(())
}

fn read(folder: &Path, file: &str, size: ReadLimit) -> Result<Bytes, String> {
    let path = folder.join(file);
    let failed =
        |what: &dyn std::fmt::Display| format!("failed to read '{}': {what}", path.display());
    let metadata = fs::metadata(&path).map_err(|it| failed(&it))?;
    // Opening a pipe would wait for its writer.
    if !metadata.is_file() {
        return Err(failed(&"not a regular file"));
    }
    let (wanted, found) = match size {
        ReadLimit::Exactly(wanted) => (wanted, metadata.len()),
        ReadLimit::AtMost(limit) if metadata.len() <= limit as u64 => {
            (metadata.len() as usize, metadata.len())
        }
        ReadLimit::AtMost(limit) => return Err(failed(&format_args!("larger than {limit} bytes"))),
    };
    if (wanted as u64) < found {
        let path = path.display();
        tracing::warn!("'{path}' has {found} bytes, of which warmup uses the first {wanted}");
    }
    let mut bytes = Vec::new();
    let opened = File::open(&path).map_err(|it| failed(&it))?;
    let read = opened.take(wanted as u64).read_to_end(&mut bytes).map_err(|it| failed(&it))?;
    if read < wanted {
        return Err(format!(
            "warmup setting expects {wanted} bytes, but the data provided from {file} only has \
             {read} bytes"
        ));
    }
    Ok(bytes.into())
}
