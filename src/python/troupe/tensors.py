"""Values of tests as the arrays that a model's config asks for."""
import numpy as np

from .errors import ModelError, check_inputs, did_you_mean, listed
from .hints import fits, numpy_type
from .sequences import controls, states


class Outputs(dict):
    """Arrays by the names of outputs, also as attributes: `result["label"]`, `result.label`."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"no output `{name}`{did_you_mean(name, self)}; there are {listed(self)}"
            ) from None


def datatype(tensor):
    """Its data type in the server's words."""
    name = tensor["data_type"].replace("TYPE_", "", 1)
    return "BYTES" if name == "STRING" else name


def inputs(config, values):
    """Values by the names of inputs, checked and as arrays; a missing batch dim is added."""
    known = {it["name"]: it for it in config.get("input", ())}
    # Tests give what a server makes and keeps for sequences.
    for name, it in {**controls(config), **states(config)[0]}.items():
        made = {"name": name, "data_type": it.data_type, "dims": it.dims, "optional": True}
        known.setdefault(name, made)
    check_inputs(f"model '{config['name']}'", known, values)
    is_batched = 0 < int(config.get("max_batch_size") or 0)
    return {
        name: as_array(config["name"], known[name], value, is_batched)
        for name, value in values.items()
    }


def as_array(model, tensor, value, is_batched):
    """One value as an array of the input's data type and dims."""
    wanted = datatype(tensor)
    place = f"input `{tensor['name']}` of model '{model}'"
    if wanted == "BYTES":
        array = texts(value)
    else:
        dtype = numpy_type(wanted, place)
        given = value.dtype if isinstance(value, np.ndarray) else None
        if given is not None and given != dtype:
            raise ModelError(f"{place} has data type {given.name}, expected {wanted}")
        array = np.asarray(value, dtype=dtype)
    dims = [int(dim) for dim in tensor.get("dims", ())]
    if array.ndim == 0 and dims == [1]:
        array = array.reshape(1)
    if is_batched and array.ndim == len(dims) and fits(array.shape, dims):
        array = array[np.newaxis]
    elif is_batched and dims == [1] and array.ndim == 1:
        array = array[:, np.newaxis]
    expected = [-1, *dims] if is_batched else dims
    if not fits(array.shape, expected):
        raise ModelError(f"{place} has shape {list(array.shape)}, expected {expected}")
    return array


def texts(value):
    """Strings or bytes, alone or in lists, as an array of bytes."""
    array = np.asarray(value, dtype=np.object_)
    flat = [it.encode() if isinstance(it, str) else bytes(it) for it in array.ravel().tolist()]
    made = np.empty(len(flat), dtype=np.object_)
    made[:] = flat
    return made.reshape(array.shape)
