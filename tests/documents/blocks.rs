//! The blocks of a document, and what is done with each.

/// A block between two fences.
pub(super) struct Block {
    /// Where it begins.
    pub(super) line: usize,
    pub(super) used: Use,
    pub(super) text: String,
}

/// What is done with a block.
#[derive(Debug, PartialEq)]
pub(super) enum Use {
    /// Commands and their outputs.
    Console,
    /// Commands only.
    Commands,
    Python,
    /// It is the contents of this file.
    File(String),
    /// Why not.
    NotRun(String),
    Shown,
}

/// All blocks, in order.
pub(super) fn blocks(document: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut mark = String::new();
    let mut lines = document.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            if !line.trim().is_empty() {
                mark = line.trim().to_owned();
            }
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let text: String = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| line.trim() != "```")
            .map(|line| format!("{}\n", line.get(indent..).unwrap_or("")))
            .collect();
        let used = used(language, &mark);
        mark.clear();
        found.push(Block { line: number + 1, used, text });
    }
    found
}

fn used(language: &str, mark: &str) -> Use {
    let of = |begin: &str| Some(mark.strip_prefix(begin)?.strip_suffix("-->")?.trim().to_owned());
    if let Some(why) = of("<!-- not run:") {
        return Use::NotRun(why);
    }
    if let Some(path) = of("<!-- file:") {
        return Use::File(path);
    }
    match language {
        "console" => Use::Console,
        "sh" => Use::Commands,
        "python" if mark == "<!-- run -->" => Use::Python,
        _ => Use::Shown,
    }
}

/// The commands of a console block, each with its output.
pub(super) fn conversation(text: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            found.push((command.to_owned(), String::new()));
            is_open = is_unfinished(command);
            continue;
        }
        let Some((command, output)) = found.last_mut() else { continue };
        if is_open {
            *command += &format!("\n{line}");
            is_open = is_unfinished(command);
        } else {
            *output += &format!("{line}\n");
        }
    }
    found
}

/// A shell would ask for more: an open quote, or a backslash at the end.
pub(super) fn is_unfinished(command: &str) -> bool {
    command.ends_with('\\') || command.matches('\'').count() % 2 == 1
}

#[test]
fn blocks_are_found_with_their_marks() {
    let text = "a\n\n```console\n$ b 'c\nd'\ne\n\n$ f\n```\n\n<!-- not run: it is slow -->\n```sh\ng\n```\n\
                <!-- file: h.py -->\n\n```python\ni\n```\n```text\nj\n```\n";
    let found = blocks(text);
    let uses: Vec<&Use> = found.iter().map(|it| &it.used).collect();
    let not_run = Use::NotRun("it is slow".to_owned());
    assert_eq!(uses, [&Use::Console, &not_run, &Use::File("h.py".to_owned()), &Use::Shown]);
    let expected = [("b 'c\nd'".to_owned(), "e\n\n".to_owned()), ("f".to_owned(), String::new())];
    assert_eq!(conversation(&found[0].text), expected);
}
