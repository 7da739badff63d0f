//! Text where other syntax is read: escaped for markup, encoded for paths, quoted for shells; and
//! text that is too long.

/// Text as XML and HTML take it, also between quotes.
pub fn escape_markup(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(letter),
            // XML has no way to write these.
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            control if control.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

/// A name as one segment of a path.
pub fn encode_path_segment(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            other => out += &format!("%{other:02X}"),
        }
    }
    out
}

/// Text as one word of a shell, quoted where it needs that.
pub fn shell_word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./=@:,".contains(letter);
    if text.chars().all(is_plain) && !text.is_empty() {
        text.to_owned()
    } else {
        shell_quoted(text)
    }
}

/// Text as one word of a shell, always quoted.
pub fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// At most so many characters of a text; three dots stand for the rest.
pub fn shortened(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_within_markup_and_paths() {
        for (text, markup, segment) in [
            ("a-b_c.d~", "a-b_c.d~", "a-b_c.d~"),
            ("<a&b>", "&lt;a&amp;b&gt;", "%3Ca%26b%3E"),
            ("\"it's\"", "&quot;it&#39;s&quot;", "%22it%27s%22"),
            ("\u{1b}\u{ffff}", "\u{fffd}\u{fffd}", "%1B%EF%BF%BF"),
            ("At:\n\tx", "At:\n\tx", "At%3A%0A%09x"),
            ("ü /", "ü /", "%C3%BC%20%2F"),
        ] {
            assert_eq!(escape_markup(text), markup);
            assert_eq!(encode_path_segment(text), segment);
        }
    }

    #[test]
    fn a_long_text_ends_with_dots_and_a_quote_stays_within_a_word() {
        for (text, expected) in [("", ""), ("üüü", "üüü"), ("üüüü", "üüü…")] {
            assert_eq!(shortened(text, 3), expected);
        }
        assert_eq!(shell_quoted("it's $x"), r"'it'\''s $x'");
        assert_eq!(["", "a b", "a/b"].map(shell_word), ["''", "'a b'", "a/b"]);
    }
}
