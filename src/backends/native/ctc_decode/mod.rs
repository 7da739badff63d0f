//! `ctc_decode`: the logits of a text recogniser to text, the best symbol of each step (greedy
//! CTC).
//!
//! Repeats are one symbol, blanks none. By position, names are free. Input: `logits` FP32 [n,T,C],
//! or [T,n,C] with `layout` TNC; dims [T,C] for models that batch. Outputs: `text` BYTES in UTF-8
//! and, if the config has it, `confidence` FP32, the mean probability (softmax) of the symbols in
//! the text, each where it is likeliest, and 0 for no text; both [n], or [n,1] for models that
//! batch (dims [1]).

#[cfg(test)]
mod tests;

use bytes::Bytes;

use super::{
    op::{Op, expect},
    parameters::Parameters,
    tensors::{Floats, floats, reads, take, writes, written},
};
use troupe_base::{
    backend::{Placement, Tensors},
    config::{ModelConfig, Output},
    error::{Error, Result},
    tensor::{DataType, Shape, Tensor, shape_text},
};

const DIGITS_AND_LETTERS: &str = "0123456789abcdefghijklmnopqrstuvwxyz";

/// Logits that are looked through in well under 100 microseconds.
const MAX_QUICK_LOGITS: i64 = 1 << 16;
/// Where probabilities are asked for too, which takes an `exp` for each.
const MAX_QUICK_PROBABILITIES: i64 = 1 << 13;

struct CtcDecode {
    /// What each class reads as; `None` for the blank.
    symbols: Vec<Option<char>>,
    steps_first: bool,
    /// The input's name.
    name: String,
    /// How many dimensions each output has after `n`.
    inner: Vec<usize>,
}

/// Where one row's logits are.
struct RowLogits {
    start: usize,
    /// From one step to the next.
    stride: usize,
    steps: usize,
}

pub(super) fn prepare(config: &ModelConfig) -> Result<Op> {
    let parameters = Parameters::of(config, &["alphabet", "blank", "layout", "mode"])?;
    let alphabet = parameters.text("alphabet").unwrap_or(DIGITS_AND_LETTERS);
    let letters: Vec<char> = alphabet.chars().collect();
    if letters.is_empty() {
        return Err(parameters.wrong("alphabet", "the symbols of the classes in order"));
    }
    let blank = parameters.number("blank", 0, 0..=letters.len())?;
    let is_batched = 0 < config.max_batch_size;
    let steps_first = parameters.choice("layout", &[("NTC", false), ("TNC", true)])?;
    if steps_first && is_batched {
        return Err(parameters.wrong("layout", "NTC, as the model batches"));
    }
    parameters.choice("mode", &[("greedy", ())])?;
    let mut symbols: Vec<_> = letters.into_iter().map(Some).collect();
    symbols.insert(blank, None);
    expect_tensors(config, symbols.len() as i64)?;
    let op = CtcDecode {
        symbols,
        steps_first,
        name: config.inputs[0].name.to_string(),
        inner: config
            .outputs
            .iter()
            .map(|it| written(it).len() - usize::from(!is_batched))
            .collect(),
    };
    Ok(Op::new(placement(config), move |inputs, _| op.run(inputs)))
}

fn expect_tensors(config: &ModelConfig, classes: i64) -> Result<()> {
    let wanted = match config.max_batch_size {
        0 => vec![-1, -1, classes],
        _ => vec![-1, classes],
    };
    let is_so = config.inputs.len() == 1
        && reads(&config.inputs[0], DataType::Fp32, &wanted)
        && !config.inputs[0].optional;
    let text = shape_text(&wanted);
    expect(config, is_so, &format!("one input FP32 {text}, the blank and each symbol a class"))?;
    let is_output = |output: &Output, dtype: DataType| match config.max_batch_size {
        0 => writes(output, dtype, &[-1]),
        _ => writes(output, dtype, &[1]) || writes(output, dtype, &[]),
    };
    let outputs = &config.outputs;
    let is_so = (1..=2).contains(&outputs.len())
        && is_output(&outputs[0], DataType::Bytes)
        && outputs[1..].iter().all(|it| is_output(it, DataType::Fp32));
    let dims = if config.max_batch_size == 0 { "[-1]" } else { "[1]" };
    expect(config, is_so, &format!("outputs STRING text {dims} and at most FP32 confidence {dims}"))
}

/// If the largest request is unknown or may be long, its bytes decide.
fn placement(config: &ModelConfig) -> Placement {
    let input = &config.inputs[0];
    let dims = input.reshape.as_ref().unwrap_or(&input.dims);
    let most = dims
        .iter()
        .try_fold(i64::from(config.max_batch_size.max(1)), |all, dim| all.checked_mul(*dim));
    let quick = match config.outputs.len() {
        1 => MAX_QUICK_LOGITS,
        _ => MAX_QUICK_PROBABILITIES,
    };
    let is_known = dims.iter().all(|it| 0 <= *it);
    let is_quick = is_known && most.is_some_and(|it| it <= quick);
    match is_quick {
        true => Placement::Shared,
        false => Placement::SharedUpTo(quick as usize * size_of::<f32>()),
    }
}

impl CtcDecode {
    fn run(&self, mut inputs: Tensors) -> Result<Tensors> {
        let classes = self.symbols.len();
        let logits = take(&mut inputs, 0, &self.name, &[-1, -1, classes as i64])?;
        let (first, second) = (logits.shape()[0] as usize, logits.shape()[1] as usize);
        let (count, steps) = if self.steps_first { (second, first) } else { (first, second) };
        if steps == 0 && count != 0 {
            // No bytes stand behind such a count, so it could be any.
            return Err(Error::invalid(format!("input `{}` has no steps to read", self.name)));
        }
        let mut text = Vec::new();
        let mut confidences = Vec::new();
        for index in 0..count {
            let (start, stride) = match self.steps_first {
                true => (index * classes, count * classes),
                false => (index * steps * classes, classes),
            };
            let row = RowLogits { start, stride, steps };
            let place = text.len();
            text.extend_from_slice(&[0; 4]);
            confidences.push(self.read(Floats::of(&logits), &row, index, &mut text)?);
            let length = text.len() - place - 4;
            let length = u32::try_from(length)
                .map_err(|_| Error::invalid(format!("text {index} is too long")))?;
            text[place..place + 4].copy_from_slice(&length.to_le_bytes());
        }
        let shape = |inner: usize| -> Shape {
            std::iter::once(count as i64).chain(std::iter::repeat_n(1, inner)).collect()
        };
        let text = Tensor::new(DataType::Bytes, shape(self.inner[0]), Bytes::from(text))?;
        let mut outputs = vec![Some(text)];
        if let Some(inner) = self.inner.get(1) {
            outputs.push(Some(floats(&shape(*inner), confidences)?));
        }
        Ok(outputs)
    }

    /// Appends one text; answers its confidence.
    fn read(
        &self,
        logits: Floats<'_>,
        row: &RowLogits,
        index: usize,
        text: &mut Vec<u8>,
    ) -> Result<f32> {
        let classes = self.symbols.len();
        let is_wanted = 1 < self.inner.len();
        let (mut total, mut best, mut symbols) = (0.0, 0.0_f32, 0);
        let mut last = None;
        for step in 0..row.steps {
            let at = row.start + step * row.stride;
            let Some(class) = likeliest(logits.range(at, classes)) else {
                return Err(Error::invalid(format!(
                    "input `{}` has no number but NaN and -inf in row {index}, step {step}",
                    self.name
                )));
            };
            let is_new = last != Some(class);
            last = Some(class);
            let Some(symbol) = self.symbols[class] else { continue };
            if is_new {
                text.extend_from_slice(symbol.encode_utf8(&mut [0; 4]).as_bytes());
                symbols += 1;
                total += best;
                best = 0.0;
            }
            if is_wanted {
                best = best.max(probability(logits.range(at, classes), class));
            }
        }
        Ok(if symbols == 0 { 0.0 } else { (total + best) / symbols as f32 })
    }
}

/// The first class with the greatest logit; `None` when no logit is above -inf.
fn likeliest(logits: Floats<'_>) -> Option<usize> {
    let (mut found, mut greatest) = (None, f32::NEG_INFINITY);
    for (class, logit) in logits.iter().enumerate() {
        if greatest < logit {
            (found, greatest) = (Some(class), logit);
        }
    }
    found
}

/// The softmax of the class with the greatest logit.
fn probability(logits: Floats<'_>, class: usize) -> f32 {
    let [greatest] = logits.array(class);
    let part = |logit: f32| match logit == greatest {
        true => 1.0,
        false if logit.is_nan() => 0.0,
        false => (logit - greatest).exp(),
    };
    1.0 / logits.iter().map(part).sum::<f32>()
}
