//! Provisioning: makes environments that models need and the machine lacks, once for all servers.

use std::{
    fmt::Display,
    fs::{self, DirBuilder, File},
    io::{BufRead, BufReader},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Instant,
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use troupe_base::{
    backend::Settings,
    error::{Error, Result},
    text::shortened,
};

/// What an interpreter without pip says.
pub(super) const NO_PIP: &str = "No module named pip";
/// Lines of a command quoted when it fails.
const QUOTED_LINES: usize = 20;
/// Of one line of pip; some list all versions there are.
const MAX_PIP_ERROR_LETTERS: usize = 300;
/// Written last into a finished folder.
const COMPLETE: &str = ".troupe-complete";

/// The server's Python: `--backend-config=python,python=…`, else the first in the path.
pub(super) fn base(settings: &Settings) -> PathBuf {
    settings.get("python", "python").unwrap_or("python3").into()
}

/// `--backend-config=python,cache=…`, `$TROUPE_CACHE`, or the user's cache folder.
pub(super) fn cache(settings: &Settings) -> Result<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    let found = settings
        .get("python", "cache")
        .map(PathBuf::from)
        .or_else(|| of("TROUPE_CACHE"))
        .or_else(|| of("XDG_CACHE_HOME").map(|it| it.join("troupe")))
        .or_else(|| of("HOME").map(|it| it.join(".cache/troupe")));
    let found =
        found.ok_or_else(|| Error::internal("no cache folder: set TROUPE_CACHE or HOME"))?;
    std::path::absolute(&found).map_err(|error| failed("no cache folder", &error))
}

/// A folder's name for everything that decides about its contents.
pub(super) fn key(parts: &[&dyn Display]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.to_string());
        hash.update([0]);
    }
    hash.finalize().iter().take(12).map(|it| format!("{it:02x}")).collect()
}

/// Makes `folder` unless it is complete. Other servers and threads wait; leftovers are made anew.
///
/// Made in its place, not renamed: scripts in environments know their path.
pub(super) fn once(folder: &Path, make: impl FnOnce() -> Result<()>) -> Result<()> {
    let complete = folder.join(COMPLETE);
    if complete.exists() {
        folder.parent().map_or(Ok(()), check_ours)?;
        return check_ours(folder);
    }
    let what = format!("cannot make '{}'", folder.display());
    let parent = folder.parent().unwrap_or(folder);
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(parent)
        .map_err(|error| failed(&what, &error))?;
    check_ours(parent)?;
    let lock =
        File::create(folder.with_extension("lock")).map_err(|error| failed(&what, &error))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| failed(&what, &error))?;
    if complete.exists() {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| failed(&what, &error))?;
    }
    fs::create_dir_all(folder).map_err(|error| failed(&what, &error))?;
    if let Err(error) = make() {
        // What is half made is made anew next time, whether this works or not.
        let _ = fs::remove_dir_all(folder);
        return Err(error);
    }
    File::create(&complete).map_err(|error| failed(&what, &error))?;
    Ok(())
}

/// Code that models run lies in the folder: nobody else may have put it there, or be able to.
fn check_ours(folder: &Path) -> Result<()> {
    let about = fs::metadata(folder);
    let about = about.map_err(|error| failed(&format!("no '{}'", folder.display()), &error))?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let is_others = about.uid() != user.as_raw();
    let group_is_ours = about.gid() == group.as_raw();
    let is_writable = about.mode() & 0o002 != 0 || about.mode() & 0o020 != 0 && !group_is_ours;
    if !is_others && !is_writable {
        return Ok(());
    }
    Err(Error::internal(format!(
        "the cache folder '{}' {}: other users could have models run their code; set TROUPE_CACHE to \
         a folder of this user's own",
        folder.display(),
        if is_others { "belongs to another user" } else { "can be written to by other users" }
    )))
}

/// Makes something between two lines of the log: `what` it is, then where and for whom.
pub(super) fn logged(what: &str, about: &str, make: impl FnOnce() -> Result<()>) -> Result<()> {
    tracing::info!("making {what} {about} …");
    let begun = Instant::now();
    make()?;
    tracing::info!("{what} made in {:.1} s", begun.elapsed().as_secs_f32());
    Ok(())
}

/// Runs a command; its lines are logged as they come and quoted if it fails.
pub(super) fn run(mut command: Command) -> Result<()> {
    let shown = format!("{command:?}").replace('"', "");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&format!("cannot run `{shown}`"), &error))?;
    let lines = Arc::new(Mutex::new(Vec::new()));
    let follow = |pipe: Box<dyn std::io::Read + Send>| {
        let lines = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(|it| it.ok()) {
                tracing::debug!("{line}");
                let mut lines = lines.lock();
                if lines.len() == QUOTED_LINES {
                    lines.remove(0);
                }
                lines.push(line);
            }
        })
    };
    let stdout = child.stdout.take().map(|it| follow(Box::new(it)));
    let stderr = child.stderr.take().map(|it| follow(Box::new(it)));
    for thread in [stdout, stderr].into_iter().flatten() {
        // It ends with the pipe; a panic in it loses lines, nothing else.
        let _ = thread.join();
    }
    let status = child.wait().map_err(|error| failed(&format!("cannot run `{shown}`"), &error))?;
    if status.success() {
        return Ok(());
    }
    let lines = lines.lock();
    match pip_errors(&lines) {
        errors if errors.is_empty() => {
            Err(failed(&format!("`{shown}` failed ({status})"), &lines.join("\n")))
        }
        errors => {
            tracing::warn!("`{shown}` failed ({status})");
            Err(failed("pip", &errors.join("; ")))
        }
    }
}

/// What pip says went wrong: the lines it marks, without the versions it did not look at.
fn pip_errors(lines: &[String]) -> Vec<String> {
    let errors = lines.iter().filter_map(|line| line.strip_prefix("ERROR: "));
    let errors = errors.filter(|it| !it.starts_with("Ignored the following"));
    errors.map(|text| shortened(text, MAX_PIP_ERROR_LETTERS)).collect()
}

/// What could not be done, and why.
pub(super) fn failed(what: &str, error: &dyn Display) -> Error {
    Error::internal(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn of_what_pip_says_the_errors_are_told() {
        let said = "Collecting x==9\nERROR: Ignored the following versions that require a different \
                    python version: 1.0\nERROR: Could not find a version that satisfies the \
                    requirement x==9 (from versions: 1, 2)\nERROR: No matching distribution found \
                    for x==9\n[notice] a new release of pip";
        let lines: Vec<String> = said.lines().map(str::to_owned).collect();
        let errors = pip_errors(&lines).join("; ");
        let expected = "Could not find a version that satisfies the requirement x==9 (from versions: \
                        1, 2); No matching distribution found for x==9";
        assert_eq!(errors, expected);
        assert!(pip_errors(&["python3: No module named pip".to_owned()]).is_empty());
    }

    #[test]
    fn a_cache_that_others_can_write_to_is_refused() {
        let cache = std::env::temp_dir().join(format!("troupe-cache-{}", std::process::id()));
        let folder = cache.join("key");
        once(&folder, || Ok(())).unwrap();
        for (mode, is_trusted) in [(0o700, true), (0o755, true), (0o777, false), (0o700, true)] {
            fs::set_permissions(&cache, fs::Permissions::from_mode(mode)).unwrap();
            let made = once(&folder, || Err(Error::internal("it is there already")));
            assert_eq!(made.is_ok(), is_trusted, "{mode:o}");
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let text = once(&folder, || Ok(())).unwrap_err().to_string();
        assert!(text.contains("can be written to by other users"), "{text}");
        fs::remove_dir_all(cache).unwrap();
    }
}
