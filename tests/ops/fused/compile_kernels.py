"""Compile all kernels of some blocks for GPUs that need not be there; prints what each takes of the shared memory.

``python -m tests.ops.fused.compile_kernels 80 86 89``
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from cgnl import CGNL, kernels, ops
from cgnl.ops import fused
from cgnl.ops.fused import launch

SHARED = {80: 163, 86: 99, 89: 99, 90: 227}
"""KiB for each program, by compute capability."""
BLOCKS: dict[str, Any] = {
    "bfloat16": {"dtype": torch.bfloat16},
    "one group, float16": {"dtype": torch.float16, "groups": 1, "kernel": "embedded_gaussian"},
    "float32": {"dtype": torch.float32, "norm": "group"},
    "contiguous": {"dtype": torch.bfloat16, "layout": torch.contiguous_format, "size": 16},
    "contiguous, not aligned": {"dtype": torch.bfloat16, "layout": torch.contiguous_format},
    "contiguous, one group": {
        "dtype": torch.bfloat16, "groups": 1, "inner_channels": 256, "layout": torch.contiguous_format, "size": 16
    },
}  # fmt: skip
OF_EACH = {
    80: ("bfloat16",),
    86: ("bfloat16", "one group, float16", "float32", "contiguous, not aligned", "contiguous, one group"),
    89: ("bfloat16",),
    90: ("bfloat16", "contiguous", "contiguous, not aligned"),
}
"""Blocks that are compiled for each GPU: those before 9.0 read the same way and differ in their tiles alone."""


class Driver:
    """What Triton asks of a GPU in order to compile."""

    def __init__(self, capability: int):
        self.capability = capability
        self.get_current_target = lambda: GPUTarget("cuda", capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps what it has compiled by the number of the device

    def get_current_stream(self, device: int) -> int:
        return device


@contextmanager
def recorded() -> Iterator[dict[str, float]]:
    """KiB of shared memory of each kernel that is launched, and only compiled."""
    found = {}

    def compile_only(self: launch.Launch, *tensors: Any) -> None:
        arguments = (*tensors, *self.constants)
        compiled = self.kernel.warmup(*arguments, grid=self.grid, num_warps=self.warps, num_stages=self.stages)
        found[self.kernel.__name__] = compiled.metadata.shared / 1024

    run, launch.Launch.__call__ = launch.Launch.__call__, compile_only
    yield found
    launch.Launch.__call__ = run


def compile_block(
    dtype: torch.dtype, layout: torch.memory_format = torch.channels_last, size: int = 14, **options
) -> dict[str, float]:
    block = CGNL(256, backend="fused", **options).to(dtype)
    x = torch.zeros(2, 256, size, size, dtype=dtype).to(memory_format=layout).requires_grad_()
    with recorded() as found:
        block(x).backward(torch.zeros_like(x))
        with torch.no_grad():
            block.eval()(x)
    return found


def compile_operator(dtype: torch.dtype, layout: torch.memory_format, **options) -> dict[str, float]:
    inputs = [torch.zeros(2, 64, 14, 14, dtype=dtype).to(memory_format=layout).requires_grad_() for _ in range(3)]
    with recorded() as found:
        ops.compact_generalized_non_local(*inputs, groups=8, backend="fused", **options).sum().backward()
    return found


def main(*capabilities: int) -> None:
    """Compile the blocks of each capability."""
    fused.why_not = fused.why_not_operator = fused.why_not_series = lambda *_, **__: None
    torch.backends.cudnn.allow_tf32 = True
    found = {}
    for capability in capabilities:
        driver.set_active(Driver(capability))  # pyright: ignore[reportArgumentType]
        launch.pretended = launch.Hardware(108, capability >= 90, SHARED[capability])
        found[capability] = {name: compile_block(**BLOCKS[name]) for name in OF_EACH[capability]}
        found[capability]["operator"] = compile_operator(torch.bfloat16, torch.contiguous_format)
        rows = {"normalize": True, "kernel": kernels.GaussianRBF(beta="exact")}
        found[capability]["rows that sum to one"] = compile_operator(torch.bfloat16, torch.channels_last, **rows)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
