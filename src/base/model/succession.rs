//! When a model can hand requests of sequences to the one before a reload.

use crate::config::ModelConfig;

/// Does a request that was checked by the new config fit the old one, and does its answer fit whoever
/// asked the new one?
pub(super) fn can_succeed(new: &ModelConfig, old: &ModelConfig) -> bool {
    let both = new.sequences().is_some() && old.sequences().is_some();
    let batches = |config: &ModelConfig| config.max_batch_size != 0;
    both && (&new.inputs, &new.outputs) == (&old.inputs, &old.outputs)
        && batches(new) == batches(old)
        && new.decoupled == old.decoupled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ServerFeatures, read_text};

    fn config(batch: u32, dims: &str, more: &str) -> ModelConfig {
        let text = format!(
            "name: 'm' backend: 'native' max_batch_size: {batch} \
             input {{ name: 'x' data_type: TYPE_FP32 dims: {dims} }} \
             output {{ name: 'y' data_type: TYPE_FP32 dims: 1 }} {more}"
        );
        read_text(&text, "f").unwrap().finish(&ServerFeatures::default()).unwrap()
    }

    #[test]
    fn a_model_succeeds_one_that_takes_and_gives_the_same() {
        let oldest = "sequence_batching { oldest { } }";
        let decoupled = format!("{oldest} model_transaction_policy {{ decoupled: true }}");
        let old = config(4, "1", oldest);
        for (new, expected) in [
            (config(4, "1", oldest), true),
            (config(2, "1", "sequence_batching { direct { } }"), true),
            (config(0, "1", oldest), false),
            (config(4, "-1", oldest), false),
            (config(4, "1", ""), false),
            (config(4, "1", &decoupled), false),
        ] {
            assert_eq!(can_succeed(&new, &old), expected, "{:?}", new.proto);
            assert_eq!(can_succeed(&old, &new), expected, "{:?}", new.proto);
        }
    }
}
