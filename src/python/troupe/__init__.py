"""Models of troupe as plain Python: functions and classes with type hints."""
from .errors import ModelError
from .hints import Array
from .marks import model

__all__ = ["Array", "ModelError", "model"]
