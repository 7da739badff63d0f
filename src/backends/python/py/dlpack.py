"""DLPack without any library: memory of other frameworks in, ours out, BF16 included."""
import ctypes

import numpy as np
from troupe_types import BF16, CODES, TritonModelException

CPU = 1
# DLPack's kinds: signed, unsigned, float, bfloat, bool.
INT, UINT, FLOAT, BFLOAT, BOOL = 0, 1, 2, 4, 6


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DLManagedTensor._fields_ = [
    ("dl_tensor", DLTensor),
    ("manager_ctx", ctypes.c_void_p),
    ("deleter", Deleter),
]

api = ctypes.pythonapi
Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
new_capsule = api.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, Destructor]
is_valid = api.PyCapsule_IsValid
is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
get_pointer = api.PyCapsule_GetPointer
get_pointer.restype = ctypes.c_void_p
get_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
set_name = api.PyCapsule_SetName
set_name.argtypes = [ctypes.c_void_p, ctypes.c_char_p]

# Exported tensors by address, with what keeps their memory alive.
exported = {}
NAME = ctypes.create_string_buffer(b"dltensor")
USED = ctypes.create_string_buffer(b"used_dltensor")


@Deleter
def forget(address):
    exported.pop(address, None)


@Destructor
def capsule_gone(capsule):
    if is_valid(capsule, NAME):
        forget(get_pointer(capsule, NAME))


def export(array, code):
    """A capsule named `dltensor` over the array's memory."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    kinds = {"i": INT, "u": UINT, "f": FLOAT, "b": BOOL}
    shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    managed = DLManagedTensor()
    tensor = managed.dl_tensor
    tensor.data = array.ctypes.data
    tensor.device_type, tensor.device_id = CPU, 0
    tensor.ndim = array.ndim
    tensor.code = BFLOAT if code == BF16 else kinds[array.dtype.kind]
    tensor.bits, tensor.lanes = array.dtype.itemsize * 8, 1
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = forget
    address = ctypes.addressof(managed)
    exported[address] = (managed, shape, array)
    return new_capsule(address, NAME, capsule_gone)


class Owner:
    """Gives the memory back to its framework when the last array over it goes."""

    def __init__(self, managed, address):
        self.managed, self.address = managed, address

    def __del__(self):
        if self.managed.deleter:
            self.managed.deleter(self.address)


def adopt(source):
    """The array over another framework's memory, and the number of its element type."""
    if hasattr(source, "__dlpack__"):
        if hasattr(source, "__dlpack_device__") and source.__dlpack_device__()[0] != CPU:
            raise TritonModelException("DLPack tensors on a GPU are not supported yet")
        source = source.__dlpack__()
    if type(source).__name__ != "PyCapsule" or not is_valid(id(source), NAME):
        raise TritonModelException(
            "DLPack capsule is not valid, or has been consumed before."
        )
    address = get_pointer(id(source), NAME)
    managed = DLManagedTensor.from_address(address)
    tensor = managed.dl_tensor
    if tensor.device_type != CPU:
        raise TritonModelException("DLPack tensors on a GPU are not supported yet")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    code, dtype = element_type(tensor)
    if not is_contiguous(tensor, shape):
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in "
            "C-Order are supported."
        )
    set_name(id(source), USED)
    count = int(np.prod(shape, dtype=np.int64)) if shape else 1
    if count == 0:
        managed.deleter(address)
        return np.empty(shape, dtype), code
    size = tensor.byte_offset + count * dtype.itemsize
    memory = (ctypes.c_uint8 * size).from_address(tensor.data)
    memory.owner = Owner(managed, address)
    return np.ndarray(shape, dtype, memory, tensor.byte_offset), code


def element_type(tensor):
    kinds = {INT: "i", UINT: "u", FLOAT: "f", BOOL: "b"}
    if tensor.lanes != 1 or (tensor.code not in kinds and tensor.code != BFLOAT):
        raise TritonModelException(
            f"DLPack type code {tensor.code} with {tensor.bits} bits is not supported."
        )
    if tensor.code == BFLOAT:
        return BF16, np.dtype(np.uint16)
    kind = "?" if tensor.code == BOOL else f"{kinds[tensor.code]}{tensor.bits // 8}"
    dtype = np.dtype(kind)
    return CODES[dtype], dtype


def is_contiguous(tensor, shape):
    if not tensor.strides:
        return True
    expected = 1
    for i in reversed(range(len(shape))):
        if shape[i] != 1 and tensor.strides[i] != expected:
            return False
        expected *= shape[i]
    return True
