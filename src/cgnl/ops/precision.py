"""Whether float32 is multiplied as TF32, by the older of torch's settings or by the newer ones.

``allow_tf32`` says it for a library; since torch 2.9 ``fp32_precision`` says it for each of its operations, and more
generally where these are "none". After the latter, reading the former raises where it cannot express them, and False
leaves convolutions to the general setting.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch


def convolutions_in_tf32() -> bool:
    """Whether cuDNN may multiply float32 as TF32 in convolutions."""
    cudnn: Any = torch.backends.cudnn
    try:
        return cudnn.allow_tf32
    except RuntimeError:
        return cudnn.conv.fp32_precision == "tf32"


@contextmanager
def tf32_allowed(allowed: bool) -> Iterator[None]:
    """Allow TF32 in matrix products and convolutions, or not, and give back what was set."""
    older: list[Any] = [torch.backends.cudnn, torch.backends.cuda.matmul]
    newer = [older[0].conv, older[0].rnn, older[1]] if hasattr(older[0], "conv") else []
    before = []
    for owner in older:
        with suppress(RuntimeError):
            before.append((owner, "allow_tf32", owner.allow_tf32))
    before += [(owner, "fp32_precision", owner.fp32_precision) for owner in newer]
    for owner in older:
        owner.allow_tf32 = allowed
    for owner in newer:
        owner.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
