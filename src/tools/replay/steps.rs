//! Which steps of a captured ensemble run, and in which order.

use std::collections::HashMap;

use troupe_base::tap::manifest::{Manifest, ManifestRequest, ManifestStep};

/// A step in its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ScheduledStep {
    /// Its position in the config.
    pub(super) index: usize,
    /// How many decoupled steps lie before it.
    pub(super) level: usize,
    /// It is asked again; the others' tensors are taken from the capture.
    pub(super) runs: bool,
    /// The longest way from the client, in steps.
    depth: usize,
}

/// The steps from `from` on run: it, those behind it in the config, and all that read from these.
/// In an order in which producers come before consumers, and decoupled steps end their level.
pub(super) fn places(manifest: &Manifest, from: usize) -> Result<Vec<ScheduledStep>, String> {
    let steps = &manifest.steps;
    let writers = writers(steps);
    let mut places: Vec<Option<ScheduledStep>> = vec![None; steps.len()];
    for _ in steps {
        // Each round finds at least one, unless they go round in a circle.
        for step in steps {
            let all: Option<Vec<&ScheduledStep>> =
                before(step, &writers).map(|it| places[it].as_ref()).collect();
            let Some(all) = all.filter(|_| places[step.step].is_none()) else { continue };
            let level = |it: &&ScheduledStep| it.level + usize::from(steps[it.index].decoupled);
            let place = ScheduledStep {
                index: step.step,
                level: all.iter().map(level).max().unwrap_or(0),
                depth: all.iter().map(|it| it.depth + 1).max().unwrap_or(0),
                runs: from <= step.step || all.iter().any(|it| it.runs),
            };
            places[step.step] = Some(place);
        }
    }
    let places: Option<Vec<ScheduledStep>> = places.into_iter().collect();
    let mut places = places.ok_or("the steps in its manifest.json wait for each other")?;
    places.sort_by_key(|it| (it.level, steps[it.index].decoupled, it.depth, it.index));
    Ok(places)
}

/// The step that `name` means: an index, or the name of one model.
pub(super) fn find(manifest: &Manifest, name: &str) -> Result<usize, String> {
    let told = |steps: &mut dyn Iterator<Item = &ManifestStep>| {
        let all: Vec<_> = steps.map(|it| format!("{} ({})", it.step, it.model)).collect();
        all.join(", ")
    };
    let steps = &manifest.steps;
    let index = name.parse().ok().filter(|it| *it < steps.len());
    let mut named = steps.iter().filter(|it| it.model == name);
    match (index, named.next(), named.next()) {
        (Some(index), ..) => Ok(index),
        (None, Some(only), None) => Ok(only.step),
        (None, None, _) => Err(format!(
            "--from {name}: there is no such step; those of `{}` are {}",
            manifest.ensemble,
            told(&mut steps.iter())
        )),
        (None, Some(_), Some(_)) => Err(format!(
            "--from {name}: several steps run this model, say which by its index: {}",
            told(&mut steps.iter().filter(|it| it.model == name))
        )),
    }
}

/// For each step: do the outputs that this request asked for need it?
pub(super) fn live(manifest: &Manifest, request: &ManifestRequest) -> Vec<bool> {
    let steps = &manifest.steps;
    let writers = writers(steps);
    let mut is_live = vec![false; steps.len()];
    let mut found: Vec<usize> =
        request.outputs.iter().filter_map(|it| writers.get(&**it).copied()).collect();
    while let Some(index) = found.pop() {
        if !std::mem::replace(&mut is_live[index], true) {
            found.extend(before(&steps[index], &writers));
        }
    }
    is_live
}

/// The step that writes each tensor.
pub(super) fn writers(steps: &[ManifestStep]) -> HashMap<&str, usize> {
    let pairs = steps.iter().flat_map(|step| step.outputs.iter().map(move |it| (step, it)));
    pairs.map(|(step, (_, to))| (&**to, step.step)).collect()
}

/// Steps whose tensors this one reads.
fn before<'a>(
    step: &'a ManifestStep,
    writers: &'a HashMap<&str, usize>,
) -> impl Iterator<Item = usize> + 'a {
    step.inputs.iter().filter_map(|(_, from)| writers.get(&**from).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps read as `model: inputs -> outputs`, decoupled ones end with `!`.
    fn manifest(steps: &[&str], outputs: &[&str]) -> Manifest {
        let step = |(index, text): (usize, &&str)| {
            let (model, maps) = text.split_once(':').unwrap();
            let (reads, writes) = maps.trim_end_matches('!').split_once("->").unwrap();
            let map = |it: &str| -> Vec<(String, String)> {
                it.split_whitespace().map(|it| (it.to_owned(), it.to_owned())).collect()
            };
            serde_json::json!({
                "step": index, "model": model, "model_version": -1, "version": 1,
                "decoupled": maps.ends_with('!'), "inputs": map(reads), "outputs": map(writes),
            })
        };
        let steps: Vec<_> = steps.iter().enumerate().map(step).collect();
        let request = serde_json::json!({
            "request": 0, "id": "", "parameters": {}, "outputs": outputs, "batch_size": 0,
            "ended": true, "is_left_out": false, "errors": [], "more_errors": 0, "tensors": [],
            "left_out": [],
        });
        let manifest = serde_json::json!({
            "format": "", "ensemble": "e", "version": 1, "ended": "", "requested": 1,
            "max_bytes": 0, "bytes": 0, "left_out_bytes": 0, "edges": [], "inputs": ["IN"],
            "outputs": outputs, "steps": steps, "requests": [request],
        });
        serde_json::from_value(manifest).unwrap()
    }

    /// `index@level` in the order they run, `+` before those that do.
    #[track_caller]
    fn check(steps: &[&str], from: usize, expected: &str) {
        let text = match places(&manifest(steps, &["z"]), from) {
            Ok(places) => {
                let text = |it: &ScheduledStep| {
                    format!("{}{}@{}", if it.runs { "+" } else { "" }, it.index, it.level)
                };
                places.iter().map(text).collect::<Vec<_>>().join(" ")
            }
            Err(why) => why,
        };
        assert_eq!(text, expected);
    }

    #[test]
    fn producers_come_first_and_readers_run_with_them() {
        let branches = ["a: IN -> x", "b: x -> l", "c: x -> r", "d: l r -> z"];
        check(&branches, 0, "+0@0 +1@0 +2@0 +3@0");
        check(&branches, 2, "0@0 1@0 +2@0 +3@0");
        let reversed = ["d: l -> z", "b: x -> l", "a: IN -> x"];
        check(&reversed, 0, "+2@0 +1@0 +0@0");
        check(&reversed, 1, "+2@0 +1@0 +0@0");
        check(&reversed, 2, "+2@0 +1@0 +0@0");
        check(&["b: x -> z", "a: IN -> x"], 1, "+1@0 +0@0");
        check(&["a: y -> x", "b: x -> y"], 0, "the steps in its manifest.json wait for each other");
    }

    #[test]
    fn a_decoupled_step_ends_its_level() {
        let row = ["a: IN -> x!", "b: x -> y", "c: x y -> w!", "d: w -> z"];
        check(&row, 2, "0@0 1@1 +2@1 +3@2");
    }

    #[test]
    fn steps_have_indexes_and_names() {
        let manifest = manifest(&["a: IN -> x", "a: x -> y", "b: y -> z"], &["z"]);
        for (name, expected) in [
            ("1", Ok(1)),
            ("b", Ok(2)),
            (
                "a",
                Err("--from a: several steps run this model, say which by its index: 0 (a), 1 (a)"),
            ),
            ("3", Err("--from 3: there is no such step; those of `e` are 0 (a), 1 (a), 2 (b)")),
        ] {
            assert_eq!(find(&manifest, name), expected.map_err(str::to_owned));
        }
    }

    #[test]
    fn steps_that_no_asked_output_needs_did_not_run() {
        let manifest = manifest(&["a: IN -> x", "b: x -> z", "c: x -> other"], &["z"]);
        assert_eq!(live(&manifest, &manifest.requests[0]), [true, true, false]);
    }
}
