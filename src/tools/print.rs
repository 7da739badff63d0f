//! Prints an answer: outputs with as many rows side by side in one table, or all of it as JSON.

use serde_json::{Map, Value};

use super::elements::Elements;
use troupe_base::{
    table::table,
    tensor::{DataType, Shape, Tensor, element_count, shape_text},
};
use troupe_proto::inference::{
    InferParameter, ModelInferResponse, infer_parameter::ParameterChoice,
};

/// How much of long tensors is printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrintLimits {
    rows: usize,
    /// Of one row.
    elements: usize,
    /// Of one string.
    characters: usize,
}

impl PrintLimits {
    /// What fits on a page.
    pub(super) const SHORT: PrintLimits = PrintLimits { rows: 20, elements: 16, characters: 120 };
    /// All there is.
    pub(super) const NONE: PrintLimits =
        PrintLimits { rows: usize::MAX, elements: usize::MAX, characters: usize::MAX };
}

/// One output of an answer.
struct ShownOutput<'a> {
    name: &'a str,
    tensor: Tensor,
    /// All outputs are a batch of one row, which is as good as no batch.
    is_one_row: bool,
}

impl ShownOutput<'_> {
    /// The dimensions that are shown.
    fn dims(&self) -> &[i64] {
        &self.tensor.shape()[usize::from(self.is_one_row)..]
    }
}

/// The tables of an answer, in the order of its outputs.
pub(super) fn tables(answer: &ModelInferResponse, limits: PrintLimits) -> Result<String, String> {
    let outputs = outputs(answer)?;
    let mut groups: Vec<Vec<&ShownOutput<'_>>> = Vec::new();
    for output in &outputs {
        let rows = |it: &ShownOutput<'_>| it.dims().first().copied();
        match groups.iter_mut().find(|group| rows(group[0]) == rows(output)) {
            Some(group) => group.push(output),
            None => groups.push(vec![output]),
        }
    }
    let mut tables: Vec<String> = groups.iter().map(|it| side_by_side(it, limits)).collect();
    let mut parameters: Vec<_> =
        answer.parameters.iter().filter(|(name, it)| !is_usual(name, it)).collect();
    if !parameters.is_empty() {
        parameters.sort_by_key(|it| it.0);
        let row = |(name, it): &(&String, &InferParameter)| vec![(*name).clone(), text(it)];
        let rows: Vec<_> = parameters.iter().map(row).collect();
        tables.push(table(&["Parameter", "Value"], &rows));
    }
    Ok(tables.concat())
}

/// Ensembles answer with these also where there is no sequence.
fn is_usual(name: &str, it: &InferParameter) -> bool {
    match (name, &it.parameter_choice) {
        ("sequence_id", Some(ParameterChoice::Int64Param(it))) => *it == 0,
        ("sequence_id", Some(ParameterChoice::Uint64Param(it))) => *it == 0,
        ("sequence_start" | "sequence_end", Some(ParameterChoice::BoolParam(it))) => !it,
        _ => false,
    }
}

/// The answer as one line, its data nested as its shapes say.
pub(super) fn json(answer: &ModelInferResponse) -> Result<String, String> {
    let mut text = format!(
        "{{\"model_name\":{},\"model_version\":{}",
        Value::from(&*answer.model_name),
        Value::from(&*answer.model_version)
    );
    if !answer.parameters.is_empty() {
        let pairs = answer.parameters.iter().map(|(name, it)| (name.clone(), value(it)));
        text += &format!(",\"parameters\":{}", Value::Object(pairs.collect::<Map<_, _>>()));
    }
    text += ",\"outputs\":[";
    for (index, ShownOutput { name, tensor, .. }) in outputs(answer)?.iter().enumerate() {
        let (dtype, elements) = (tensor.dtype().as_str(), Elements::new(tensor));
        let element = |it| elements.json(it);
        let mut nested = Nested { element: &element, next: 0, left: usize::MAX, comma: "," };
        let (comma, name) = (if index == 0 { "" } else { "," }, Value::from(*name));
        text += &format!("{comma}{{\"name\":{name},\"datatype\":\"{dtype}\",\"shape\":");
        text += &format!("{},\"data\":", shape_text(tensor.shape()));
        nested.write(tensor.shape(), &mut text);
        text.push('}');
    }
    text += "]}\n";
    Ok(text)
}

fn outputs(answer: &ModelInferResponse) -> Result<Vec<ShownOutput<'_>>, String> {
    let one = |(name, tensor)| ShownOutput { name, tensor, is_one_row: false };
    let mut all: Vec<_> = tensors(answer)?.into_iter().map(one).collect();
    if all.iter().all(|it| matches!(it.tensor.shape(), [1, _, ..])) {
        all.iter_mut().for_each(|it| it.is_one_row = true);
    }
    Ok(all)
}

/// The outputs of an answer by name, checked: it may come from any server.
pub(super) fn tensors(answer: &ModelInferResponse) -> Result<Vec<(&str, Tensor)>, String> {
    let mut all = Vec::new();
    for (index, output) in answer.outputs.iter().enumerate() {
        let wrong = |why: &str| format!("the server's answer for `{}` {why}", output.name);
        let dtype = DataType::parse(&output.datatype);
        let dtype = dtype.ok_or_else(|| wrong(&format!("is of type `{}`", output.datatype)))?;
        let data = answer.raw_output_contents.get(index).cloned();
        let data = data.ok_or_else(|| wrong("has no data"))?;
        let tensor = Tensor::new(dtype, Shape::from_slice(&output.shape), data);
        let tensor = tensor.map_err(|it| wrong(&format!("cannot be read: {it}")))?;
        all.push((&*output.name, tensor));
    }
    Ok(all)
}

fn side_by_side(outputs: &[&ShownOutput<'_>], limits: PrintLimits) -> String {
    let has_elements = |it: &&ShownOutput<'_>| !it.dims().contains(&0);
    let rows = outputs[0].dims().first().map_or(1, |it| *it as usize);
    let rows = if outputs.iter().any(has_elements) { rows } else { 0 };
    let shown = rows.min(limits.rows);
    let header = |it: &&ShownOutput<'_>| {
        let (dtype, shape) = (it.tensor.dtype().as_str(), shape_text(it.tensor.shape()));
        format!("{}\n{dtype} {shape}", it.name)
    };
    let mut header: Vec<String> = outputs.iter().map(header).collect();
    let mut columns: Vec<Vec<String>> =
        outputs.iter().map(|it| column(it, shown, limits)).collect();
    if 1 < rows {
        header.insert(0, String::new());
        columns.insert(0, (0..shown).map(|it| it.to_string()).collect());
    }
    let row = |index: usize| columns.iter().map(|it| it[index].clone()).collect();
    let mut cells: Vec<Vec<String>> = (0..shown).map(row).collect();
    if shown < rows {
        let mut last = vec![String::new(); header.len()];
        last[0] = "…".to_owned();
        last[1] = format!("… {} more", rows - shown);
        cells.push(last);
    }
    table(&header.iter().map(String::as_str).collect::<Vec<_>>(), &cells)
}

/// A cell for each of the first rows.
fn column(output: &ShownOutput<'_>, rows: usize, limits: PrintLimits) -> Vec<String> {
    let elements = Elements::new(&output.tensor);
    let element = |it| elements.text(it, limits.characters);
    let dims = output.dims().get(1..).unwrap_or_default();
    let each = element_count(dims).unwrap_or(0);
    let cell = |row: usize| {
        let (next, left) = (row * each, limits.elements);
        let mut text = String::new();
        Nested { element: &element, next, left, comma: ", " }.write(dims, &mut text);
        text
    };
    (0..rows).map(cell).collect()
}

/// Writes elements between brackets; where there are none, one pair of them.
struct Nested<'a> {
    element: &'a dyn Fn(usize) -> String,
    next: usize,
    /// Elements until it is enough.
    left: usize,
    comma: &'static str,
}

impl Nested<'_> {
    fn write(&mut self, shape: &[i64], text: &mut String) {
        let Some((length, inner)) = shape.split_first() else {
            *text += &(self.element)(self.next);
            self.next += 1;
            self.left = self.left.saturating_sub(1);
            return;
        };
        if shape.contains(&0) {
            *text += "[]";
            return;
        }
        text.push('[');
        for index in 0..*length {
            if index != 0 {
                *text += self.comma;
            }
            if self.left == 0 {
                text.push('…');
                break;
            }
            self.write(inner, text);
        }
        text.push(']');
    }
}

fn text(parameter: &InferParameter) -> String {
    match value(parameter) {
        Value::String(it) => it.escape_debug().to_string(),
        it => it.to_string(),
    }
}

fn value(parameter: &InferParameter) -> Value {
    match &parameter.parameter_choice {
        None => Value::Null,
        Some(ParameterChoice::BoolParam(it)) => Value::from(*it),
        Some(ParameterChoice::Int64Param(it)) => Value::from(*it),
        Some(ParameterChoice::Uint64Param(it)) => Value::from(*it),
        Some(ParameterChoice::DoubleParam(it)) => Value::from(*it),
        Some(ParameterChoice::StringParam(it)) => Value::from(&**it),
    }
}

#[cfg(test)]
mod tests;
