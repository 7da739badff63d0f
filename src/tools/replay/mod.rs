//! `troupe replay`: runs captured requests again and names the first tensor that differs.

mod capture;
mod compare;
mod models;
mod report;
mod run;
mod steps;

use tokio::runtime::Builder;

use self::{capture::CaptureFile, models::Models, run::RequestReplay, steps::ScheduledStep};
use troupe_options::{ReplayArguments, Requests};

/// What a replay found.
#[derive(Debug)]
pub struct Replayed {
    /// To be printed.
    pub text: String,
    /// All tensors are byte by byte what they were.
    pub is_equal: bool,
}

/// Runs the steps again, or says why that cannot be done.
pub fn replay(arguments: &ReplayArguments) -> Result<Replayed, String> {
    let capture = capture::read(&arguments.file)?;
    let places =
        steps::places(&capture.manifest, steps::find(&capture.manifest, &arguments.from)?)?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(run(arguments, &capture, &places))
}

async fn run(
    arguments: &ReplayArguments,
    capture: &CaptureFile,
    places: &[ScheduledStep],
) -> Result<Replayed, String> {
    let numbers = numbers(arguments.request, capture)?;
    let mut models = Models::connect(arguments).await?;
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for number in numbers {
        let (request, values) = (&capture.manifest.requests[number], &capture.values[number]);
        if request.is_left_out {
            left_out.push(number);
            continue;
        }
        let is_isolated = arguments.isolated;
        let manifest = &capture.manifest;
        let mut replay =
            RequestReplay { manifest, request, values, places, is_isolated, rows: Vec::new() };
        replay.run(&mut models).await.map_err(|why| format!("request {number}: {why}"))?;
        rows.append(&mut replay.rows);
    }
    let is_equal = report::is_equal(&rows).ok_or_else(|| match left_out.len() {
        0 => "nothing to compare: the capture has no tensor that these steps write".to_owned(),
        _ => "nothing to compare: these requests did not fit into the capture".to_owned(),
    })?;
    let text = if arguments.json {
        report::json(&rows, &left_out)
    } else {
        report::text(&rows, &left_out)
    };
    Ok(Replayed { text, is_equal })
}

fn numbers(wanted: Requests, capture: &CaptureFile) -> Result<Vec<usize>, String> {
    let count = capture.manifest.requests.len();
    match wanted {
        _ if count == 0 => Err("the capture has no requests".to_owned()),
        Requests::All => Ok((0..count).collect()),
        Requests::One(number) if number < count => Ok(vec![number]),
        Requests::One(number) => Err(format!(
            "--request {number}: there is no such request; the capture has {count}, the first is 0"
        )),
    }
}
