"""Triton's interpreter without what takes half of its time."""

import dataclasses
import importlib
import inspect
from typing import Any


def speed_up() -> None:
    """Skip what it repeats in each call of a function, and a check that kernels do not have when they are compiled."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    tl = importlib.import_module("triton.language")
    patch, builder = interpreter._patch_lang, interpreter.interpreter_builder

    def patch_once(function):
        """Replace Triton's language by Python, unless that is done: the kernel that calls this function has done it."""
        modules = [module for module in function.__globals__.values() if inspect.ismodule(module)]
        if any(tl.core.is_builtin(module.load) for module in modules if module in (tl, tl.core)):
            return patch(function)
        return None

    interpreter._patch_lang = patch_once
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
