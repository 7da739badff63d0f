//! What a replay found, as a table for people and as JSON.

use serde_json::{Value, json};

use super::compare::{Difference, kind};
use troupe_base::{table::table, tensor::Tensor};

/// Of longer reports only what differs is shown as a table.
const ROWS: usize = 60;

/// One tensor, or one answer without tensors.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) request: usize,
    pub(super) step: usize,
    pub(super) model: String,
    /// The version that ran, and the one that answered now.
    pub(super) versions: (String, String),
    /// Which response of a decoupled step it follows from.
    pub(super) iteration: Option<u64>,
    pub(super) tensor: String,
    /// `FP32 [4]`, as captured and now; empty if there is none.
    pub(super) kinds: (String, String),
    pub(super) verdict: Verdict,
}

/// Is it what it was?
#[derive(Debug)]
pub(super) enum Verdict {
    Equal,
    Different(Difference),
    /// Different in another way, in words.
    Otherwise(String),
    /// There is nothing to compare it with.
    NotCaptured,
}

impl Verdict {
    fn is_different(&self) -> bool {
        matches!(self, Verdict::Different(_) | Verdict::Otherwise(_))
    }

    fn text(&self) -> String {
        match self {
            Verdict::Equal => "equal".to_owned(),
            Verdict::NotCaptured => "not captured".to_owned(),
            Verdict::Otherwise(text) => format!("different: {text}"),
            Verdict::Different(Difference::Kind) => "different: another kind".to_owned(),
            Verdict::Different(Difference::Elements(it)) => {
                let ((count, all), (was, is)) = (it.count, &it.texts);
                let far = it.max_abs.map(|it| format!("\nmax abs difference {it:?}"));
                let far = far.unwrap_or_default();
                let first = &it.first;
                format!("different: {count} of {all}\nfirst at {first:?}: {was}, now {is}{far}")
            }
        }
    }
}

/// The kinds of a tensor as captured and now.
pub(super) fn kinds(was: Option<&Tensor>, is: Option<&Tensor>) -> (String, String) {
    (was.map(kind).unwrap_or_default(), is.map(kind).unwrap_or_default())
}

/// Whether nothing differs. `None` if nothing was compared.
pub(super) fn is_equal(rows: &[Row]) -> Option<bool> {
    let mut compared = rows.iter().filter(|it| !matches!(it.verdict, Verdict::NotCaptured));
    compared.next()?;
    Some(!rows.iter().any(|it| it.verdict.is_different()))
}

/// A table and the sum of it.
pub(super) fn text(rows: &[Row], left_out: &[usize]) -> String {
    let shown = |it: &&Row| rows.len() <= ROWS || it.verdict.is_different();
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
    let compared = rows.iter().filter(|it| !matches!(it.verdict, Verdict::NotCaptured)).count();
    let different = rows.iter().filter(|it| it.verdict.is_different()).count();
    match rows.iter().find(|it| it.verdict.is_different()) {
        None => text += &format!("equal: {compared} of {compared}\n"),
        Some(first) => {
            let Row { request, step, model, tensor, .. } = first;
            text += &format!(
                "different: {different} of {compared}, the first is '{tensor}' of step {step} \
                 (model '{model}') in request {request}\n"
            );
        }
    }
    text
}

fn cells(row: &Row) -> Vec<String> {
    let (was, is) = &row.versions;
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
        row.kinds.0.clone(),
        row.kinds.1.clone(),
        row.verdict.text(),
    ]
}

/// One line.
pub(super) fn json(rows: &[Row], left_out: &[usize]) -> String {
    let tensors: Vec<Value> = rows.iter().map(object).collect();
    let is_equal = is_equal(rows).unwrap_or(false);
    format!("{}\n", json!({"equal": is_equal, "left_out_requests": left_out, "tensors": tensors}))
}

fn object(row: &Row) -> Value {
    let result = match &row.verdict {
        Verdict::Equal => "equal",
        Verdict::NotCaptured => "not captured",
        Verdict::Different(_) | Verdict::Otherwise(_) => "different",
    };
    let mut object = json!({
        "request": row.request,
        "step": row.step,
        "model": row.model,
        "captured_version": row.versions.0,
        "version": row.versions.1,
        "iteration": row.iteration,
        "tensor": row.tensor,
        "captured": row.kinds.0,
        "now": row.kinds.1,
        "result": result,
    });
    match &row.verdict {
        Verdict::Otherwise(text) => object["why"] = text.as_str().into(),
        Verdict::Different(Difference::Kind) => object["why"] = "another kind".into(),
        Verdict::Different(Difference::Elements(it)) => {
            object["different_elements"] = it.count.0.into();
            object["elements"] = it.count.1.into();
            object["first_difference"] = json!(it.first);
            object["first_captured"] = it.texts.0.as_str().into();
            object["first_now"] = it.texts.1.as_str().into();
            // What is no number is null.
            object["max_abs_difference"] = json!(it.max_abs);
        }
        Verdict::Equal | Verdict::NotCaptured => (),
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(request: usize, verdict: Verdict) -> Row {
        Row {
            request,
            step: 1,
            model: "m".to_owned(),
            versions: ("1".to_owned(), "2".to_owned()),
            iteration: Some(3),
            tensor: "t".to_owned(),
            kinds: ("FP32 [1]".to_owned(), String::new()),
            verdict,
        }
    }

    #[test]
    fn of_many_tensors_those_that_differ_are_shown() {
        let mut rows: Vec<Row> = (0..100).map(|it| row(it, Verdict::Equal)).collect();
        rows.push(row(100, Verdict::Otherwise("why".to_owned())));
        rows.push(row(101, Verdict::NotCaptured));
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
