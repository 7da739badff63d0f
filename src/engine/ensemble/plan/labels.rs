//! Labels of an ensemble's outputs: its own, else those of the step output that produces them.

use std::sync::Arc;

use troupe_base::{
    config::ModelConfig,
    model::{ClassLabels, Model, OutputLabels},
};

/// Fills in what `own` lacks. A step that is an ensemble has inherited already.
pub fn labels(config: &ModelConfig, own: OutputLabels, steps: &[Arc<Model>]) -> OutputLabels {
    let outputs = config.outputs.iter().zip(own);
    outputs.map(|(output, own)| own.or_else(|| inherited(config, &output.name, steps))).collect()
}

fn inherited(
    config: &ModelConfig,
    tensor: &str,
    models: &[Arc<Model>],
) -> Option<Arc<ClassLabels>> {
    let steps = config.ensemble.iter().flat_map(|it| &it.steps).zip(models);
    steps.into_iter().find_map(|(step, model)| {
        let (output, _) = step.outputs.iter().find(|(_, it)| *it == tensor)?;
        model.labels(model.config.output_index(output)?).cloned()
    })
}
