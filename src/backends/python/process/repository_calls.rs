//! What `load_model`, `unload_model` and `is_model_ready` of `pb_utils` ask of the server.

use std::sync::Arc;

use bytes::Bytes;

use crate::python::protocol::{decode::Cursor, frames::frame_head, kinds};
use troupe_base::{
    error::{Error, Result},
    model::{LoadTarget, Lookup, Overrides, parse_version},
};

/// Numbers of `calls.py`.
const LOAD: u64 = 1;
const UNLOAD: u64 = 2;
const IS_READY: u64 = 3;
/// Outcomes in a reply.
const FAILED: u64 = 0;
const YES: u64 = 1;
const NO: u64 = 2;

/// One such call.
pub(crate) struct RepositoryCall {
    call: u64,
    what: u64,
    flags: u64,
    /// The model's name, then what the call is about.
    texts: Vec<Bytes>,
}

/// Reads the rest of a `CHANGE` frame.
pub(crate) fn read_repository_call(cursor: &mut Cursor<'_>) -> Result<RepositoryCall, String> {
    let (call, what, flags, count) = (cursor.u64()?, cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let mut texts = Vec::new();
    for _ in 0..count {
        let size = cursor.u64()?;
        texts.push(cursor.bytes(size)?);
    }
    Ok(RepositoryCall { call, what, flags, texts })
}

impl RepositoryCall {
    /// Carries it out and writes the reply. Runs on the reaper's thread, to its end even if the
    /// worker has gone; `within` is the model that waits for it while it is loaded.
    pub(crate) async fn reply(
        self,
        lookup: Option<Arc<dyn Lookup>>,
        within: Option<Arc<str>>,
    ) -> Vec<u8> {
        let call = self.call;
        let (outcome, text) = match self.outcome(lookup, within).await {
            Ok(true) => (YES, String::new()),
            Ok(false) => (NO, String::new()),
            Err(error) => (FAILED, error.to_string()),
        };
        let mut frame = frame_head(kinds::REPOSITORY_REPLY, 24 + text.len().next_multiple_of(8));
        for number in [call, outcome, text.len() as u64] {
            frame.extend_from_slice(&number.to_le_bytes());
        }
        frame.extend_from_slice(text.as_bytes());
        frame.resize(frame.len().next_multiple_of(8), 0);
        frame
    }

    async fn outcome(
        self,
        lookup: Option<Arc<dyn Lookup>>,
        within: Option<Arc<str>>,
    ) -> Result<bool> {
        let Some(lookup) = lookup else { return Err(Error::unavailable("there are no models")) };
        let text = |index: usize| {
            let text = self.texts.get(index).map_or(&[][..], |it| it);
            String::from_utf8_lossy(text).into_owned()
        };
        let target = LoadTarget { name: text(0), within };
        match self.what {
            LOAD => {
                // Files may be large.
                let overrides = tokio::task::spawn_blocking(move || overrides(&self.texts)).await;
                let lost = |error| Error::internal(format!("reading files failed: {error}"));
                lookup.load(target, overrides.map_err(lost)?).await?;
                Ok(true)
            }
            UNLOAD => lookup.unload(target, self.flags != 0).await.map(|()| true),
            IS_READY => {
                let version = parse_version(&text(1))?;
                Ok(lookup.find(&target.name, version).is_ok_and(|it| it.is_ready()))
            }
            what => Err(Error::internal(format!("the worker asked for {what}"))),
        }
    }
}

/// The config and the files after a model's name.
fn overrides(texts: &[Bytes]) -> Overrides {
    let text = |it: &Bytes| String::from_utf8_lossy(it).into_owned();
    let config = texts.get(1).map(text).filter(|it| !it.is_empty());
    let files = texts.get(2..).unwrap_or_default().chunks_exact(2);
    Overrides { config, files: files.map(|it| (text(&it[0]), it[1].to_vec())).collect() }
}
