"""Optional dependencies, named when they are missing."""

import importlib
from types import ModuleType


def need(module: str, extra: str) -> ModuleType:
    """Import a module, or say which extra of cgnl brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name != top:
            raise
        raise ModuleNotFoundError(f'this needs {top}: pip install "cgnl[{extra}]"', name=top) from None
