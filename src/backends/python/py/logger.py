"""Lines in the server's log, with the place that wrote them."""
import sys
from enum import IntEnum

import troupe_requests as _requests


class LogLevel(IntEnum):
    """How much a line matters."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class Logger:
    """What models log by; from any thread, at any time."""

    LogLevel = LogLevel
    INFO, WARNING, ERROR, VERBOSE = LogLevel

    @staticmethod
    def log(message, level=LogLevel.INFO):
        write(message, level)

    @staticmethod
    def log_info(message):
        write(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message):
        write(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message):
        write(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message):
        write(message, LogLevel.VERBOSE)


def write(message, level):
    """A line whose place is that of the caller's caller."""
    if not isinstance(message, str):
        raise TypeError(f"a message must be a str, got {type(message)}")
    if not isinstance(level, LogLevel):
        raise TypeError(f"a level must be one of Logger's, got {type(level)}")
    frame = sys._getframe(2)
    place = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
    _requests.worker.frames.log(int(level), place, message)
