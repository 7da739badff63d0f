"""The standard `logging` of models: lines that go to standard error get their level and place."""
import sys
from importlib.util import find_spec

from troupe_logger import LogLevel


class Bridge:
    """Waits until somebody imports `logging`: few models do, and it takes its time."""

    def __init__(self, frames):
        self.frames = frames
        self.is_asked = False

    def install(self):
        if "logging" in sys.modules:
            self.connect(sys.modules["logging"])
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        if name != "logging" or self.is_asked:
            return None
        # From here on the others are asked, by `find_spec` too.
        self.is_asked = True
        spec = find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            self.connect(module)

        spec.loader.exec_module = exec_module
        return spec

    def connect(self, logging):
        """Handlers that write to this process's output write to the server's log instead. Loggers,
        levels, filters and formats stay as the model sets them, and so do all other handlers."""
        frames, emit = self.frames, logging.StreamHandler.emit
        # The server's line has the level already.
        plain, default = logging.Formatter(), (None, logging.BASIC_FORMAT)

        def bridged(handler, record):
            if handler.stream is None or handler.stream not in (sys.__stderr__, sys.__stdout__):
                emit(handler, record)
                return
            try:
                is_default = getattr(handler.formatter, "_fmt", None) in default
                text = (plain if is_default else handler).format(record)
                frames.log(level_of(record.levelno), f"{record.filename}:{record.lineno}", text)
            except RecursionError:
                raise
            except Exception:
                handler.handleError(record)

        logging.StreamHandler.emit = bridged


def level_of(number):
    """The server's level. What is below INFO was asked for by the model, and is shown."""
    if 40 <= number:
        return int(LogLevel.ERROR)
    return int(LogLevel.WARNING if 30 <= number else LogLevel.INFO)
