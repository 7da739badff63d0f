"""Error texts for exceptions that a model raises."""


class PlainError(Exception):
    """A mistake of the model that has no traceback of its own."""


def describe(error):
    """The exception as Triton prints it: type, text, and the model's frames, innermost first."""
    if isinstance(error, PlainError):
        return str(error)
    lines = []
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(("<troupe>", "<frozen ")):
            lines.append(f"  {name}({trace.tb_lineno}): {trace.tb_frame.f_code.co_name}\n")
        trace = trace.tb_next
    text = f"{type(error).__name__}: {error}"[:16384]
    return f"{text}\n\nAt:\n{''.join(reversed(lines[-50:]))}"
