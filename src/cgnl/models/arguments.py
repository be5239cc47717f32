"""The arguments of ``create_model`` that a network was built with, as JSON, and the network built from them."""

from typing import Any

from torch import nn

from ..ops import kernels
from ..surgery import BLOCKS
from ..text import first_line
from . import create_model


def get_arguments(network: nn.Module) -> dict[str, Any]:
    """The arguments that a network of ``create_model`` was built with, as JSON: for ``build_again``."""
    arguments = getattr(network, "arguments", None)
    if arguments is None:
        raise ValueError(f"this {type(network).__name__} was not made by cgnl.create_model")
    block = arguments.get("block")
    if block is not None and not isinstance(block, str):
        named = next((n for n, cls in BLOCKS.items() if block is cls), None)
        if named is None:
            raise ValueError(f"the block {block!r} has no name: a file can only name {', '.join(BLOCKS)}")
        arguments = arguments | {"block": named}
    return {n: kernels.spell(v) if isinstance(v, kernels.Kernel) else v for n, v in arguments.items()}


def build_again(network: str, **options: Any) -> nn.Module:
    """The network built from these arguments, with new weights."""
    try:
        return create_model(network, **{name: _decoded(value) for name, value in options.items()})
    except (ArithmeticError, AttributeError, RuntimeError, TypeError) as error:  # options may have any type
        raise ValueError(f"{network} cannot be built: {first_line(error)}") from None


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict) or value.get("kernel") not in kernels.__all__:
        return value
    return getattr(kernels, value["kernel"])(*value["arguments"])  # as files used to name kernels
