"""Tensors of `sequence_batching`: control inputs that the server makes, states that it keeps."""
from .hints import ELEMENTS, NUMPY

# The values of a flag, false and true, by the field that has them, and their data type.
FLAG_VALUES = {
    "int32_false_true": "TYPE_INT32",
    "fp32_false_true": "TYPE_FP32",
    "bool_false_true": "TYPE_BOOL",
}


class SequenceTensor:
    """A tensor that clients neither send nor, for a state, are sent."""

    def __init__(self, what, data_type, dims, is_flag=False):
        # How a text names it.
        self.what = what
        # As configs spell it; `None` where the config does not say, which the server refuses.
        self.data_type = data_type
        # Without that of the batch.
        self.dims = dims
        self.is_flag = is_flag

    def accepts(self, kind):
        """Is the hint of its data type?"""
        return self.data_type in (None, kind.config_type())

    def advice(self, name, kind, is_batched):
        """What to write where the hint is of another data type."""
        datatype = self.data_type.replace("TYPE_", "", 1).replace("STRING", "BYTES", 1)
        if datatype not in NUMPY:
            return f"numpy has no {datatype}: write a `TritonPythonModel`, or keep it as FP32"
        if is_batched or self.dims != [1]:
            hint = f'Array["{datatype}", {", ".join(map(str, self.dims))}]'
        else:
            plain = (it.__name__ for it in ELEMENTS if ELEMENTS[it] == datatype)
            hint = next(plain, None) or f"np.{NUMPY[datatype].__name__}"
        text = f"write `{name}: {hint}`"
        field = next((it for it in FLAG_VALUES if FLAG_VALUES[it] == kind.config_type()), None)
        if self.is_flag and field:
            values = "false, true" if field.startswith("bool") else "0, 1"
            text += f", or `{field}: [{values}]` in the config"
        return text


def controls(config):
    """The control inputs of a config, by name."""
    found = {}
    for it in _batching(config).get("control_input") or ():
        name = it.get("name", "")
        for control in (it.get("control") or ())[:1]:
            field = next((field for field in FLAG_VALUES if control.get(field)), None)
            data_type = FLAG_VALUES.get(field) or _known(control.get("data_type"))
            found[name] = SequenceTensor(f"control input `{name}`", data_type, [1], bool(field))
    return found


def states(config):
    """The states of a config: as inputs and as outputs, both by name."""
    inputs, outputs = {}, {}
    for it in _batching(config).get("state") or ():
        data_type, dims = _known(it.get("data_type")), [int(dim) for dim in it.get("dims") or ()]
        reads, writes = it.get("input_name", ""), it.get("output_name", "")
        inputs[reads] = SequenceTensor(f"the state `{reads}`", data_type, dims)
        outputs[writes] = SequenceTensor(f"the state `{writes}`", data_type, dims)
    return inputs, outputs


def _batching(config):
    return config.get("sequence_batching") or {}


def _known(data_type):
    return None if data_type == "TYPE_INVALID" else data_type
