//! Checks the warm-up samples of a model as they are written, before its inputs are known for sure.

use super::{report::ConfigReport, tensors::stays_inside};
use crate::config::problem::Problem;
use crate::config::text::MapConflict;
use crate::config::types::{Warmup, WarmupData, WarmupInput};
use crate::tensor::DataType;
use troupe_proto::inference::{
    ModelConfig, ModelWarmup,
    model_warmup::{Input, input::InputDataType},
};

/// The samples in the order of the file; inputs with problems may be missing.
pub(super) fn samples(
    config: &ModelConfig,
    conflicts: &[MapConflict],
    report: &mut ConfigReport<'_>,
) -> Vec<Warmup> {
    let written = config.model_warmup.iter().enumerate();
    written.map(|(index, it)| sample(index, it, conflicts, report)).collect()
}

fn sample(
    index: usize,
    written: &ModelWarmup,
    conflicts: &[MapConflict],
    report: &mut ConfigReport<'_>,
) -> Warmup {
    let map = format!("model_warmup[{index}].inputs");
    let mut inputs = Vec::new();
    // Triton does not look at a sample that it skips.
    if written.batch_size != 0 {
        for conflict in conflicts.iter().filter(|it| it.map == map) {
            let (name, key) = (&written.name, &conflict.key);
            let text = format!("warmup sample '{name}' specifies input '{key}' more than once");
            report.problems.push(Problem { position: report.source_map.at(conflict.at), text });
        }
        let checked = written.inputs.iter().filter_map(|(name, it)| {
            input(name, it, report).map_err(|text| report.add(&path(index, name), text)).ok()
        });
        inputs = checked.collect();
    }
    Warmup {
        name: written.name.clone(),
        batch_size: written.batch_size,
        count: written.count.max(1),
        inputs,
    }
}

/// Where an input of a sample stands.
fn path(sample: usize, input: &str) -> String {
    format!("model_warmup[{sample}].inputs[\"{input}\"]")
}

fn input(name: &str, written: &Input, report: &ConfigReport<'_>) -> Result<WarmupInput, String> {
    let m = report.model;
    let dtype = DataType::from_proto(written.data_type)
        .ok_or_else(|| format!("warmup input '{name}' must specify 'data_type' for {m}"))?;
    if written.dims.contains(&-1) {
        return Err(format!(
            "warmup setting expects all variable-size dimensions are specified for input '{name}'"
        ));
    }
    let data = match &written.input_data_type {
        // As in Triton, writing the field asks for it, whatever its value.
        Some(InputDataType::ZeroData(_)) => WarmupData::Zero,
        Some(InputDataType::RandomData(_)) => WarmupData::Random,
        Some(InputDataType::InputDataFile(file)) if stays_inside(file) => {
            WarmupData::File(file.clone())
        }
        Some(InputDataType::InputDataFile(file)) => {
            return Err(format!(
                "warmup file path '{file}' for input '{name}' in model '{m}' is outside the \
                 model's warmup directory"
            ));
        }
        None => {
            return Err(format!(
                "warmup setting expects input '{name}' to have input_data_type set"
            ));
        }
    };
    Ok(WarmupInput { name: name.to_owned(), dtype, dims: written.dims.clone(), data })
}
