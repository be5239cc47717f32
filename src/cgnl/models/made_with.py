"""What a network was made with, as JSON has it, and the network that it makes."""

from typing import Any

from torch import nn

from ..ops import kernels
from ..spelling import first_line
from ..surgery import BLOCKS
from . import create_model


def config_of(network: nn.Module) -> dict[str, Any]:
    """What is needed to build a network of ``create_model`` again, as JSON has it: for ``network_of``."""
    made_with = getattr(network, "made_with", None)
    if made_with is None:
        raise ValueError(f"this {type(network).__name__} was not made by cgnl.create_model")
    block = made_with.get("block")
    if block is not None and not isinstance(block, str):
        named = next((n for n, cls in BLOCKS.items() if block is cls), None)
        if named is None:
            raise ValueError(f"the block {block!r} has no name: a file can only name {', '.join(BLOCKS)}")
        made_with = made_with | {"block": named}
    return {name: _encoded(value) for name, value in made_with.items()}


def network_of(network: str, **options: Any) -> nn.Module:
    """The network that these settings are of, with new weights."""
    try:
        return create_model(network, **{name: _decoded(value) for name, value in options.items()})
    except (ArithmeticError, AttributeError, RuntimeError, TypeError) as error:  # options have whatever types they have
        raise ValueError(f"{network} cannot be built: {first_line(error)}") from None


def _encoded(value: Any) -> Any:
    return kernels.spell(value) if isinstance(value, kernels.Kernel) else value


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict) or value.get("kernel") not in kernels.__all__:
        return value
    return getattr(kernels, value["kernel"])(*value["arguments"])  # as files used to name kernels
