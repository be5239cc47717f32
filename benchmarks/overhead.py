"""What a step of the fused block costs Python, without a GPU: kernels are not run, all else is.

    python -m benchmarks.overhead

prints for some blocks, so small that matrix products take no time, what forward (without gradients) and forward +
backward take, as a multiple of an in-place addition that is measured in turns with them, and how many operations of
torch and launches of kernels a training step has.
"""

import os
import time
from collections.abc import Callable

import torch

CASES = {
    "dot": {},
    "dot, recompute": {"recompute": True},
    "dot, group norm": {"norm": "group"},
    "RBF": {"kernel": "rbf"},
}
LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
ROUNDS, REPEATS = 60, 20


def measure(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def compare(run: Callable[[], object]) -> float:
    """How many in-place additions a call takes, each in its fastest round: what else runs on the machine only adds."""
    number = torch.zeros(())
    run()
    rounds = [(measure(run), measure(lambda: number.add_(1), 20 * REPEATS)) for _ in range(ROUNDS)]
    steps, additions = zip(*rounds, strict=True)
    return min(steps) / min(additions)


def count_operations(run: Callable[[], object]) -> int:
    """Operations of torch, also those that others call."""
    profile = torch.autograd.profiler.profile()
    with profile:
        run()
    return sum(event.name.startswith("aten::") for event in profile.function_events or [])


def main() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    from cgnl import CGNL
    from cgnl.ops.fused import autograd, launch

    launches = []
    launch.Launch.__call__ = lambda self, *_: launches.append(self)
    autograd.count_parts = lambda *_: 2  # as at sizes that take time
    torch.set_num_threads(1)
    for name, options in CASES.items():
        for layout, memory_format in LAYOUTS.items():
            block = CGNL(64, groups=8, inner_channels=64, backend="fused", **options)
            x = torch.randn(2, 64, 2, 2).contiguous(memory_format=memory_format).requires_grad_()
            gradient, parameters = torch.randn_like(x), (x, *block.parameters())

            def train(block=block, x=x, gradient=gradient, parameters=parameters) -> None:
                torch.autograd.grad(block(x), parameters, gradient)

            block.eval()
            with torch.no_grad():
                forward = compare(lambda block=block, x=x: block(x))
            block.train()
            step = compare(train)
            launches.clear()
            train()
            count = len(launches)
            print(
                f"{name}, {layout}: forward {forward:.0f}, training {step:.0f} add_ "
                f"({count_operations(train)} operations, {count} launches)",
                flush=True,
            )


if __name__ == "__main__":
    main()
