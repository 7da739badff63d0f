//! The tables of the page.

use super::super::{
    cells::{self, Cells, Medium},
    level::StepLoad,
    report::BenchReport,
};
use troupe_base::text::escape_markup;

/// A row for each level.
pub(super) fn level_table(report: &BenchReport<'_>) -> String {
    table(&cells::levels(report, Medium::Html))
}

/// A row for each step.
pub(super) fn step_table(steps: &[StepLoad]) -> String {
    table(&cells::steps(steps, Medium::Html))
}

fn table(Cells { header, rows }: &Cells) -> String {
    let cells = |row: &Vec<String>| {
        row.iter().map(|it| format!("<td>{}</td>", escape_markup(it))).collect()
    };
    let line = |cells: String| format!("<tr>{cells}</tr>\n");
    let head: String = header.iter().map(|it| format!("<th>{it}</th>")).collect();
    let body: String = rows.iter().map(|it| line(cells(it))).collect();
    format!(
        "<div class=\"wide\"><table>\n<thead>{}</thead>\n<tbody>\n{body}</tbody>\n</table></div>\n",
        line(head)
    )
}
