//! What a replay found, as a table for people and as JSON.

use serde_json::{Value, json};

use super::compare::{Difference, ElementDifferences, kind};
use troupe_base::{table::table, tensor::Tensor};

/// Of longer reports only what differs is shown as a table.
const MAX_TABLE_ROWS: usize = 60;

/// One tensor, or one answer without tensors.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) request: usize,
    pub(super) step: usize,
    pub(super) model: String,
    /// The version that ran when it was captured.
    pub(super) captured_version: String,
    /// The version that answered now; empty if none did.
    pub(super) version_now: String,
    /// Which response of a decoupled step it follows from.
    pub(super) iteration: Option<u64>,
    pub(super) tensor: String,
    pub(super) kinds: Kinds,
    pub(super) verdict: TensorVerdict,
}

/// Is it what it was?
#[derive(Debug)]
pub(super) enum TensorVerdict {
    Equal,
    Different(Difference),
    /// Different in another way, in words.
    Otherwise(String),
    /// There is nothing to compare it with.
    NotCaptured,
}

impl TensorVerdict {
    fn is_different(&self) -> bool {
        matches!(self, TensorVerdict::Different(_) | TensorVerdict::Otherwise(_))
    }

    fn text(&self) -> String {
        match self {
            TensorVerdict::Equal => "equal".to_owned(),
            TensorVerdict::NotCaptured => "not captured".to_owned(),
            TensorVerdict::Otherwise(text) => format!("different: {text}"),
            TensorVerdict::Different(Difference::Kind) => "different: another kind".to_owned(),
            TensorVerdict::Different(Difference::Elements(it)) => {
                let ElementDifferences { count, all, first, was, now, max_abs } = it;
                let far = max_abs.map(|distance| format!("\nmax abs difference {distance:?}"));
                let far = far.unwrap_or_default();
                format!("different: {count} of {all}\nfirst at {first:?}: {was}, now {now}{far}")
            }
        }
    }
}

/// Type and shape of a tensor, `FP32 [4]`, as captured and now; empty if there is none.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    captured: String,
    now: String,
}

impl Kinds {
    /// Those of a captured tensor and of a new one.
    pub(super) fn of(captured: Option<&Tensor>, now: Option<&Tensor>) -> Kinds {
        let text = |tensor: Option<&Tensor>| tensor.map(kind).unwrap_or_default();
        Kinds { captured: text(captured), now: text(now) }
    }
}

/// Whether nothing differs. `None` if nothing was compared.
pub(super) fn is_equal(rows: &[Comparison]) -> Option<bool> {
    let mut compared = rows.iter().filter(|it| !matches!(it.verdict, TensorVerdict::NotCaptured));
    compared.next()?;
    Some(!rows.iter().any(|it| it.verdict.is_different()))
}

/// A table and the sum of it.
pub(super) fn text(rows: &[Comparison], left_out: &[usize]) -> String {
    let shown = |it: &&Comparison| rows.len() <= MAX_TABLE_ROWS || it.verdict.is_different();
    let cells: Vec<Vec<String>> = rows.iter().filter(shown).map(cells).collect();
    let header = ["Request", "Step", "Model", "Tensor", "Captured", "Now", "Result"];
    let mut text = String::new();
    if !cells.is_empty() {
        text = table(&header, &cells);
    }
    if cells.len() < rows.len() {
        text += &format!("{} that do not differ are not shown\n", rows.len() - cells.len());
    }
    for request in left_out {
        text += &format!("request {request} is not in the capture: it did not fit\n");
    }
    let compared =
        rows.iter().filter(|it| !matches!(it.verdict, TensorVerdict::NotCaptured)).count();
    let different = rows.iter().filter(|it| it.verdict.is_different()).count();
    match rows.iter().find(|it| it.verdict.is_different()) {
        None => text += &format!("equal: {compared} of {compared}\n"),
        Some(first) => {
            let Comparison { request, step, model, tensor, .. } = first;
            text += &format!(
                "different: {different} of {compared}, the first is '{tensor}' of step {step} \
                 (model '{model}') in request {request}\n"
            );
        }
    }
    text
}

fn cells(row: &Comparison) -> Vec<String> {
    let (was, is) = (&row.captured_version, &row.version_now);
    let model = match is {
        _ if is.is_empty() || was == is => format!("{} {was}", row.model),
        _ => format!("{} {was}, now {is}", row.model),
    };
    let response = row.iteration.map(|it| format!("\nresponse {it}")).unwrap_or_default();
    vec![
        row.request.to_string(),
        row.step.to_string(),
        model,
        format!("{}{response}", row.tensor),
        row.kinds.captured.clone(),
        row.kinds.now.clone(),
        row.verdict.text(),
    ]
}

/// One line.
pub(super) fn json(rows: &[Comparison], left_out: &[usize]) -> String {
    let tensors: Vec<Value> = rows.iter().map(object).collect();
    let is_equal = is_equal(rows).unwrap_or(false);
    format!("{}\n", json!({"equal": is_equal, "left_out_requests": left_out, "tensors": tensors}))
}

fn object(row: &Comparison) -> Value {
    let result = match &row.verdict {
        TensorVerdict::Equal => "equal",
        TensorVerdict::NotCaptured => "not captured",
        TensorVerdict::Different(_) | TensorVerdict::Otherwise(_) => "different",
    };
    let mut object = json!({
        "request": row.request,
        "step": row.step,
        "model": row.model,
        "captured_version": row.captured_version,
        "version": row.version_now,
        "iteration": row.iteration,
        "tensor": row.tensor,
        "captured": row.kinds.captured,
        "now": row.kinds.now,
        "result": result,
    });
    match &row.verdict {
        TensorVerdict::Otherwise(text) => object["why"] = text.as_str().into(),
        TensorVerdict::Different(Difference::Kind) => object["why"] = "another kind".into(),
        TensorVerdict::Different(Difference::Elements(it)) => {
            object["different_elements"] = it.count.into();
            object["elements"] = it.all.into();
            object["first_difference"] = json!(it.first);
            object["first_captured"] = it.was.as_str().into();
            object["first_now"] = it.now.as_str().into();
            // What is no number is null.
            object["max_abs_difference"] = json!(it.max_abs);
        }
        TensorVerdict::Equal | TensorVerdict::NotCaptured => (),
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(request: usize, verdict: TensorVerdict) -> Comparison {
        Comparison {
            request,
            step: 1,
            model: "m".to_owned(),
            captured_version: "1".to_owned(),
            version_now: "2".to_owned(),
            iteration: Some(3),
            tensor: "t".to_owned(),
            kinds: Kinds { captured: "FP32 [1]".to_owned(), now: String::new() },
            verdict,
        }
    }

    #[test]
    fn of_many_tensors_those_that_differ_are_shown() {
        let mut rows: Vec<Comparison> = (0..100).map(|it| row(it, TensorVerdict::Equal)).collect();
        rows.push(row(100, TensorVerdict::Otherwise("why".to_owned())));
        rows.push(row(101, TensorVerdict::NotCaptured));
        let expected = "\
+---------+------+------------+------------+----------+-----+----------------+
| Request | Step | Model      | Tensor     | Captured | Now | Result         |
+---------+------+------------+------------+----------+-----+----------------+
| 100     | 1    | m 1, now 2 | t          | FP32 [1] |     | different: why |
|         |      |            | response 3 |          |     |                |
+---------+------+------------+------------+----------+-----+----------------+
101 that do not differ are not shown
request 102 is not in the capture: it did not fit
different: 1 of 101, the first is 't' of step 1 (model 'm') in request 100
";
        assert_eq!(text(&rows, &[102]), expected);
        assert_eq!(is_equal(&rows), Some(false));
        assert_eq!(is_equal(&rows[..100]), Some(true));
        assert_eq!(is_equal(&rows[101..]), None);
        let line: Value = serde_json::from_str(&json(&rows, &[102])).unwrap();
        assert_eq!(line["left_out_requests"], json!([102]));
        assert_eq!(line["equal"], false);
        assert_eq!(line["tensors"][100]["why"], "why");
        assert_eq!(line["tensors"][101]["result"], "not captured");
    }
}
