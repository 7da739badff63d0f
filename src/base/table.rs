//! Tables for people, in the shape tritonserver prints them.

/// Rows under a header, every column as wide as its widest line.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column).map(String::as_str));
        let lines = cells.chain([header[column]]).flat_map(str::lines);
        lines.map(|it| it.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let rule: String = widths.iter().map(|it| format!("+{}", "-".repeat(it + 2))).collect();
    let mut text = format!("{rule}+\n");
    let header: Vec<String> = header.iter().map(|it| (*it).to_owned()).collect();
    push(&mut text, &widths, &header);
    text.push_str(&format!("{rule}+\n"));
    rows.iter().for_each(|row| push(&mut text, &widths, row));
    text.push_str(&format!("{rule}+\n"));
    text
}

fn push(text: &mut String, widths: &[usize], row: &[String]) {
    let height = row.iter().map(|it| it.lines().count()).max().unwrap_or(1).max(1);
    for line in 0..height {
        for (cell, width) in row.iter().zip(widths) {
            let part = cell.lines().nth(line).unwrap_or("");
            let padding = " ".repeat(width.saturating_sub(part.chars().count()));
            text.push_str(&format!("| {part}{padding} "));
        }
        text.push_str("|\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let rows = [
            vec!["add_sub".to_owned(), "1".to_owned()],
            vec!["m".to_owned(), "two\nlines".to_owned()],
        ];
        let expected = "\
+---------+---------+
| Model   | Version |
+---------+---------+
| add_sub | 1       |
| m       | two     |
|         | lines   |
+---------+---------+
";
        assert_eq!(table(&["Model", "Version"], &rows), expected);
    }
}
