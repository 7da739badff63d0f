"""Type hints as tensors: data type, dims, and how values become arrays and arrays values."""
import collections.abc
import typing

import numpy as np

from .errors import ModelError, caller_place, did_you_mean

# The server's names of data types, and numpy's.
NUMPY = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
NAMES = {np.dtype(kind): name for name, kind in NUMPY.items()}
ELEMENTS = {str: "BYTES", bytes: "BYTES", int: "INT64", float: "FP64", bool: "BOOL"}
# Kinds of numpy that become one another without a loss that surprises.
TAKES = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}
LISTS = (list, typing.Sequence, collections.abc.Sequence)
SAMPLE = 'Array["FP32", 16], str, bytes, int, float, bool, or a list of one of these five'


class HintError(Exception):
    """Why a hint is no tensor, and what to write."""


class ArrayHint:
    """What `Array[data type, dims…]` is: `None` for dims that were not given."""

    def __init__(self, datatype, dims, text):
        self.datatype = datatype
        self.dims = dims
        self.text = text

    def __repr__(self):
        return self.text

    def __call__(self, *_):
        # `typing` takes for hints only what can be called.
        raise TypeError("Array is a type hint: make arrays with numpy")

    def __or__(self, other):
        return typing.Union[self, other]

    def __ror__(self, other):
        return typing.Union[other, self]


class Array:
    """A numpy array of a data type and dims: `Array["FP32", 3, -1]`; -1 or None is any size."""

    def __class_getitem__(cls, items):
        items = items if isinstance(items, tuple) else (items,)
        at = caller_place()
        written = ", ".join(_written(it) for it in items)
        try:
            datatype = datatype_of(items[0])
        except HintError as error:
            raise ModelError(f"{at}: Array[{written}]: {error}") from None
        dims = tuple(-1 if it is None else it for it in items[1:])
        for dim in dims:
            if isinstance(dim, bool) or not isinstance(dim, int) or dim == 0 or dim < -1:
                raise ModelError(
                    f"{at}: Array[{written}]: expected dims that are numbers from 1 on, or -1 "
                    f"for any size, got {dim!r}"
                )
        return ArrayHint(datatype, list(dims) or None, f"Array[{written}]")


def _written(item):
    return f'"{item}"' if isinstance(item, str) else getattr(item, "__name__", repr(item))


def datatype_of(item):
    """The server's name of a data type: `FP32` of "FP32", "TYPE_FP32", "float32", np.float32."""
    if isinstance(item, str) and item.upper() in ("BF16", "TYPE_BF16", "BFLOAT16"):
        raise HintError(
            "numpy has no BF16: write a `TritonPythonModel`, whose tensors are given to torch and "
            "others by DLPack (`to_dlpack`), or have the data as FP32"
        )
    if item in (str, "str"):
        raise HintError('arrays of strings hold bytes: write Array["BYTES", …], or list[str]')
    if isinstance(item, str):
        name = item.upper()
        name = name[5:] if name.startswith("TYPE_") else name
        name = "BYTES" if name == "STRING" else name
        if name in NUMPY:
            return name
    elif item in ELEMENTS:
        return ELEMENTS[item]
    try:
        found = NAMES.get(np.dtype(item))
    except TypeError:
        found = None
    if found is None:
        known = [*NUMPY, *(np.dtype(it).name for it in NUMPY.values())]
        text = item.upper() if isinstance(item, str) and item[:1].isupper() else item
        raise HintError(
            f"unknown data type {item!r}{did_you_mean(text, known)} They are "
            f"{', '.join(NUMPY)}, also in numpy's words (float32)"
        )
    return found


class Kind:
    """One tensor as a hint describes it."""

    def __init__(self, datatype, form, dims, element, text):
        self.datatype = datatype
        self.dtype = np.dtype(NUMPY[datatype])
        # The one that arrays are passed on with as they are; numpy has one object for each.
        self.plain = self.dtype if form != "value" and datatype != "BYTES" else None
        # "array", "value" (one element), or the depth of lists.
        self.form = form
        # Of arrays, if they were given.
        self.dims = dims
        # What an element is in Python; `None` in arrays.
        self.element = element
        # Types of single values that need no look.
        self.takes = (float, int) if element is float else (element,)
        self.text = text

    def config_type(self):
        """As configs spell it."""
        return "TYPE_STRING" if self.datatype == "BYTES" else f"TYPE_{self.datatype}"

    def config_dims(self, is_batched):
        """Dims for the config, without those of the batch."""
        if self.form == "array":
            return self.dims or [-1]
        if self.form == "value":
            return [1]
        return [-1] * (self.form - is_batched) or [1]

    def reader(self, is_batched):
        """What makes of an array what the function wants; `None` where that is the array."""
        element = self.element
        if self.form == "array":
            return None
        if self.form == "value":
            return lambda array: (_decoded if element is str else element)(array.item())
        is_flat = is_batched and self.form == 1

        def values(array):
            found = (array.reshape(-1) if is_flat else array).tolist()
            return _decoded(found) if element is str else found

        return values

    def write(self, value):
        """A value of the function as an array; `HintError` says what is wrong with it."""
        if self.form == "value" and type(value) in self.takes:
            array = np.empty(1, self.dtype)
            try:
                array[0] = value.encode() if self.element is str else value
            except OverflowError as error:
                raise HintError(f"does not fit into {self.datatype}: {error}") from None
            return array
        if self.datatype == "BYTES":
            return self._strings(value)
        is_array = isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__")
        try:
            array = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise HintError(f"is no array: {error}") from None
        if array.dtype == self.dtype:
            found = array
        elif is_array and self.form == "array":
            wanted, got = self.dtype.name, NAMES.get(array.dtype, array.dtype)
            raise HintError(
                f"has data type {got}, expected {self.datatype}: write `.astype(np.{wanted})`"
            )
        elif array.dtype.kind in TAKES.get(self.dtype.kind, "") or array.size == 0:
            try:
                found = np.asarray(value, dtype=self.dtype)
            except (ValueError, OverflowError) as error:
                raise HintError(f"does not fit into {self.datatype}: {error}") from None
        else:
            raise HintError(f"is {_described(value)}, expected {self.text}")
        if self.form == "value":
            if found.size != 1:
                raise HintError(f"has {found.size} elements, expected one {self.text}")
            return found.reshape(1)
        return found

    def _strings(self, value):
        if self.form == "value":
            if isinstance(value, np.ndarray) and value.size == 1:
                value = value.reshape(-1)[0]
            if not isinstance(value, (str, bytes)):
                raise HintError(f"is {_described(value)}, expected {self.text}")
            return _objects([value], (1,))
        if isinstance(value, np.ndarray):
            flat, shape = value.ravel().tolist(), value.shape
        else:
            flat, shape = _flat(value)
        if not all(isinstance(it, (str, bytes)) for it in flat):
            other = next(it for it in flat if not isinstance(it, (str, bytes)))
            raise HintError(f"holds {_described(other)}, expected {self.text}")
        return _objects(flat, shape)


def _objects(elements, shape):
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = [it.encode() if isinstance(it, str) else it for it in elements]
    return array.reshape(shape)


def _flat(value):
    """The elements of nested lists, and their shape."""
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple)):
        raise HintError(f"is {_described(value)}, expected a list")
    if not value or not isinstance(value[0], (list, tuple)):
        return list(value), (len(value),)
    inner = [_flat(it) for it in value]
    if any(shape != inner[0][1] for _, shape in inner):
        raise HintError("has lists of different lengths")
    return [it for flat, _ in inner for it in flat], (len(value), *inner[0][1])


def _decoded(value):
    if isinstance(value, list):
        return [_decoded(it) for it in value]
    return value if isinstance(value, str) else bytes(value).decode()


def _described(value):
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of {NAMES.get(value.dtype, value.dtype)}"
    return f"{type(value).__name__} {str(value)[:40]!r}"


def kind_of(hint):
    """What a hint says; raises `HintError`."""
    hint = without_none(hint)
    if isinstance(hint, ArrayHint):
        return Kind(hint.datatype, "array", hint.dims, None, hint.text)
    if hint in ELEMENTS:
        return Kind(ELEMENTS[hint], "value", None, hint, hint.__name__)
    if isinstance(hint, type) and issubclass(hint, np.generic) and np.dtype(hint) in NAMES:
        name = NAMES[np.dtype(hint)]
        return Kind(name, "value", None, hint, f"np.{hint.__name__}")
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is np.ndarray:
        scalar = typing.get_args(arguments[1])[0] if 1 < len(arguments) else typing.Any
        if not isinstance(scalar, type) or np.dtype(scalar) not in NAMES:
            raise HintError(f"an array needs its data type: write {SAMPLE}")
        name = NAMES[np.dtype(scalar)]
        return Kind(name, "array", None, None, f"NDArray[np.{scalar.__name__}]")
    if origin in LISTS and arguments:
        inner = kind_of(arguments[0])
        if inner.form == "array":
            raise HintError(f"lists of arrays are no tensor: write {SAMPLE}")
        depth = 1 if inner.form == "value" else inner.form + 1
        return Kind(inner.datatype, depth, None, inner.element, f"list[{inner.text}]")
    if hint is np.ndarray or hint is Array:
        raise HintError('it needs a data type and dims: write Array["FP32", 16]; -1 is any size')
    if hint in LISTS:
        raise HintError("a list needs the type of its elements: write list[str], list[float], …")
    written = getattr(hint, "__name__", None) or str(hint)
    raise HintError(f"{written} is no tensor: write {SAMPLE}")


def numpy_type(datatype, what):
    """Numpy's type of a data type; BF16 has none."""
    if datatype not in NUMPY:
        raise ModelError(f"{what} is {datatype}, which numpy does not have")
    return NUMPY[datatype]


def fits(shape, dims):
    """Is the shape as the dims say? -1 is any size."""
    return len(shape) == len(dims) and all(it in (-1, got) for got, it in zip(shape, dims))


def without_none(hint):
    """`T` of `Optional[T]`."""
    arguments = typing.get_args(hint)
    is_union = typing.get_origin(hint) is typing.Union or type(hint).__name__ == "UnionType"
    if is_union and len(arguments) == 2 and type(None) in arguments:
        return next(it for it in arguments if it is not type(None))
    return hint
