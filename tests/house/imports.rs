//! Reads which paths a source file names: every leaf of its `use` trees, and paths in expressions.

/// One path of a file, from the crate's root.
#[derive(Debug, PartialEq)]
pub(crate) struct Import {
    /// Its segments.
    pub(crate) path: Vec<String>,
    /// Said by `pub use`: the file passes it on without needing it.
    pub(crate) is_passed_on: bool,
    /// The name it has in the file.
    pub(crate) name: String,
}

/// All paths that `code`, the file of module `module`, says of its own crate; `children` are the
/// modules declared in it.
pub(crate) fn imports(code: &str, module: &[String], children: &[String]) -> Vec<Import> {
    let mut found = Vec::new();
    let mut rest = code;
    let mut plain = String::new();
    while let Some(start) = next_use(rest) {
        let (before, statement) = rest.split_at(start);
        plain.push_str(before);
        let is_passed_on = statement.starts_with("pub");
        let tree = statement.split_once("use ").unwrap().1;
        let (tree, after) = tree.split_once(';').unwrap_or((tree, ""));
        for leaf in leaves(tree) {
            let (path, alias) = leaf.split_once(" as ").unwrap_or((&leaf, ""));
            let Some(path) = absolute(path, module, children) else { continue };
            let own = path.last().cloned().unwrap_or_default();
            let name = if alias.is_empty() { own } else { alias.trim().to_owned() };
            found.push(Import { path, is_passed_on, name });
        }
        rest = after;
    }
    plain.push_str(rest);
    for path in paths(&plain) {
        if let Some(path) = absolute(&path, module, children) {
            found.push(Import { name: String::new(), path, is_passed_on: false });
        }
    }
    found
}

/// Where the next `use` statement starts.
fn next_use(code: &str) -> Option<usize> {
    let mut line = 0;
    for text in code.split_inclusive('\n') {
        let trimmed = text.trim_start();
        let visible = trimmed.strip_prefix("pub").map(|after| match after.strip_prefix('(') {
            Some(scope) => scope.split_once(')').map_or("", |(_, after)| after),
            None => after,
        });
        if visible.unwrap_or(trimmed).trim_start().starts_with("use ") {
            return Some(line + text.len() - trimmed.len());
        }
        line += text.len();
    }
    None
}

/// `a::{b, c::{self, d}}` is `a::b`, `a::c`, `a::c::d`.
fn leaves(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((head, group)) = tree.split_once('{') else { return vec![tree.to_owned()] };
    let group = group.rsplit_once('}').map_or(group, |(group, _)| group);
    let (mut depth, mut item, mut items) = (0, String::new(), Vec::new());
    for letter in group.chars() {
        match letter {
            ',' if depth == 0 => items.push(std::mem::take(&mut item)),
            _ => item.push(letter),
        }
        depth += i32::from(letter == '{') - i32::from(letter == '}');
    }
    items.push(item);
    let named = items.iter().map(|item| item.trim()).filter(|item| !item.is_empty());
    named
        .flat_map(|item| match item.strip_prefix("self") {
            Some(alias) if alias.is_empty() || alias.starts_with(' ') => {
                vec![format!("{}{alias}", head.trim_end_matches("::"))]
            }
            _ => leaves(&format!("{head}{item}")),
        })
        .collect()
}

/// Paths of two or more segments in expressions and types.
fn paths(code: &str) -> Vec<String> {
    let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let words = code.split(|letter| !is_path(letter));
    words.filter(|word| word.contains("::")).map(str::to_owned).collect()
}

/// The segments from the crate's root, if the path is one of this crate.
fn absolute(path: &str, module: &[String], children: &[String]) -> Option<Vec<String>> {
    let mut segments = path.split("::").map(|part| part.trim().to_owned()).peekable();
    let mut whole = match segments.peek()?.as_str() {
        "crate" => {
            segments.next();
            Vec::new()
        }
        "self" | "super" => module.to_vec(),
        first if children.iter().any(|child| child == first) => module.to_vec(),
        _ => return None,
    };
    while let Some(step) = segments.next_if(|part| part == "self" || part == "super") {
        if step == "super" {
            whole.pop();
        }
    }
    whole.extend(segments.take_while(|part| !part.is_empty()));
    Some(whole)
}

#[test]
fn every_leaf_of_a_use_tree_is_an_import() {
    let module = ["a".to_owned(), "b".to_owned()];
    let code = "use super::{self as up, x::{Y, self}};\npub(super) use self::c::D;\nfn f() { \
                crate::g::H::new(); e::run() }\nuse std::fs;";
    let found = imports(code, &module, &["c".to_owned(), "e".to_owned()]);
    let told: Vec<String> = found.iter().map(|import| import.path.join("::")).collect();
    assert_eq!(told, ["a", "a::x::Y", "a::x", "a::b::c::D", "g::H::new", "a::b::e::run"]);
    assert_eq!(found.iter().filter(|import| import.is_passed_on).count(), 1);
    assert_eq!(found[0].name, "up");
}
