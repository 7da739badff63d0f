"""What `auto_complete_config` is given: a configuration that it may complete, never contradict."""
import json

from troupe_types import TYPES

# As configs spell them.
DATA_TYPES = ("TYPE_INVALID", "TYPE_STRING", "TYPE_BF16") + tuple(
    f"TYPE_{name}" for name, *_ in TYPES if name != "BYTES"
)


class ModelConfig:
    """Wraps a ModelConfig in JSON."""

    def __init__(self, model_config):
        self._model_config = json.loads(model_config)
        self._model_config.setdefault("max_batch_size", 0)
        for kind in ("input", "output"):
            self._model_config.setdefault(kind, [])

    def as_dict(self):
        return self._model_config

    def to_json(self):
        return json.dumps(self._model_config)

    def _place(self):
        return f"in auto-complete-config function for model '{self._model_config['name']}'"

    def set_max_batch_size(self, max_batch_size):
        given = int(self._model_config["max_batch_size"])
        if given == 0:
            self._model_config["max_batch_size"] = max_batch_size
        elif given != max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {given}, but {self._place()} "
                f"specified max_batch_size {max_batch_size}"
            )

    def set_dynamic_batching(self):
        for choice in ("sequence_batching", "ensemble_scheduling"):
            if choice in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{choice}', but "
                    f"{self._place()} tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict):
        for name in transaction_policy_dict:
            if name != "decoupled":
                raise ValueError(
                    f"model transaction property {self._place()} contains property other than "
                    "'decoupled'"
                )
        policy = self._model_config.get("model_transaction_policy")
        wanted = transaction_policy_dict["decoupled"]
        if policy is None:
            self._model_config["model_transaction_policy"] = {"decoupled": wanted}
        elif policy.get("decoupled", False) != wanted:
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model "
                f"'{self._model_config['name']}', which is already set to "
                f"'{policy.get('decoupled', False)}'"
            )

    def add_input(self, input):
        allowed = ("name", "data_type", "dims", "optional")
        self._add("input", input, allowed, "'name', 'data_type', 'dims' and 'optional'")

    def add_output(self, output):
        self._add("output", output, ("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")

    def _add(self, kind, tensor, allowed, listed):
        for name in tensor:
            if name not in allowed:
                raise ValueError(
                    f"{kind} '{tensor.get('name', '')}' {self._place()} contains property other "
                    f"than {listed}."
                )
        if "name" not in tensor:
            raise ValueError(f"{kind} {self._place()} is missing 'name' property.")
        for name in ("data_type", "dims"):
            if name not in tensor:
                raise ValueError(
                    f"{kind} '{tensor['name']}' {self._place()} is missing '{name}' property."
                )
        check_data_type(kind, tensor, self._place())
        tensor = dict(tensor, dims=[int(dim) for dim in tensor["dims"]])
        for known in self._model_config[kind]:
            if known["name"] == tensor["name"]:
                self._merge(kind, known, tensor)
                return
        self._model_config[kind].append(tensor)

    def _merge(self, kind, known, tensor):
        model, name = self._model_config["name"], tensor["name"]
        data_type = known.get("data_type", "TYPE_INVALID")
        if data_type == "TYPE_INVALID":
            known["data_type"] = tensor["data_type"]
        elif data_type != tensor["data_type"]:
            raise ValueError(
                f"unable to load model '{model}', configuration expects datatype {data_type} for "
                f"{kind} '{name}', model provides {tensor['data_type']}"
            )
        dims = [int(dim) for dim in known.get("dims", ())]
        if not dims:
            known["dims"] = tensor["dims"]
        elif dims != tensor["dims"]:
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects dims {tensor['dims']} but "
                f"the model configuration specifies dims {dims}"
            )
        if "optional" in tensor:
            optional = known.get("optional", False)
            if "optional" not in known:
                known["optional"] = tensor["optional"]
            elif optional != tensor["optional"]:
                raise ValueError(
                    f"model '{model}', tensor '{name}': the model expects optional "
                    f"{tensor['optional']} but the model configuration specifies optional "
                    f"{optional}"
                )


def check_data_type(kind, tensor, place):
    """Refuses a name that no config knows, such as `FP32` for `TYPE_FP32`."""
    written = tensor["data_type"]
    if written in DATA_TYPES or not isinstance(written, str):
        return
    meant = f"TYPE_{written.upper().replace('TYPE_', '')}"
    meant = "TYPE_STRING" if meant == "TYPE_BYTES" else meant
    known = f"expected one of {', '.join(DATA_TYPES[1:])}"
    remedy = f"write '{meant}'" if meant in DATA_TYPES else known
    raise ValueError(
        f"{kind} '{tensor['name']}' {place} has the data_type '{written}', which does not exist: "
        f"{remedy}"
    )
