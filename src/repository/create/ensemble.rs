//! Writes an ensemble of models that are there: reads their signatures, wires them, writes the
//! config.

use std::{fmt::Write, sync::Arc, time::Instant};

use super::{
    config_text, example,
    folder::{NewFolder, next_steps},
    signature,
    wiring::{self, Found, Source, Step, Wiring, form},
};
use crate::check;
use troupe_base::config::ModelConfig;
use troupe_options::NewEnsembleArguments;

/// The steps of an ensemble, and how they are wired.
pub(super) struct WiredSteps {
    configs: Vec<Arc<ModelConfig>>,
    pub(super) steps: Vec<Step>,
    pub(super) wiring: Wiring,
}

impl WiredSteps {
    /// Reads the signatures of the steps.
    pub(super) fn of(asked: &NewEnsembleArguments) -> Result<WiredSteps, String> {
        let settings = signature::settings(&asked.target);
        let configs = signature::read(&settings, &asked.steps);
        settings.backends.wait_for_workers(Instant::now());
        let configs = configs?;
        let is_batched = configs.iter().all(|it| 0 < it.max_batch_size);
        let steps: Vec<Step> = configs.iter().map(|it| signature::step(it, is_batched)).collect();
        let wiring = wiring::wire(&steps);
        Ok(WiredSteps { configs, steps, wiring })
    }
}

/// Writes it; what was wired how, what was not, and what to run next.
pub(super) fn create(asked: &NewEnsembleArguments) -> Result<String, String> {
    let plan = WiredSteps::of(asked)?;
    let config = config(asked, &plan);
    // Git keeps no empty folders.
    made(asked, &plan, &[("config.pbtxt", &config), ("1/.gitkeep", "")])
}

/// Writes these files; what was wired how, what was not, and what to run next.
pub(super) fn made(
    asked: &NewEnsembleArguments,
    plan: &WiredSteps,
    files: &[(&str, &str)],
) -> Result<String, String> {
    let WiredSteps { steps, wiring, .. } = plan;
    let folder = NewFolder::make(&asked.target, &asked.name)?;
    files.iter().try_for_each(|(file, text)| folder.write(file, text))?;
    let path = folder.path.display().to_string();
    let mut text = format!("made {path}\n{}", wires(steps, wiring));
    for note in &wiring.notes {
        // Writing to a String does not fail.
        let _ = writeln!(text, "note: {note}");
    }
    // Those that read the signatures have ended their interpreters.
    let settings = signature::settings(&asked.target);
    let problems = check(&settings).problems;
    settings.backends.wait_for_workers(Instant::now());
    for problem in problems.iter().filter(|it| it.starts_with(&path)) {
        let _ = writeln!(text, "to mend before it loads: {problem}");
    }
    folder.keep();
    let infer = example::infer(&asked.name, &wiring.inputs);
    Ok(text + &next_steps(&asked.target, &infer))
}

fn config(asked: &NewEnsembleArguments, plan: &WiredSteps) -> String {
    let WiredSteps { configs, steps, wiring, .. } = plan;
    let mut text = String::from(
        "# An ensemble runs models one after the other, or side by side where none needs another.\n\
         # input_map: which tensor each input of the model reads; output_map: what the ensemble calls\n\
         # its outputs. Here `key` is the model's name of it, `value` the ensemble's.\n\
         platform: \"ensemble\"\n",
    );
    let rows = configs.iter().map(|it| it.max_batch_size).min().unwrap_or(0);
    // Writing to a String does not fail.
    let _ = match rows {
        0 => Ok(()),
        rows => writeln!(text, "max_batch_size: {rows}"),
    };
    text += &config_text::tensors("input", &wiring.inputs);
    text += &config_text::tensors("output", &wiring.outputs);
    let parts: Vec<String> =
        (0..steps.len()).map(|index| step(&asked.steps[index], index, steps, wiring)).collect();
    let _ = writeln!(text, "ensemble_scheduling {{\n  step [\n{}\n  ]\n}}", parts.join(",\n"));
    text
}

fn step(model: &str, index: usize, steps: &[Step], wiring: &Wiring) -> String {
    let name = config_text::quoted(model);
    let mut text = format!("    {{\n      model_name: {name}\n      model_version: -1\n");
    for (input, source) in steps[index].inputs.iter().zip(&wiring.sources[index]) {
        let tensor = match source {
            Source::Output { step, output, .. } => &wiring.output_names[*step][*output],
            Source::Input(position) => &wiring.inputs[*position].name,
            Source::Absent => continue,
        };
        config_text::map(&mut text, "input_map", &input.name, tensor);
    }
    for (output, name) in steps[index].outputs.iter().zip(&wiring.output_names[index]) {
        config_text::map(&mut text, "output_map", &output.name, name);
    }
    text + "    }"
}

/// Which tensor goes where, a line each, and how that was found.
fn wires(steps: &[Step], wiring: &Wiring) -> String {
    let mut rows = Vec::new();
    for (step, sources) in steps.iter().zip(&wiring.sources) {
        for (input, source) in step.inputs.iter().zip(sources) {
            let to = format!("{}.{}", step.model, input.name);
            rows.push(match source {
                Source::Input(position) => [wiring.inputs[*position].name.clone(), to, form(input)],
                Source::Output { step, output, found } => {
                    let from = &steps[*step];
                    let from = format!("{}.{}", from.model, from.outputs[*output].name);
                    let found = match found {
                        Found::Name => ", by name",
                        Found::Type => ", by type",
                        Found::Order => ", in their order: the types are the same",
                    };
                    [from, to, form(input) + found]
                }
                Source::Absent => ["-".to_owned(), to, "optional, left out".to_owned()],
            });
        }
    }
    for (step, names) in steps.iter().zip(&wiring.output_names) {
        for (output, name) in step.outputs.iter().zip(names) {
            if wiring.outputs.iter().any(|it| it.name == *name) {
                let from = format!("{}.{}", step.model, output.name);
                rows.push([from, name.clone(), form(output)]);
            }
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let (from, to) = (width(0).unwrap_or(0), width(1).unwrap_or(0));
    rows.iter().map(|[a, b, how]| format!("  {a:from$} -> {b:to$}  {how}\n")).collect()
}
