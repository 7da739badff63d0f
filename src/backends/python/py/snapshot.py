"""The model's files as they were when it was loaded: imports read these, whatever the disk has."""
import linecache
import sys
from importlib import machinery
from importlib.util import decode_source, spec_from_file_location
from os.path import basename, dirname, join, realpath

# By the real path of a folder: the files that were in it, as bytes by name.
folders = {}


def install(files):
    """Has modules of these files, a list of paths and texts, imported from here."""
    for file in files:
        path = file["path"]
        folder = folders.setdefault(realpath(dirname(path)), {})
        folder[basename(path)] = file["text"].encode("latin-1")
    if folders:
        sys.path_hooks.insert(0, finder)


def saved(path):
    """The bytes of a file, or None."""
    return folders.get(realpath(dirname(path)), {}).get(basename(path))


def finder(path):
    """A path hook: finds modules in a folder that files were saved of."""
    if realpath(path) not in folders:
        raise ImportError("nothing of this folder was saved", path=path)
    return Finder(path)


class Loader(machinery.SourceFileLoader):
    """Loads a module from what was saved; tracebacks name the file, and show its saved lines."""

    def path_stats(self, path):
        if saved(path) is not None:
            # A cached .pyc is trusted by its time in seconds: it may be of another file.
            raise OSError("no bytecode")
        return super().path_stats(path)

    def get_data(self, path):
        data = saved(path)
        return super().get_data(path) if data is None else data

    def source_to_code(self, data, path, **options):
        code = super().source_to_code(data, path, **options)
        if saved(path) is not None:
            # Without a time, which the file on the disk would be compared with.
            lines = decode_source(data).splitlines(keepends=True)
            linecache.cache[path] = (len(data), None, lines, path)
        return code


class Finder(machinery.FileFinder):
    """Finds what there is on the disk, and what is gone from it since."""

    def __init__(self, path):
        super().__init__(
            path,
            (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
            (Loader, machinery.SOURCE_SUFFIXES),
            (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
        )

    def find_spec(self, fullname, target=None):
        found = super().find_spec(fullname, target)
        if found is not None and found.loader is not None:
            return found
        path = join(self.path, fullname.rpartition(".")[2])
        for file, places in ((join(path, "__init__.py"), [path]), (path + ".py", None)):
            if saved(file) is not None:
                loader = Loader(fullname, file)
                return spec_from_file_location(
                    fullname, file, loader=loader, submodule_search_locations=places
                )
        return found
