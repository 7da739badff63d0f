"""Tensors as models see them."""
import numpy as np
from numpy import ndarray
from troupe_strings import object_array, unpack_strings
from troupe_types import BF16, BYTES, NAMES, TritonModelException, code_of

BF16_TEXT = (
    "Tensor dtype is BF16 and cannot be converted to NumPy. "
    "Use to_dlpack() and from_dlpack() instead."
)


class Tensor:
    """A name and an array."""

    __slots__ = ("_name", "_array", "_code", "__weakref__")

    def __init__(self, name, numpy_array):
        if not name:
            if name == "":
                raise TritonModelException("Tensor name cannot be an empty string.")
            raise TypeError(f"Tensor name must be a string, got {type(name).__name__}")
        if type(numpy_array) is not ndarray and not isinstance(numpy_array, ndarray):
            # Scalars and lists, as the C++ constructor would convert them.
            if numpy_array is None:
                raise TritonModelException("Tensor data must be a numpy array, got None.")
            numpy_array = np.asarray(numpy_array)
        self._name = name
        self._array = numpy_array
        self._code = 0

    def name(self):
        return self._name

    def as_numpy(self):
        if self._code == BF16:
            raise TritonModelException(BF16_TEXT)
        return self._array

    def _raw(self):
        """The elements as numpy can hold them: BF16 as its 16 bits."""
        return self._array

    def _type(self):
        return self._code or code_of(self._array)

    def triton_dtype(self):
        return NAMES[self._type()]

    def shape(self):
        return list(self._raw().shape)

    def is_cpu(self):
        return True

    def to_dlpack(self):
        return self.__dlpack__()

    def __dlpack__(self, *, stream=None, **_):
        if self._type() == BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        return dlpack().export(self._raw(), self._type())

    def __dlpack_device__(self):
        return (1, 0)

    @staticmethod
    def from_dlpack(name, tensor):
        if name == "":
            raise TritonModelException("Tensor name cannot be an empty string.")
        array, code = dlpack().adopt(tensor)
        made = Tensor(name, array)
        if code == BF16:
            made._code = code
        return made


class Input(Tensor):
    """A tensor that came in a frame or lies in a segment; its array is made when asked for.

    `_spec` is (name, code, dtype, shape, offset in the frame, bytes or, in a segment, lengths of
    strings, lies in a segment).
    """

    # Those in the second line are set for tensors in segments only: bytes, the segment's number,
    # all segments, those of the group, whether the model alone reads the memory, and where the
    # lengths of strings are.
    __slots__ = (
        *("_spec", "_data", "_at"),
        *("_size", "_number", "_shared", "_used", "_is_ours", "_lengths"),
    )

    def __init__(self, spec, data, at):
        self._spec = spec
        self._data = data
        self._at = at
        self._array = None

    def name(self):
        return self._spec[0]

    def _raw(self):
        array = self._array
        if array is None:
            _, code, dtype, shape, _, size, in_segment = self._spec
            if code == BYTES:
                if in_segment:
                    lengths = self._lengths and np.ndarray((size,), "<u4", *self._lengths)
                    size = self._size
                    elements = unpack_strings(self._data, self._at, size, lengths)
                    self._used.texts.append((elements, self._number, self._at, size))
                else:
                    elements = unpack_strings(self._data, self._at, size)
                array = object_array(elements).reshape(shape)
            else:
                array = np.ndarray(shape, dtype, self._data, self._at)
                if in_segment and not self._is_ours:
                    array = self._shared.copy(array)
                elif in_segment:
                    self._used.made.add(self._number)
            self._array = array
        return array

    def as_numpy(self):
        _, code, dtype, shape, _, _, in_segment = self._spec
        if code == BF16:
            raise TritonModelException(BF16_TEXT)
        array = self._array
        if array is None:
            if in_segment or code == BYTES:
                array = self._raw()
            else:
                array = self._array = ndarray(shape, dtype, self._data, self._at)
        return array

    def _type(self):
        return self._spec[1]

    def shape(self):
        return list(self._spec[3])


def dlpack():
    """Few models need it: imported on first use."""
    import troupe_dlpack

    return troupe_dlpack
