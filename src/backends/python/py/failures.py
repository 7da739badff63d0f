"""Error texts for exceptions that a model raises."""
import threading

# Where `Logger` writes errors.
ERROR = 2


class PlainError(Exception):
    """A mistake of the model that has no traceback of its own."""

    is_plain = True


def describe(error):
    """The exception as Triton prints it: type, text, and the model's frames, innermost first."""
    if getattr(error, "is_plain", False):
        return str(error)
    text = f"{type(error).__name__}: {message(error)}"[:16384]
    frames = model_frames(error)
    if not frames:
        return text
    lines = [f"  {file}({line}): {name}\n" for file, line, name in reversed(frames[-50:])]
    return f"{text}\n\nAt:\n{''.join(lines)}"


def message(error):
    """What the exception says; of a syntax error with the whole path of its file, and its line."""
    if not isinstance(error, SyntaxError) or not error.filename:
        return str(error)
    line = (error.text or "").strip()
    return f"{error.msg} ({error.filename}, line {error.lineno}){line and f': {line}'}"


def model_frames(error):
    """The frames that are not the backend's as (file, line, name), outermost first."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(("<troupe>", "<frozen ")):
            frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return frames


def report(frames, what, error):
    """One line in the server's log about an exception that answers no request."""
    at = [frame for frame in model_frames(error) if frame[0] != threading.__file__]
    file, line, _ = at[-1] if at else ("model", 0, "")
    places = ", called at ".join(f"{file}({line}): {name}" for file, line, name in reversed(at))
    text = f"{what} raised {type(error).__name__}: {message(error)}"
    frames.log(ERROR, f"{file.rsplit('/', 1)[-1]}:{line}", f"{text}, at {places}" if at else text)


def report_threads(frames):
    """Has exceptions that end a thread of the model reported, unless the model does so itself."""

    def hook(args):
        if args.exc_type is not SystemExit:
            name = args.thread.name if args.thread else "?"
            report(frames, f"thread '{name}'", args.exc_value)

    threading.excepthook = hook
