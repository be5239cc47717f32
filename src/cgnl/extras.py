"""Optional dependencies, named when they are missing."""

import importlib
from types import ModuleType


def need(module: str, extra: str) -> ModuleType:
    """Import a module, or raise with the extra of cgnl that brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise with_extra(error, extra) from None


def with_extra(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return the error with the extra of cgnl that brings the module, unless its message says so already."""
    if not error.name or not str(error).startswith("No module named"):
        return error
    top = error.name.partition(".")[0]
    return ModuleNotFoundError(f'this needs {top}: pip install "cgnl[{extra}]"', name=top)
