"""Models and pipelines of troupe as plain Python: functions and classes with type hints."""
from .errors import ModelError
from .hints import Array
from .marks import model
from .pipelines import models, pipeline

__all__ = ["Array", "ModelError", "model", "models", "pipeline"]
