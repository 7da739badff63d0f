"""The title of this process: what `ps`, `top` and `pgrep` show of it."""
import os

# What the kernel keeps of a name.
NAME_BYTES = 15
# The fields `arg_start` and `arg_end` of /proc/PID/stat, behind its name.
ARG_START, ARG_END = 45, 46


def set_title(name):
    """`troupe: NAME` in place of the command line, and `NAME`, as far as it fits, as the command.

    Where the kernel or a sandbox does not let it, nothing changes.
    """
    try:
        with open("/proc/self/comm", "wb") as file:
            file.write(name.encode()[:NAME_BYTES])
        with open("/proc/self/stat", "rb") as file:
            # The name stands in parentheses and may hold anything.
            fields = file.read().rpartition(b") ")[2].split()
        start, end = int(fields[ARG_START]), int(fields[ARG_END])
        size = end - start
        if start <= 0 or size <= 1:
            return
        # The last byte says that nothing was appended.
        title = f"troupe: {name}".encode()[: size - 1].ljust(size, b"\0")
        memory = os.open("/proc/self/mem", os.O_WRONLY)
        try:
            os.pwrite(memory, title, start)
        finally:
            os.close(memory)
    except (OSError, ValueError, IndexError):
        pass
