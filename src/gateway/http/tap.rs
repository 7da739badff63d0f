//! Taps over HTTP: waits for the next requests of an ensemble, and answers with their tensors.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use actix_web::{HttpRequest, HttpResponse, body::SizedStream, http::header, web};
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use tokio::time::sleep;

use super::{
    body,
    encode::MAX_PART_BYTES,
    json, limits,
    refusal::Refusal,
    server_state::{model_and_version, state},
};
use crate::lifecycle::InFlightGuard;
use troupe_base::{
    budget::Reserved,
    config::ModelConfig,
    error::{Error, Result},
    model::Model,
    tap::{
        Capture, CaptureEnd, CaptureSpec, MAX_REQUESTS, Tap, archive, manifest::CaptureOrigin,
        reserve,
    },
};

/// The bytes one tap may hold unless it says otherwise.
const DEFAULT_MAX_BYTES: usize = 256 << 20;
/// How long a tap waits unless it says otherwise.
const DEFAULT_TIMEOUT_SECONDS: f64 = 60.0;
/// The longest a tap may wait.
const MAX_TIMEOUT_SECONDS: f64 = 3600.0;

/// What the body of a request may hold.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TapParams {
    requests: Option<u64>,
    edges: Option<Vec<String>>,
    max_bytes: Option<u64>,
    timeout_secs: Option<f64>,
}

/// Answers with an archive once enough requests are through or the time is over. A client that
/// leaves ends the tap: this future is dropped then, and what it holds with it.
pub(super) async fn tap(http: HttpRequest, payload: web::Payload) -> Result<HttpResponse, Refusal> {
    let state = state(&http)?;
    let text = body::receive_all(&http, payload, state.settings.max_input_size).await?;
    let Some(budget) = &state.settings.tap else {
        let text = "capturing tensors is not allowed: start the server with --allow-tap";
        return Err(Error::unsupported(text).into());
    };
    let in_flight = state.lifecycle.enter()?;
    let (spec, timeout) = read_spec(&text, budget.cap())?;
    let (name, version) = model_and_version(&http)?;
    let reserved = reserve(budget, spec.max_bytes)?;
    // The model itself is not held: a tap keeps nobody from unloading it.
    let (tap, ensemble) = begin(&*state.model(name, version)?, &spec)?;
    tracing::info!(
        "tap on ensemble '{name}': the next {} requests, {} bytes at most, {timeout:?} at most",
        spec.requests,
        spec.max_bytes
    );
    let ended = tokio::select! {
        ended = tap.over() => ended,
        () = sleep(timeout) => CaptureEnd::Timeout,
        () = state.lifecycle.wait_exit() => CaptureEnd::Exiting,
    };
    let edges = tap.edges();
    let capture = tap.take();
    let counts = counts(&capture, ended);
    let (name, bytes) = (ensemble.config.name.clone(), capture.bytes);
    let parts = limits::off_thread(bytes, move || {
        let origin = CaptureOrigin {
            config: &ensemble.config,
            version: ensemble.version,
            steps: &ensemble.steps,
            edges: &edges,
            requested: spec.requests,
            max_bytes: spec.max_bytes,
        };
        archive::write(&origin, &capture, ended)
    });
    let rest =
        UnsentArchive { parts: parts.await?.into(), _reserved: reserved, _in_flight: in_flight };
    Ok(response(&name, counts, rest))
}

fn read_spec(text: &[u8], most: usize) -> Result<(CaptureSpec, Duration)> {
    let params: TapParams = if text.is_empty() { TapParams::default() } else { json::parse(text)? };
    let wrong = |key: &str, got: String, expected: String| {
        Error::invalid(format!("invalid value {got} for '{key}', expected {expected}"))
    };
    let number = |key, got: u64, most: usize, more| {
        let fits = usize::try_from(got).ok().filter(|it| (1..=most).contains(it));
        fits.ok_or_else(|| wrong(key, got.to_string(), format!("1 to {most}{more}")))
    };
    let requests = number("requests", params.requests.unwrap_or(1), MAX_REQUESTS, "")?;
    let max_bytes = params.max_bytes.unwrap_or(DEFAULT_MAX_BYTES.min(most) as u64);
    let max_bytes = number("max_bytes", max_bytes, most, ", which --tap-max-bytes can raise")?;
    let seconds = params.timeout_secs.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
    if seconds.is_nan() || seconds <= 0.0 || MAX_TIMEOUT_SECONDS < seconds {
        let expected = format!("more than 0, up to {MAX_TIMEOUT_SECONDS}");
        return Err(wrong("timeout_secs", seconds.to_string(), expected));
    }
    let spec = CaptureSpec { requests, edges: params.edges, max_bytes };
    Ok((spec, Duration::from_secs_f64(seconds)))
}

/// The ensemble that is tapped, as the archive describes it.
struct TappedEnsemble {
    config: Arc<ModelConfig>,
    version: i64,
    /// The version of each step's model and whether it is decoupled.
    steps: Vec<(i64, bool)>,
}

fn begin(model: &Model, spec: &CaptureSpec) -> Result<(Tap, TappedEnsemble)> {
    let name = model.name();
    let taps = model.taps().ok_or_else(|| {
        Error::invalid(format!(
            "model '{name}' is not an ensemble: only the tensors between the steps of an ensemble can \
             be captured"
        ))
    })?;
    let steps = model.steps.iter().map(|it| (it.version, it.config.decoupled)).collect();
    let ensemble = TappedEnsemble { config: model.config.clone(), version: model.version, steps };
    Ok((taps.start(name, spec)?, ensemble))
}

type Counts = [(&'static str, String); 6];

fn counts(capture: &Capture, ended: CaptureEnd) -> Counts {
    let through = capture.requests.iter().filter(|it| it.has_ended).count();
    [
        ("troupe-tap-ended", ended.as_str().to_owned()),
        ("troupe-tap-requests", capture.requests.len().to_string()),
        ("troupe-tap-requests-ended", through.to_string()),
        ("troupe-tap-tensors", capture.tensors().to_string()),
        ("troupe-tap-left-out", capture.left_out().to_string()),
        ("troupe-tap-left-out-bytes", capture.left_out_bytes.to_string()),
    ]
}

fn response(ensemble: &str, counts: Counts, rest: UnsentArchive) -> HttpResponse {
    let mut response = HttpResponse::Ok();
    for count in counts {
        response.insert_header(count);
    }
    let plain = |it: char| it.is_ascii_alphanumeric() || "._-".contains(it);
    let file: String = ensemble.chars().map(|it| if plain(it) { it } else { '_' }).collect();
    let disposition = format!("attachment; filename=\"{file}.npz\"");
    let total = rest.parts.iter().map(|it| it.len() as u64).sum();
    response
        .insert_header((header::CONTENT_TYPE, "application/zip"))
        .insert_header((header::CONTENT_DISPOSITION, disposition))
        .body(SizedStream::new(total, stream::unfold(rest, UnsentArchive::next)))
}

/// The parts of an archive that were not sent yet.
struct UnsentArchive {
    parts: VecDeque<Bytes>,
    _reserved: Reserved,
    _in_flight: InFlightGuard,
}

impl UnsentArchive {
    /// The connection copies each part it is given, so parts are kept small.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, UnsentArchive)> {
        // An empty part would be taken for the end.
        while self.parts.front().is_some_and(Bytes::is_empty) {
            self.parts.pop_front();
        }
        let front = self.parts.front_mut()?;
        let part = front.split_to(front.len().min(MAX_PART_BYTES));
        Some((Ok(part), self))
    }
}
