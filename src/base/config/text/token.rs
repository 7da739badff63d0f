//! Cuts protobuf text format into tokens.

use super::literal;
use crate::config::problem::LineColumn;

/// More problems of one kind are not kept: a file that is no configuration has millions.
pub(super) const MAX_PROBLEMS: usize = 1000;

/// What a token is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Identifier,
    Integer,
    Float,
    String,
    Symbol,
    End,
}

/// A word of the text, as it was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: TokenKind,
    /// A string keeps its quotes and escapes.
    pub(super) text: &'a str,
    pub(super) at: LineColumn,
}

/// Walks over the text; what it cannot read is noted, and it goes on.
pub(super) struct Lexer<'a> {
    rest: &'a str,
    at: LineColumn,
    pub(super) problems: Vec<(LineColumn, String)>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        let rest = text.strip_prefix('\u{feff}').unwrap_or(text);
        Lexer { rest, at: LineColumn { line: 1, column: 1 }, problems: Vec::new() }
    }

    /// The next token; `End` for ever after the last one.
    pub(super) fn next(&mut self) -> Token<'a> {
        self.skip_blanks();
        let at = self.at;
        let Some(first) = self.rest.chars().next() else {
            return Token { kind: TokenKind::End, text: "", at };
        };
        let second = self.rest[first.len_utf8()..].chars().next();
        let (kind, length) = match first {
            'a'..='z' | 'A'..='Z' | '_' => (TokenKind::Identifier, self.word()),
            '0'..='9' => self.number(),
            '.' if second.is_some_and(|next| next.is_ascii_digit()) => self.number(),
            '"' | '\'' => (TokenKind::String, self.string(first)),
            other => (TokenKind::Symbol, other.len_utf8()),
        };
        Token { kind, text: self.take(length), at }
    }

    /// White space, control characters (each a problem) and comments.
    fn skip_blanks(&mut self) {
        while let Some(next) = self.rest.chars().next() {
            match next {
                '#' => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.take(end);
                }
                ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c' => {
                    self.take(1);
                }
                control if control.is_ascii_control() => {
                    let text = "Invalid control characters encountered in text.";
                    self.problem(self.at, text);
                    self.take(1);
                }
                _ => break,
            }
        }
    }

    fn word(&self) -> usize {
        let part_of_it = |next: u8| next.is_ascii_alphanumeric() || next == b'_';
        self.run(0, part_of_it)
    }

    /// Where the run of wanted bytes that begins at `start` ends.
    fn run(&self, start: usize, wanted: impl Fn(u8) -> bool) -> usize {
        let tail = &self.rest.as_bytes()[start..];
        start + tail.iter().position(|next| !wanted(*next)).unwrap_or(tail.len())
    }

    fn number(&mut self) -> (TokenKind, usize) {
        let bytes = self.rest.as_bytes();
        let (kind, end) = match bytes {
            [b'0', b'x' | b'X', ..] => {
                let end = self.run(2, |next| next.is_ascii_hexdigit());
                if end == 2 {
                    self.problem(self.at, "\"0x\" must be followed by hex digits.");
                }
                (TokenKind::Integer, end)
            }
            [b'0', b'0'..=b'9', ..] => {
                let end = self.run(1, |next| next.is_ascii_digit());
                if bytes[..end].iter().any(|digit| *digit > b'7') {
                    self.problem(self.at, "Numbers starting with leading zero must be in octal.");
                }
                (TokenKind::Integer, end)
            }
            _ => return self.decimal(),
        };
        if bytes.get(end) == Some(&b'.') {
            self.problem(self.at, "Hex and octal numbers must be integers.");
        }
        (kind, end)
    }

    fn decimal(&mut self) -> (TokenKind, usize) {
        let bytes = self.rest.as_bytes();
        let digit = |next: u8| next.is_ascii_digit();
        let mut kind = TokenKind::Integer;
        let mut end = self.run(0, digit);
        if bytes.get(end) == Some(&b'.') {
            kind = TokenKind::Float;
            end = self.run(end + 1, digit);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            kind = TokenKind::Float;
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let exponent = end + 1 + sign;
            end = self.run(exponent, digit);
            if end == exponent {
                self.problem(self.at, "\"e\" must be followed by exponent.");
            }
        }
        if matches!(bytes.get(end), Some(b'f' | b'F')) {
            kind = TokenKind::Float;
            end += 1;
        }
        if kind == TokenKind::Float && bytes.get(end) == Some(&b'.') {
            let text = "Already saw decimal point or exponent; can't have another one.";
            self.problem(self.at, text);
        }
        (kind, end)
    }

    /// The length of a string with its quotes; its escapes are checked here, once.
    fn string(&mut self, quote: char) -> usize {
        let mut escaped = false;
        for (index, next) in self.rest.char_indices().skip(1) {
            match next {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if next == quote => {
                    if let Err(text) = literal::unescape(&self.rest[1..index]) {
                        self.problem(self.at, text);
                    }
                    return index + 1;
                }
                _ => {}
            }
        }
        self.problem(self.at, "Unexpected end of string.");
        self.rest.len()
    }

    fn problem(&mut self, at: LineColumn, text: &str) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push((at, text.into()));
        }
    }

    /// Walks over `length` bytes.
    fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        for character in taken.chars() {
            match character {
                '\n' => self.at = LineColumn { line: self.at.line + 1, column: 1 },
                _ => self.at.column += 1,
            }
        }
        taken
    }
}
