"""Parameters and multiply-adds of the networks."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from . import create_model, is_detector, is_video

MOST = 10**6
"""Largest side, number of frames or classes: products of larger ones overflow a tensor's size."""


@dataclass(frozen=True)
class Cost:
    """A network's size, and the multiply-adds of one input."""

    network: str
    blocks: str
    head: str
    input: str
    parameters: int
    gmacs: float


def cost(network: str, size: int = 224, frames: int = 32, num_classes: int | None = None, **options) -> Cost:
    """Count on the meta device, without computing or using memory."""
    video = is_video(network)
    shape = (frames, size, size) if video else (size, size)
    with torch.device("meta"):
        model = create_model(network, num_classes=num_classes, **options).eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            _run(network, model, torch.empty(1, 3, *shape))
    parameters = sum(p.numel() for p in model.parameters())
    blocks = f"{options.get('blocks', 1)} {options['block']}" if options.get("block") else "-"
    head = options.get("head", "average")
    head = head if head == "average" else f"{head} {options.get('reduced', 256)}"
    return Cost(network, blocks, head, " x ".join(map(str, shape)), parameters, counter.get_total_flops() / 2e9)


def _run(network: str, model: nn.Module, x: Tensor) -> None:
    if not is_detector(network):
        model(x)
        return
    from .detection import dense_pass  # with which torchvision's detection is imported

    dense_pass(model, x)
