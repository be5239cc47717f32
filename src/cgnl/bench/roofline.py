"""How fast a step could be: what it must compute and move, over the speeds measured on the same machine."""

from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from .cases import Case
from .measure import measure
from .settings import Setting


@dataclass(frozen=True)
class Ceilings:
    """FLOP a second of a large matrix product, and bytes a second that a large copy reads and writes."""

    flops: float
    bytes: float

    def milliseconds(self, flops: float, bytes: float) -> float:
        return 1e3 * max(flops / self.flops, bytes / self.bytes)


@contextmanager
def precision(tf32: bool):
    """Multiply float32 as TF32, or not; convolutions pick the fastest algorithm, as in training."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=tf32):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def measure_ceilings(setting: Setting) -> Ceilings:
    side, length = (8192, 2**30) if setting.device.type == "cuda" else (768, 2**26)
    a, b = torch.randn(2, side, side, device=setting.device).to(setting.dtype)
    product = measure(lambda: a @ b, setting.device, setting.seconds)
    source, target = torch.zeros(2, length, dtype=torch.uint8, device=setting.device)
    copy = measure(lambda: target.copy_(source), setting.device, setting.seconds)
    return Ceilings(2 * side**3 / (1e-3 * product.median), 2 * length / (1e-3 * copy.median))


def count_flops(case: Case) -> int:
    with FlopCounterMode(display=False) as counter:
        case.clear()
        case.step()
    return counter.get_total_flops()


def least_bytes(case: Case, output: Tensor) -> int:
    """Inputs, weights and the output cross the memory's border once, and in training so does the gradient of each."""
    moved = _bytes([*case.inputs, *case.parameters, output])
    if not case.train:
        return moved
    return moved + _bytes([t for t in (*case.inputs, *case.parameters) if t.requires_grad]) + _bytes([output])


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
