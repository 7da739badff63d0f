//! Compares an output with what a document prints of it.

/// Is it the same, where `…` stands for anything: alone on a line for lines, else within the line?
pub(super) fn is_as_printed(printed: &str, output: &str) -> bool {
    let lines = |text: &str| -> Vec<String> {
        text.trim().lines().map(|it| it.trim_end().to_owned()).collect()
    };
    are_alike(&lines(printed), &lines(output))
}

fn are_alike(printed: &[String], output: &[String]) -> bool {
    match (printed, output) {
        ([], []) => true,
        ([any, rest @ ..], _) if any.trim() == "…" => {
            (0..=output.len()).any(|skipped| are_alike(rest, &output[skipped..]))
        }
        ([line, rest @ ..], [other, others @ ..]) => {
            is_line(line, other) && are_alike(rest, others)
        }
        _ => false,
    }
}

fn is_line(printed: &str, line: &str) -> bool {
    let mut parts = printed.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or("")) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[test]
fn what_varies_may_be_anything() {
    for (printed, output, expected) in [
        ("a\nb\n", "a\nb", true),
        ("a\nb", "a\nc", false),
        ("a\n…\nd", "a\nb\nc\nd\n", true),
        ("a\n…\nd", "a\nd", true),
        ("a\n…", "b\n", false),
        ("x … z", "x y z", true),
        ("x … z…", "x y zz 5", true),
        ("x … z", "x y", false),
        ("", "anything", false),
    ] {
        assert_eq!(is_as_printed(printed, output), expected, "{printed:?} {output:?}");
    }
}
