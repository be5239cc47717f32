"""Parameters and multiply-adds of the networks."""

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from . import create_model, is_detector, is_video


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
            x = torch.empty(1, 3, *shape)
            if is_detector(network):
                from .detection import dense_pass  # imports torchvision's detection

                dense_pass(model, x)
            else:
                model(x)
    parameters = sum(p.numel() for p in model.parameters())
    blocks = f"{options.get('blocks', 1)} {options['block']}" if options.get("block") else "-"
    head = options.get("head", "average")
    head = head if head == "average" else f"{head} {options.get('reduced', 256)}"
    return Cost(network, blocks, head, " x ".join(map(str, shape)), parameters, counter.get_total_flops() / 2e9)
