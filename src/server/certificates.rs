//! Certificates of the listeners: read at start, and again when one of their files changes.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::task::spawn_blocking;

use troupe_base::error::{Error, Result};
use troupe_gateway::tls::{Pem, PemPart, Tls};
use troupe_options::{PemFile, TlsFiles};

/// How often the files are looked at. A change counts once two looks in a row have seen the same:
/// certificate and key are seldom written at once.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// What a file is recognised by: another one, also behind a link, differs.
type Stamp = Option<(SystemTime, u64, u64)>;

/// The certificate of one listener, and the files it is from.
pub(super) struct Certificate {
    files: TlsFiles,
    tls: Arc<Tls>,
    /// Of the files as they were read last.
    read: Vec<Stamp>,
    /// As they were seen last.
    seen: Vec<Stamp>,
}

impl Certificate {
    /// Reads the files. Fails with the flag and the path of the one that is missing or wrong.
    pub(super) fn read(files: TlsFiles) -> Result<Certificate> {
        let read = stamps(&files);
        let pem = pem(&files).map_err(Error::invalid)?;
        let tls = Tls::new(&pem).map_err(|problem| {
            Error::invalid(wrong(file_of(&files, problem.part), &problem.why))
        })?;
        Ok(Certificate { files, tls: Arc::new(tls), seen: read.clone(), read })
    }

    /// What a listener encrypts with.
    pub(super) fn tls(&self) -> Arc<Tls> {
        self.tls.clone()
    }

    /// Reads the files again if they have changed and are still as the last look saw them. New
    /// connections get what they say; if something is wrong with them, what was read before stays.
    fn look(&mut self) {
        let now = stamps(&self.files);
        let is_settled = now == self.seen;
        self.seen = now;
        if !is_settled || self.seen == self.read {
            return;
        }
        // Also if they are wrong: an error is said once.
        self.read.clone_from(&self.seen);
        let replaced = pem(&self.files).and_then(|pem| {
            let replaced = self.tls.replace(&pem);
            replaced.map_err(|problem| wrong(file_of(&self.files, problem.part), &problem.why))
        });
        let PemFile { flag, path } = &self.files.certificate;
        match replaced {
            Ok(()) => tracing::info!("read the certificate again: {flag}={}", path.display()),
            Err(why) => tracing::error!("the certificate in use stays: {why}"),
        }
    }
}

/// Looks at the files for ever.
pub(super) async fn watch(mut all: Vec<Certificate>) {
    if all.is_empty() {
        return;
    }
    let mut ticks = tokio::time::interval(WATCH_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // A file may be on a disk that does not answer.
        let looked = spawn_blocking(move || {
            all.iter_mut().for_each(Certificate::look);
            all
        });
        match looked.await {
            Ok(again) => all = again,
            Err(error) => {
                tracing::error!("certificates are not watched any more: {error}");
                return;
            }
        }
    }
}

fn paths(files: &TlsFiles) -> impl Iterator<Item = &PathBuf> {
    let all = [Some(&files.certificate), Some(&files.key), files.client_roots.as_ref()];
    all.into_iter().flatten().map(|it| &it.path)
}

fn stamps(files: &TlsFiles) -> Vec<Stamp> {
    paths(files).map(|path| stamp(path)).collect()
}

fn stamp(path: &Path) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.len(), found.ino()))
}

fn pem(files: &TlsFiles) -> std::result::Result<Pem, String> {
    let read = |file: &PemFile| fs::read(&file.path).map_err(|error| wrong(file, &error));
    Ok(Pem {
        certificate: read(&files.certificate)?,
        key: read(&files.key)?,
        client_roots: files.client_roots.as_ref().map(read).transpose()?,
    })
}

fn file_of(files: &TlsFiles, part: PemPart) -> &PemFile {
    match (part, &files.client_roots) {
        (PemPart::Key, _) => &files.key,
        (PemPart::ClientRoots, Some(roots)) => roots,
        _ => &files.certificate,
    }
}

fn wrong(file: &PemFile, why: &impl ToString) -> String {
    format!("{}={}: {}", file.flag, file.path.display(), why.to_string())
}
