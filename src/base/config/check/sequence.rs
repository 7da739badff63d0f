//! Checks `sequence_batching`: its strategy, its control inputs and what goes with them.

use std::{collections::HashSet, time::Duration};

use super::{report::ConfigReport, sequence_state};
use crate::config::sequence::{
    ControlKind, DirectSequences, OldestSequences, SequenceBatching, SequenceControl, SequenceFlag,
    SequenceStrategy,
};
use crate::tensor::DataType;
use troupe_proto::inference::{
    ModelConfig, ModelSequenceBatching,
    model_sequence_batching::{
        Control, StrategyChoice, StrategyDirect, StrategyOldest, control::Kind,
    },
};

/// Where everything of it stands.
const PATH: &str = "sequence_batching";
/// The fields of a flag's values, one of which it must have.
const VALUES: [&str; 3] = ["int32_false_true", "fp32_false_true", "bool_false_true"];

/// The checked sequence batching; what has problems may be missing.
pub(super) fn batching(
    config: &ModelConfig,
    written: &ModelSequenceBatching,
    report: &mut ConfigReport<'_>,
) -> SequenceBatching {
    let strategy = match &written.strategy_choice {
        None => SequenceStrategy::Direct(DirectSequences::default()),
        Some(StrategyChoice::Direct(it)) => SequenceStrategy::Direct(direct(it, report)),
        Some(StrategyChoice::Oldest(it)) => SequenceStrategy::Oldest(oldest(config, it, report)),
    };
    let mut names = config.input.iter().map(|it| it.name.as_str()).collect::<HashSet<_>>();
    let computed = config.batch_input.iter().flat_map(|it| &it.target_name);
    names.extend(computed.map(String::as_str));
    let controls = controls(written, &mut names, report);
    SequenceBatching {
        strategy,
        max_idle: Duration::from_micros(written.max_sequence_idle_microseconds),
        controls,
        states: sequence_state::states(config, written, &mut names, report),
        is_iterative: written.iterative_sequence,
    }
}

fn direct(written: &StrategyDirect, report: &mut ConfigReport<'_>) -> DirectSequences {
    let minimum_slot_utilization = written.minimum_slot_utilization;
    if !(0.0..=1.0).contains(&minimum_slot_utilization) {
        let text = "sequence batching minimum slot utilization must be in range (0.0, 1.0] for";
        let m = report.model;
        report.add(&format!("{PATH}.direct.minimum_slot_utilization"), format!("{text} {m}"));
    }
    let max_queue_delay = Duration::from_micros(written.max_queue_delay_microseconds);
    DirectSequences { max_queue_delay, minimum_slot_utilization }
}

fn oldest(
    config: &ModelConfig,
    written: &StrategyOldest,
    report: &mut ConfigReport<'_>,
) -> OldestSequences {
    let m = report.model;
    let path = format!("{PATH}.oldest.preferred_batch_size");
    let mut preferred = Vec::new();
    for size in &written.preferred_batch_size {
        match u32::try_from(*size) {
            Err(_) | Ok(0) => {
                let text = "sequence batching preferred batch size must be positive";
                report.add(&path, format!("{text} for {m}"));
            }
            Ok(_) if *size > config.max_batch_size => {
                let text = "sequence batching preferred batch size must be <= max batch size";
                report.add(&path, format!("{text} for {m}"));
            }
            Ok(size) => preferred.push(size),
        }
    }
    let max_candidates = u32::try_from(written.max_candidate_sequences).unwrap_or_else(|_| {
        let text = "sequence batching max candidate sequences must be non-negative";
        report.add(&format!("{PATH}.oldest.max_candidate_sequences"), format!("{text} for {m}"));
        0
    });
    let is_decoupled = config.model_transaction_policy.is_some_and(|policy| policy.decoupled);
    if written.preserve_ordering && is_decoupled {
        let text = "a decoupled model answers when it likes, so its answers have no order to keep";
        report.add(&format!("{PATH}.oldest.preserve_ordering"), format!("{text} for {m}"));
    }
    OldestSequences {
        max_candidates,
        preferred,
        max_queue_delay: Duration::from_micros(written.max_queue_delay_microseconds),
        preserve_ordering: written.preserve_ordering,
    }
}

/// `names` are those of the inputs that are not computed by sequences.
fn controls<'a>(
    written: &'a ModelSequenceBatching,
    names: &mut HashSet<&'a str>,
    report: &mut ConfigReport<'_>,
) -> Vec<SequenceControl> {
    let m = report.model;
    let (mut controls, mut kinds, mut tensors) = (Vec::new(), HashSet::new(), HashSet::new());
    for (index, input) in written.control_input.iter().enumerate() {
        let path = format!("{PATH}.control_input[{index}]");
        let name = &input.name;
        if name.is_empty() {
            report.add(&path, format!("sequence batching control tensor must have a name for {m}"));
        } else if !tensors.insert(name) || input.control.len() > 1 {
            let text = format!(
                "sequence batching control tensor '{name}' is specified for multiple control kinds \
                 for {m}"
            );
            report.add(&format!("{path}.name"), text);
        } else if !names.insert(name) {
            let text = format!(
                "sequence batching control tensor '{name}' is made by the server, so it cannot be \
                 in 'input' or 'batch_input' too, for {m}"
            );
            report.add(&format!("{path}.name"), text);
        }
        if input.control.is_empty() {
            let text = format!(
                "sequence batching control tensor '{name}' must specify a 'control' for {m}"
            );
            report.add(&path, text);
        }
        for (index, control) in input.control.iter().enumerate() {
            let path = format!("{path}.control[{index}]");
            if !kinds.insert(control.kind) {
                let kind = control.kind().as_str_name();
                let text = format!("sequence batching specifies multiple {kind} tensors for {m}");
                report.add(&path, text);
            }
            match kind(control, m) {
                Err(text) => report.add(&path, text),
                Ok((kind, dtype)) => {
                    let name = name.as_str().into();
                    controls.push(SequenceControl { name, dtype, kind });
                }
            }
        }
    }
    controls.retain(|it: &SequenceControl| !it.name.is_empty());
    controls
}

/// What one control says, and as which type.
fn kind(control: &Control, m: &str) -> Result<(ControlKind, DataType), String> {
    let kind = Kind::try_from(control.kind).map_err(|_| {
        format!("unknown sequence batching control kind '{}' for {m}", control.kind)
    })?;
    let flag = match kind {
        Kind::ControlSequenceStart => SequenceFlag::Start,
        Kind::ControlSequenceReady => SequenceFlag::Ready,
        Kind::ControlSequenceEnd => SequenceFlag::End,
        Kind::ControlSequenceCorrid => {
            return Ok((ControlKind::CorrelationId, id_type(control, kind.as_str_name(), m)?));
        }
    };
    let (dtype, values) = flag_values(control, &format!("{} for {m}", kind.as_str_name()))?;
    Ok((ControlKind::Flag(flag, values), dtype))
}

/// The type and the bytes of false and true. `kind` also names the model.
fn flag_values(control: &Control, kind: &str) -> Result<(DataType, [Vec<u8>; 2]), String> {
    let ints = control.int32_false_true.iter().map(|it| it.to_le_bytes().to_vec());
    let floats = control.fp32_false_true.iter().map(|it| it.to_le_bytes().to_vec());
    let bools = control.bool_false_true.iter().map(|it| vec![u8::from(*it)]);
    let all: [(DataType, Vec<Vec<u8>>); 3] = [
        (DataType::Int32, ints.collect()),
        (DataType::Fp32, floats.collect()),
        (DataType::Bool, bools.collect()),
    ];
    let [int32, fp32, bool] = VALUES;
    let mut given = VALUES.iter().zip(all).filter(|(_, (_, values))| !values.is_empty());
    let Some((field, (dtype, values))) = given.next() else {
        return Err(format!(
            "sequence batching must specify either '{int32}', '{fp32}' or '{bool}' for {kind}"
        ));
    };
    if given.next().is_some() {
        return Err(format!(
            "sequence batching specifies more than one from '{int32}', '{fp32}' and '{bool}' for \
             {kind}"
        ));
    }
    match <[Vec<u8>; 2]>::try_from(values) {
        Ok(values) => Ok((dtype, values)),
        Err(_) => Err(format!(
            "sequence batching control '{field}' must have exactly 2 entries for {kind}"
        )),
    }
}

fn id_type(control: &Control, kind: &str, m: &str) -> Result<DataType, String> {
    let Control { int32_false_true, fp32_false_true, bool_false_true, .. } = control;
    if !(int32_false_true.is_empty() && fp32_false_true.is_empty() && bool_false_true.is_empty()) {
        let [int32, fp32, bool] = VALUES;
        return Err(format!(
            "sequence batching must not specify either '{int32}', '{fp32}' or '{bool}' for {kind} \
             for {m}"
        ));
    }
    let dtype = DataType::from_proto(control.data_type);
    let allowed = |it: &DataType| {
        matches!(
            it,
            DataType::Uint64
                | DataType::Int64
                | DataType::Uint32
                | DataType::Int32
                | DataType::Bytes
        )
    };
    dtype.filter(allowed).ok_or_else(|| {
        format!(
            "unexpected data type for control {kind} for {m}. Allowed data types are TYPE_UINT64, \
             TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
    })
}
