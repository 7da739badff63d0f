//! Reads tokens into a tree that knows no message types.

use super::token::{Lexer, Token, TokenKind};
use crate::config::problem::LineColumn;

/// Messages and lists inside each other; as deep as protobuf reads.
const MAX_DEPTH: usize = 100;

/// `name: value` or `name { … }`.
#[derive(Debug)]
pub(super) struct SyntaxField<'a> {
    pub(super) name: String,
    pub(super) at: LineColumn,
    pub(super) colon: bool,
    pub(super) node: SyntaxNode<'a>,
}

/// A value, and the token it begins with.
#[derive(Debug)]
pub(super) struct SyntaxNode<'a> {
    pub(super) at: LineColumn,
    pub(super) first: &'a str,
    pub(super) value: SyntaxValue<'a>,
}

/// What a value is made of, before anyone knows what it should be.
#[derive(Debug)]
pub(super) enum SyntaxValue<'a> {
    /// A number or a word; also a symbol that is no value at all, which no type will accept.
    Scalar {
        minus: bool,
        token: Token<'a>,
    },
    /// Literals that stand side by side are one string.
    Strings(Vec<&'a str>),
    Message(Vec<SyntaxField<'a>>),
    List(Vec<SyntaxNode<'a>>),
}

/// What could be read, and what stopped the reading.
pub(super) struct SyntaxTree<'a> {
    pub(super) fields: Vec<SyntaxField<'a>>,
    pub(super) problems: Vec<(LineColumn, String)>,
}

/// Reads until the end, or until something is where it cannot be.
pub(super) fn parse(text: &str) -> SyntaxTree<'_> {
    let mut lexer = Lexer::new(text);
    let token = lexer.next();
    let mut parser = Parser { lexer, token, stopped: false, open: Vec::new() };
    let fields = parser.fields("");
    SyntaxTree { fields, problems: parser.lexer.problems }
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
    /// After the first mistake of syntax nothing more is read: the rest would be guesses.
    stopped: bool,
    /// Where the brackets are that are not closed yet.
    open: Vec<LineColumn>,
}

impl<'a> Parser<'a> {
    /// Fields up to a closing bracket, which the caller takes; an empty `close` means the end.
    fn fields(&mut self, close: &str) -> Vec<SyntaxField<'a>> {
        let mut fields = Vec::new();
        while !self.stopped {
            let end = match close {
                "" => self.token.kind == TokenKind::End,
                _ => self.is("}") || self.is(">"),
            };
            if end {
                break;
            }
            if let Some(field) = self.field() {
                fields.push(field);
            }
        }
        fields
    }

    fn field(&mut self) -> Option<SyntaxField<'a>> {
        let at = self.token.at;
        let name = self.name()?;
        let colon = self.skip(":");
        let node = self.node();
        if !self.stopped && !self.skip(";") {
            self.skip(",");
        }
        Some(SyntaxField { name, at, colon, node })
    }

    /// A word, or an extension in brackets: there are none, but the error names it.
    fn name(&mut self) -> Option<String> {
        if self.token.kind == TokenKind::Identifier {
            return Some(self.take().text.to_owned());
        }
        if !self.is("[") {
            self.stop_expecting("identifier");
            return None;
        }
        let mut name = String::new();
        while !self.is("]") {
            if self.token.kind == TokenKind::End {
                self.stop_expecting("identifier");
                return None;
            }
            name.push_str(self.take().text);
        }
        name.push_str(self.take().text);
        Some(name)
    }

    fn node(&mut self) -> SyntaxNode<'a> {
        let Token { kind, text: first, at } = self.token;
        let value = match (kind, first) {
            (TokenKind::String, _) => self.strings(),
            (_, "{") => self.message("}"),
            (_, "<") => self.message(">"),
            (_, "[") => self.list(),
            _ => self.scalar(),
        };
        SyntaxNode { at, first, value }
    }

    fn strings(&mut self) -> SyntaxValue<'a> {
        let mut parts = Vec::new();
        while self.token.kind == TokenKind::String {
            parts.push(self.take().text);
        }
        SyntaxValue::Strings(parts)
    }

    fn message(&mut self, close: &'static str) -> SyntaxValue<'a> {
        if !self.enter() {
            return SyntaxValue::Message(Vec::new());
        }
        let fields = self.fields(close);
        if !self.stopped && !self.skip(close) {
            self.stop(format!("Expected \"{close}\", found \"{}\".", self.token.text));
        }
        self.open.pop();
        SyntaxValue::Message(fields)
    }

    fn list(&mut self) -> SyntaxValue<'a> {
        let mut nodes = Vec::new();
        if !self.enter() {
            return SyntaxValue::List(nodes);
        }
        while !self.skip("]") {
            if !nodes.is_empty() && !self.skip(",") {
                self.stop(format!("Expected \",\", found \"{}\".", self.token.text));
            }
            if self.stopped {
                break;
            }
            nodes.push(self.node());
        }
        self.open.pop();
        SyntaxValue::List(nodes)
    }

    fn scalar(&mut self) -> SyntaxValue<'a> {
        let minus = self.skip("-");
        let token = self.token;
        match token.kind {
            TokenKind::Identifier | TokenKind::Integer | TokenKind::Float => {
                self.take();
            }
            // Whoever knows the type of the field says best what was expected here.
            _ => self.stopped = true,
        }
        SyntaxValue::Scalar { minus, token }
    }

    /// Takes the opening bracket, unless that would be too deep.
    fn enter(&mut self) -> bool {
        if self.open.len() == MAX_DEPTH {
            self.stop(format!(
                "Message is too deep, the parser exceeded the configured recursion limit of \
                 {MAX_DEPTH}."
            ));
            return false;
        }
        self.open.push(self.token.at);
        self.take();
        true
    }

    fn is(&self, symbol: &str) -> bool {
        self.token.kind == TokenKind::Symbol && self.token.text == symbol
    }

    fn skip(&mut self, symbol: &str) -> bool {
        let found = self.is(symbol);
        if found {
            self.take();
        }
        found
    }

    fn take(&mut self) -> Token<'a> {
        let next = self.lexer.next();
        std::mem::replace(&mut self.token, next)
    }

    fn stop_expecting(&mut self, what: &str) {
        let mut text = format!("Expected {what}, got: {}", self.token.text);
        if let Some(LineColumn { line, column }) = self.open.last()
            && (self.is("]") || self.token.kind == TokenKind::End)
        {
            text += &format!(" (the bracket at {line}:{column} is not closed)");
        }
        self.stop(text);
    }

    fn stop(&mut self, text: String) {
        self.stopped = true;
        self.lexer.problems.push((self.token.at, text));
    }
}
