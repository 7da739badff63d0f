//! Reads tokens into a tree that knows no message types.

use super::token::{Kind, Lexer, Token};
use crate::config::problem::Position;

/// Messages and lists inside each other; as deep as protobuf reads.
const DEPTH: usize = 100;

/// `name: value` or `name { … }`.
#[derive(Debug)]
pub(super) struct Field<'a> {
    pub(super) name: String,
    pub(super) at: Position,
    pub(super) colon: bool,
    pub(super) node: Node<'a>,
}

/// A value, and the token it begins with.
#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) at: Position,
    pub(super) first: &'a str,
    pub(super) value: Value<'a>,
}

/// What a value is made of, before anyone knows what it should be.
#[derive(Debug)]
pub(super) enum Value<'a> {
    /// A number or a word; also a symbol that is no value at all, which no type will accept.
    Scalar {
        minus: bool,
        token: Token<'a>,
    },
    /// Literals that stand side by side are one string.
    Strings(Vec<&'a str>),
    Message(Vec<Field<'a>>),
    List(Vec<Node<'a>>),
}

/// What could be read, and what stopped the reading.
pub(super) struct Tree<'a> {
    pub(super) fields: Vec<Field<'a>>,
    pub(super) problems: Vec<(Position, String)>,
}

/// Reads until the end, or until something is where it cannot be.
pub(super) fn parse(text: &str) -> Tree<'_> {
    let mut lexer = Lexer::new(text);
    let token = lexer.next();
    let mut parser = Parser { lexer, token, stopped: false, depth: 0 };
    let fields = parser.fields("");
    Tree { fields, problems: parser.lexer.problems }
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
    /// After the first mistake of syntax nothing more is read: the rest would be guesses.
    stopped: bool,
    depth: usize,
}

impl<'a> Parser<'a> {
    /// Fields up to a closing bracket, which the caller takes; an empty `close` means the end.
    fn fields(&mut self, close: &str) -> Vec<Field<'a>> {
        let mut fields = Vec::new();
        while !self.stopped {
            let end = match close {
                "" => self.token.kind == Kind::End,
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

    fn field(&mut self) -> Option<Field<'a>> {
        let at = self.token.at;
        let name = self.name()?;
        let colon = self.skip(":");
        let node = self.node();
        if !self.stopped && !self.skip(";") {
            self.skip(",");
        }
        Some(Field { name, at, colon, node })
    }

    /// A word, or an extension in brackets (which nobody defines, but which reads as a name).
    fn name(&mut self) -> Option<String> {
        if self.token.kind == Kind::Identifier {
            return Some(self.take().text.to_owned());
        }
        if !self.is("[") {
            self.stop_expecting("identifier");
            return None;
        }
        let mut name = String::new();
        while !self.is("]") {
            if self.token.kind == Kind::End {
                self.stop_expecting("identifier");
                return None;
            }
            name.push_str(self.take().text);
        }
        name.push_str(self.take().text);
        Some(name)
    }

    fn node(&mut self) -> Node<'a> {
        let Token { kind, text: first, at } = self.token;
        let value = match (kind, first) {
            (Kind::String, _) => self.strings(),
            (_, "{") => self.message("}"),
            (_, "<") => self.message(">"),
            (_, "[") => self.list(),
            _ => self.scalar(),
        };
        Node { at, first, value }
    }

    fn strings(&mut self) -> Value<'a> {
        let mut parts = Vec::new();
        while self.token.kind == Kind::String {
            parts.push(self.take().text);
        }
        Value::Strings(parts)
    }

    fn message(&mut self, close: &'static str) -> Value<'a> {
        if !self.enter() {
            return Value::Message(Vec::new());
        }
        let fields = self.fields(close);
        if !self.stopped && !self.skip(close) {
            self.stop(format!("Expected \"{close}\", found \"{}\".", self.token.text));
        }
        self.depth -= 1;
        Value::Message(fields)
    }

    fn list(&mut self) -> Value<'a> {
        let mut nodes = Vec::new();
        if !self.enter() {
            return Value::List(nodes);
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
        self.depth -= 1;
        Value::List(nodes)
    }

    fn scalar(&mut self) -> Value<'a> {
        let minus = self.skip("-");
        let token = self.token;
        match token.kind {
            Kind::Identifier | Kind::Integer | Kind::Float => {
                self.take();
            }
            // Whoever knows the type of the field says best what was expected here.
            _ => self.stopped = true,
        }
        Value::Scalar { minus, token }
    }

    /// Takes the opening bracket, unless that would be too deep.
    fn enter(&mut self) -> bool {
        if self.depth == DEPTH {
            self.stop(format!(
                "Message is too deep, the parser exceeded the configured recursion limit of {DEPTH}."
            ));
            return false;
        }
        self.depth += 1;
        self.take();
        true
    }

    fn is(&self, symbol: &str) -> bool {
        self.token.kind == Kind::Symbol && self.token.text == symbol
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
        self.stop(format!("Expected {what}, got: {}", self.token.text));
    }

    fn stop(&mut self, text: String) {
        self.stopped = true;
        self.lexer.problems.push((self.token.at, text));
    }
}
