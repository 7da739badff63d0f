"""Completes a model's config from a signature, and refuses what contradicts it."""
import os
import re

from .errors import ModelError, did_you_mean, listed
from .hints import fits
from .sequences import controls, states
from .signature import ONE_OUTPUT

CONFIG_FILE = "config.pbtxt"
MICROSECONDS = 1000


class Completion:
    """A config, as a dict, and the signature that completes it."""

    def __init__(self, config, signature, model_dir):
        self.config = config
        self.signature = signature
        self.file = os.path.join(model_dir, CONFIG_FILE)
        self.controls = controls(config)
        self.state_inputs, self.state_outputs = states(config)

    def complete(self):
        """Fills in what the config lacks."""
        self.sequence_tensors()
        for key, tensors in self.client_tensors():
            self.tensors(key, tensors)
        self.batching()
        self.instances()
        policy = self.config.get("model_transaction_policy") or {}
        is_stream = self.signature.is_stream
        if policy.get("decoupled") and not is_stream:
            self.refuse(
                self.at("decoupled"),
                "says `decoupled: true`",
                self.signature.lines.result(),
                f"`{self.signature.name}` answers once: write `-> Iterator[…]`",
            )
        if is_stream:
            self.config["model_transaction_policy"] = {**policy, "decoupled": True}

    def client_tensors(self):
        """Inputs and outputs of clients: not what the server makes or keeps for sequences."""
        made = {**self.controls, **self.state_inputs}
        written = [it.get("name") for it in self.config.get("output") or ()]
        # A state may be an output too: one that is written, and the only result.
        seen = written if self.signature.is_record else [*written, ONE_OUTPUT]
        return (
            ("input", [it for it in self.signature.inputs if it.name not in made]),
            (
                "output",
                [
                    it
                    for it in self.signature.outputs
                    if it.name not in self.state_outputs or it.name in seen
                ],
            ),
        )

    def sequence_tensors(self):
        """Compares control inputs and states with the hints."""
        signature = self.signature
        inputs = {it.name: it for it in signature.inputs}
        outputs = {it.name: it for it in signature.outputs}
        for name, made in {**self.controls, **self.state_inputs}.items():
            if name in inputs:
                self.compare(made, inputs[name], signature.lines.parameter(name))
        for name, made in self.state_outputs.items():
            if name in outputs:
                self.compare(made, outputs[name], signature.lines.result())
        # A control that no parameter is named like is not given; such a state would do nothing.
        for what, states, known in (
            ("parameters", self.state_inputs, inputs),
            ("outputs", self.state_outputs, outputs),
        ):
            for name in states:
                if name not in known:
                    self.refuse(
                        self.at(name),
                        f"has a state `{name}`",
                        signature.lines.definition(),
                        f"`{signature.name}` has the {what} {listed(known)}"
                        f"{did_you_mean(name, known)}",
                    )

    def compare(self, made, tensor, place):
        """A tensor of sequences and the hint of it."""
        name, kind = tensor.name, tensor.kind
        is_batched = self.signature.is_batched
        hint = f"the hint of `{name}` is {kind.text}"
        if not made.accepts(kind):
            self.refuse(
                self.at(name), f"says that {made.what} is {made.data_type}", place,
                f"{hint}, which is {kind.config_type()}: {made.advice(name, kind, is_batched)}",
            )
        ours = kind.config_dims(is_batched)
        is_open = kind.form == "array" and kind.dims is None
        if not is_open and not fits(made.dims, ours):
            self.refuse(
                self.at(name), f"says that {made.what} has dims {made.dims}", place,
                f"{hint}, which has dims {ours}",
            )

    def require(self):
        """What was not completed must have been written."""
        for key, tensors in self.client_tensors():
            written = [it["name"] for it in self.config.get(key) or ()]
            for tensor in tensors:
                if tensor.name not in written:
                    raise ModelError(
                        f"{self.file}: the {key} `{tensor.name}` of `{self.signature.name}` "
                        f"({self.signature.lines.definition()}) is missing, and configs are not "
                        "completed (--disable-auto-complete-config)"
                    )
        written = int(self.config.get("max_batch_size") or 0)
        if written != self.signature.max_batch_size:
            self.contradicts_batch(written)

    def tensors(self, key, tensors):
        """Completes inputs or outputs."""
        written = self.config.setdefault(key, [])
        known = {tensor.name: tensor for tensor in tensors}
        for entry in written:
            name = entry.get("name", "")
            if key == "input" and (name in self.controls or name in self.state_inputs):
                # The server says which of both is wrong.
                continue
            if name not in known:
                what = "parameters" if key == "input" else "outputs"
                self.refuse(
                    self.at(name),
                    f"has an {key} `{name}`",
                    self.signature.lines.definition(),
                    f"`{self.signature.name}` has the {what} {listed(known)}"
                    f"{did_you_mean(name, known)}",
                )
            self.merge(key, entry, known.pop(name))
        for name, tensor in known.items():
            entry = {
                "name": name,
                "data_type": tensor.kind.config_type(),
                "dims": tensor.kind.config_dims(self.signature.is_batched),
            }
            if tensor.is_optional:
                entry["optional"] = True
            written.append(entry)

    def merge(self, key, entry, tensor):
        """One tensor that both name."""
        name, kind = tensor.name, tensor.kind
        lines = self.signature.lines
        place = lines.parameter(name) if key == "input" else lines.result()
        hint = f"the hint of `{name}` is {kind.text}"
        written = entry.get("data_type") or "TYPE_INVALID"
        if written == "TYPE_INVALID":
            entry["data_type"] = kind.config_type()
        elif written != kind.config_type():
            self.refuse(
                self.at(name), f"says `data_type: {written}` of {key} `{name}`", place,
                f"{hint}, which is {kind.config_type()}",
            )
        dims = [int(dim) for dim in entry.get("dims") or ()]
        ours = kind.config_dims(self.signature.is_batched)
        is_open = kind.form == "array" and kind.dims is None
        if not dims:
            entry["dims"] = ours
        elif not is_open and not fits(dims, ours):
            self.refuse(
                self.at(name), f"says `dims: {dims}` of {key} `{name}`", place,
                f"{hint}, which has dims {ours}",
            )
        if tensor.is_optional:
            entry["optional"] = True
        elif entry.get("optional"):
            self.refuse(
                self.at(name), f"says `optional: true` of {key} `{name}`", place,
                "the parameter has no default: write one",
            )

    def batching(self):
        """The size of batches, and what makes them."""
        signature = self.signature
        written = int(self.config.get("max_batch_size") or 0)
        if written and written != signature.max_batch_size:
            self.contradicts_batch(written)
        self.config["max_batch_size"] = signature.max_batch_size
        if "sequence_batching" in self.config:
            if signature.max_queue_delay_ms is not None:
                self.refuse(
                    self.at("sequence_batching"),
                    "has a `sequence_batching`",
                    signature.lines.definition(),
                    f"@model says max_queue_delay_ms={signature.max_queue_delay_ms:g}, which is for "
                    "models without it: write `max_queue_delay_microseconds` in its `direct` or "
                    "`oldest`",
                )
            return
        if signature.max_batch_size < 2:
            return
        batching = self.config.setdefault("dynamic_batching", {})
        if signature.max_queue_delay_ms is None:
            return
        delay = round(signature.max_queue_delay_ms * MICROSECONDS)
        written = int(batching.get("max_queue_delay_microseconds") or 0)
        if written not in (0, delay):
            self.refuse(
                self.at("max_queue_delay_microseconds"),
                f"says `max_queue_delay_microseconds: {written}`",
                signature.lines.definition(),
                f"@model says max_queue_delay_ms={signature.max_queue_delay_ms:g}",
            )
        batching["max_queue_delay_microseconds"] = delay

    def instances(self):
        """How many processes run it."""
        wanted = self.signature.instances
        groups = self.config.get("instance_group") or []
        if wanted is None:
            return
        if groups and sum(int(it.get("count") or 1) for it in groups) != wanted:
            self.refuse(
                self.at("instance_group"),
                "has an `instance_group`",
                self.signature.lines.definition(),
                f"@model says instances={wanted}: take one of them out",
            )
        if not groups:
            self.config["instance_group"] = [{"count": wanted}]

    def contradicts_batch(self, written):
        """Both say how large a batch may be."""
        self.refuse(
            self.at("max_batch_size"),
            f"says `max_batch_size: {written}`",
            self.signature.lines.definition(),
            f"@model says max_batch_size={self.signature.max_batch_size}",
        )

    def at(self, word):
        """The line of the config file that has the word; the file, if it has none."""
        try:
            with open(self.file, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except (OSError, ValueError):
            return self.file
        pattern = re.compile(rf"(?<![\w.]){re.escape(word)}(?![\w.])")
        found = (number for number, line in enumerate(lines, 1) if pattern.search(line))
        number = next(found, None)
        return f"{self.file}:{number}" if number else self.file

    def refuse(self, config_place, config_says, code_place, code_says):
        """Both places of a contradiction."""
        raise ModelError(f"{config_place} {config_says}, but {code_place}: {code_says}")
