//! Writes a pipeline in Python of models that are there: a call for each, wired as the steps of an
//! ensemble are.

use std::collections::BTreeSet;

use super::{
    config_text::quoted,
    ensemble::{WiredSteps, made},
    wiring::{Source, Step, Wiring},
};
use crate::disk::pipeline::PIPELINE_FILE;
use troupe_options::NewEnsembleArguments;

/// A call that would be a longer line has a line for each argument.
const MAX_LINE_LETTERS: usize = 88;

/// What is imported and called, which nothing else may be named.
const MODELS: &str = "models";

/// Words that cannot be names in Python.
const KEYWORDS: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];

/// Writes it; what was wired how, what was not, and what to run next.
pub(super) fn create(asked: &NewEnsembleArguments) -> Result<String, String> {
    let mut plan = WiredSteps::of(asked)?;
    let mut names = Names::default();
    // An input is a parameter of a function, which not every name can be.
    plan.wiring.inputs.iter_mut().for_each(|it| it.name = names.free(&it.name));
    let text = source(&asked.name, &plan.steps, &plan.wiring, &mut names);
    made(asked, &plan, &[(PIPELINE_FILE, &text)])
}

/// Names of one function in Python, each for one thing.
struct Names(BTreeSet<String>);

impl Default for Names {
    fn default() -> Names {
        Names([MODELS.to_owned()].into())
    }
}

impl Names {
    /// A name like this one that Python takes and that stands for nothing yet.
    fn free(&mut self, wanted: &str) -> String {
        let name = identifier(wanted);
        let numbered = (2..).map(|number| format!("{name}_{number}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        let free = names.find(|it| !self.0.contains(it)).expect("numbers do not end");
        self.0.insert(free.clone());
        free
    }
}

/// The name, or one like it that is a name in Python.
fn identifier(name: &str) -> String {
    let letter = |it: char| if it.is_ascii_alphanumeric() { it } else { '_' };
    let mut name: String = name.chars().map(letter).collect();
    if name.starts_with(|it: char| it.is_ascii_digit()) || name.is_empty() {
        name.insert(0, '_');
    }
    if KEYWORDS.contains(&&*name) {
        name.push('_');
    }
    name
}

fn source(name: &str, steps: &[Step], wiring: &Wiring, names: &mut Names) -> String {
    let mut variables: Vec<String> = Vec::new();
    let mut calls = String::new();
    for (step, sources) in steps.iter().zip(&wiring.sources) {
        let value = |source: &Source| match source {
            Source::Input(position) => Some(wiring.inputs[*position].name.clone()),
            Source::Output { step, output, .. } => {
                Some(result(&variables[*step], &steps[*step].outputs[*output].name))
            }
            Source::Absent => None,
        };
        let arguments = step.inputs.iter().zip(sources);
        let arguments: Vec<(&str, String)> =
            arguments.filter_map(|(input, it)| Some((&*input.name, value(it)?))).collect();
        let variable = names.free(&step.model);
        calls += &call(&variable, &step.model, &arguments);
        variables.push(variable);
    }
    let mut results = Vec::new();
    for ((step, variable), names) in steps.iter().zip(&variables).zip(&wiring.output_names) {
        for (output, name) in step.outputs.iter().zip(names) {
            if wiring.outputs.iter().any(|it| it.name == *name) {
                results.push(format!("{}: {}", quoted(name), result(variable, &output.name)));
            }
        }
    }
    // Python wants parameters with a default behind the others.
    let (optional, needed): (Vec<_>, Vec<_>) = wiring.inputs.iter().partition(|it| it.is_optional);
    let optional = optional.into_iter().map(|it| format!("{}=None", it.name));
    let parameters: Vec<String> =
        needed.into_iter().map(|it| it.name.clone()).chain(optional).collect();
    format!(
        "\"\"\"{name}: an ensemble of models. Write which tensor goes where.\"\"\"\n\n\
         # This runs once, when the pipeline is loaded: a call is a step, a parameter is an input, and what\n\
         # is returned are the outputs. Requests go from model to model without Python.\n\
         from troupe import models, pipeline\n\n\n\
         @pipeline\ndef {}({}) -> dict:\n{calls}    return {{{}}}\n",
        Names::default().free(name),
        parameters.join(", "),
        results.join(", ")
    )
}

/// An output of a step.
fn result(variable: &str, output: &str) -> String {
    format!("{variable}[{}]", quoted(output))
}

/// The line of a step.
fn call(variable: &str, model: &str, arguments: &[(&str, String)]) -> String {
    let model = match identifier(model) == model && !model.starts_with('_') {
        true => format!("models.{model}"),
        false => format!("models[{}]", quoted(model)),
    };
    let (named, others): (Vec<_>, Vec<_>) =
        arguments.iter().partition(|(name, _)| identifier(name) == **name);
    let mut parts: Vec<String> =
        named.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if !others.is_empty() {
        let others: Vec<String> =
            others.iter().map(|(name, value)| format!("{}: {value}", quoted(name))).collect();
        parts.push(format!("**{{{}}}", others.join(", ")));
    }
    let line = format!("    {variable} = {model}({})\n", parts.join(", "));
    if line.len() <= MAX_LINE_LETTERS {
        return line;
    }
    let parts: String = parts.iter().map(|it| format!("        {it},\n")).collect();
    format!("    {variable} = {model}(\n{parts}    )\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::{testing::tensors, wiring};

    #[test]
    fn each_step_is_a_call_with_names_that_python_takes() {
        let step = |model: &str, inputs: &str, outputs: &str| Step {
            model: model.to_owned(),
            inputs: tensors(inputs),
            outputs: tensors(outputs),
        };
        let steps = [
            step("text", "text:BYTES[1]", "words:BYTES[-1]"),
            step("a-b", "in:BYTES[-1] size:INT64[1]", "x:FP32[4]"),
            step("a-b", "in:BYTES[-1] size:INT64[1]", "x:FP32[4]"),
        ];
        let mut wiring = wiring::wire(&steps);
        let mut names = Names::default();
        wiring.inputs.iter_mut().for_each(|it| it.name = names.free(&it.name));
        assert!(source("models", &steps, &wiring, &mut names).contains("\ndef models_2("));
        let mut names = Names::default();
        wiring.inputs.iter_mut().for_each(|it| it.name = names.free(&it.name));
        let text = source("2nd", &steps, &wiring, &mut names);
        let (_, function) = text.split_once("@pipeline\n").unwrap();
        assert_eq!(
            function,
            "def _2nd(text, size, in_) -> dict:
    text_2 = models.text(text=text)
    a_b = models[\"a-b\"](size=size, **{\"in\": text_2[\"words\"]})
    a_b_2 = models[\"a-b\"](size=size, **{\"in\": in_})
    return {\"x\": a_b[\"x\"], \"a-b_x\": a_b_2[\"x\"]}
"
        );
    }
}
