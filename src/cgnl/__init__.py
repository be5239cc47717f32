"""Compact generalized non-local networks: relations between every position of every channel, at linear cost."""

import importlib
from typing import TYPE_CHECKING

from .extras import with_extra

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import explain, export, kernels, models, ops
    from .blocks import CGNL, NonLocal, SimpleResidual
    from .heads import SecondOrderPool
    from .models import create_model, load_reference_checkpoint
    from .surgery import insert, placement, remove
    from .trained import load

# Public name -> where it lives, "module" or "module:attribute". Nothing is imported before it is asked for.
_PUBLIC = {
    "CGNL": "blocks:CGNL",
    "NonLocal": "blocks:NonLocal",
    "SecondOrderPool": "heads:SecondOrderPool",
    "SimpleResidual": "blocks:SimpleResidual",
    "create_model": "models:create_model",
    "explain": "explain",
    "export": "export",
    "insert": "surgery:insert",
    "kernels": "kernels",
    "load": "trained:load",
    "load_reference_checkpoint": "models:load_reference_checkpoint",
    "models": "models",
    "ops": "ops",
    "placement": "surgery:placement",
    "remove": "surgery:remove",
}

_EXTRAS = {"load": "train"}
"""What a public name needs beyond torch, where it is more than create_model does."""

__all__ = [
    "CGNL",
    "NonLocal",
    "SecondOrderPool",
    "SimpleResidual",
    "create_model",
    "explain",
    "export",
    "insert",
    "kernels",
    "load",
    "load_reference_checkpoint",
    "models",
    "ops",
    "placement",
    "remove",
]


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'cgnl' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    try:
        value = importlib.import_module(f".{module}", __name__)
    except ModuleNotFoundError as error:
        raise with_extra(error, _EXTRAS.get(name, "vision")) from None
    value = getattr(value, attribute) if attribute else value
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
