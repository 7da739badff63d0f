"""Reads config.pbtxt into a dict, as the server's JSON has it; for tests without a server."""
import re

TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*(?:\n|\Z)\s*)*("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[{}\[\]<>:,;]|[^\s{}\[\]<>:,;"'#]+)"""
)
REPEATED = {
    "input", "output", "dims", "shape", "step", "instance_group", "gpus", "profile",
    "batch_input", "batch_output", "preferred_batch_size", "model_warmup", "versions",
    "source_input", "target_name", "control_input", "control", "state", "initial_state",
    "int32_false_true", "fp32_false_true", "bool_false_true",
}
MAPS = {"parameters", "input_map", "output_map", "metric_tags", "cc_model_filenames", "inputs"}
ENDS = {"{": "}", "<": ">"}


class ConfigError(Exception):
    """Text that is no config."""


def read(text, file):
    """The config as a dict."""
    tokens = Tokens(text, file)
    return tokens.message(None)


class Tokens:
    """What is left of a text."""

    def __init__(self, text, file):
        self.text = text
        self.file = file
        self.at = 0

    def next(self):
        """The next token; `None` at the end."""
        found = TOKEN.match(self.text, self.at)
        if found is None:
            rest = re.sub(r"#[^\n]*", "", self.text[self.at :]).strip()
            if rest:
                self.fail(f"cannot be read: {rest[:20]!r}")
            return None
        self.at = found.end()
        return found.group(1)

    def peek(self):
        """The next token, which stays."""
        at = self.at
        token = self.next()
        self.at = at
        return token

    def fail(self, what):
        """Says where."""
        line = self.text.count("\n", 0, self.at) + 1
        raise ConfigError(f"{self.file}:{line}: {what}; `troupe check` says more")

    def message(self, end):
        """Fields up to `end`."""
        fields = {}
        while True:
            name = self.next()
            if name == end:
                return fields
            if name in (",", ";"):
                continue
            if name is None or not name[0].isalpha():
                self.fail(f"expected a field, got {name!r}")
            if self.peek() == ":":
                self.next()
            self.put(fields, name, self.value())

    def put(self, fields, name, value):
        """One value, or several of a list."""
        if name in MAPS:
            for entry in value if isinstance(value, list) else [value]:
                fields.setdefault(name, {})[entry.get("key", "")] = entry.get("value", "")
        elif name in REPEATED:
            fields.setdefault(name, []).extend(value if isinstance(value, list) else [value])
        else:
            fields[name] = value

    def value(self):
        """A message, a list or a scalar."""
        token = self.next()
        if token in ENDS:
            return self.message(ENDS[token])
        if token == "[":
            values = []
            while self.peek() != "]":
                if self.peek() == ",":
                    self.next()
                    continue
                values.append(self.value())
            self.next()
            return values
        if token is None or token in "}]>:,;":
            self.fail(f"expected a value, got {token!r}")
        if token[0] in "\"'":
            text = unescaped(token)
            while (self.peek() or " ")[0] in "\"'":
                text += unescaped(self.next())
            return text
        return scalar(token)


def unescaped(token):
    """The text of a quoted token."""
    escapes = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda it: escapes.get(it.group(1), it.group(1)), token[1:-1])


def scalar(token):
    """A number, a truth value, or the name of one of an enumeration."""
    if token in ("true", "false"):
        return token == "true"
    for kind in (int, float):
        try:
            return kind(token)
        except ValueError:
            continue
    return token
