"""How much the compact form gains over the obvious one, and what it adds to a block: forward + backward, in one run.

    python benchmarks/compact_on_cpu.py [--threads 2] [--rounds 15]

The operator stands against a loop over groups with batched matrix products and stacked powers; the block against its
own convolutions and norm. The two take turns, also at who begins; a ratio is the median of the ratios of the rounds.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import cgnl

KERNELS = {"dot": cgnl.kernels.Dot(), "rbf, order 3": cgnl.kernels.GaussianRBF(order=3)}
SHAPES = [(8, 512, 28, 28), (32, 512, 14, 14), (8, 256, 56, 56), (4, 512, 4, 14, 14)]  # theta, phi, g


def loop_over_groups(theta: Tensor, phi: Tensor, g: Tensor, kernel: cgnl.kernels.Kernel, groups: int) -> Tensor:
    """Theta (Phi^T g) group by group, with Theta and Phi as matrices."""
    outputs = []
    for t, p, v in zip(theta.chunk(groups, 1), phi.chunk(groups, 1), g.chunk(groups, 1), strict=True):
        rows, columns = t.reshape(len(t), 1, -1), p.reshape(len(p), 1, -1)  # [B, 1, NC']
        if kernel != cgnl.kernels.Dot():
            alpha = [math.sqrt(a) for a in kernel.coefficients()]
            rows = torch.cat([a * rows**k for k, a in enumerate(alpha)], 1)  # [B, P + 1, NC']
            columns = torch.cat([a * columns**k for k, a in enumerate(alpha)], 1)
        attention = torch.bmm(columns, v.reshape(len(v), -1, 1))  # [B, P + 1, 1]
        outputs.append(torch.bmm(attention.transpose(1, 2), rows).view_as(t))
    return torch.cat(outputs, 1)


def forward_backward(function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], None]:
    gradient = torch.randn_like(function(*inputs))

    def step() -> None:
        for x in inputs:
            x.grad = None
        function(*inputs).backward(gradient)

    return step


def parts_alone(block: cgnl.CGNL, x: Tensor) -> Callable[[], None]:
    """The block's four convolutions and its norm, each with a gradient coming back."""
    inner = [torch.randn_like(block.theta(x)) for _ in range(2)]
    outer = torch.randn_like(x)

    def step() -> None:
        x.grad = None
        outputs = [block.norm(block.z(block.theta(x))), block.phi(x), block.g(x)]
        torch.autograd.backward(outputs, [outer, *inner])

    return step


def race(first: Callable[[], None], second: Callable[[], None], rounds: int) -> tuple[float, float, float]:
    """Median milliseconds of both, and the median of first / second."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        for which in (0, 1) if number % 2 else (1, 0):
            start = time.perf_counter()
            (first, second)[which]()
            times[which].append(1e3 * (time.perf_counter() - start))
    a, b = (t[2:] for t in times)  # the first two warm up
    return statistics.median(a), statistics.median(b), statistics.median(x / y for x, y in zip(a, b, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {args.threads} threads, float32, 8 groups, forward + backward, milliseconds\n")

    print(f"{'operator: theta, phi, g':26} {'kernel':13} {'loop':>8} {'compact':>8} {'loop / compact':>15}")
    for shape in SHAPES:
        inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
        for name, kernel in KERNELS.items():

            def loop(*x: Tensor, kernel=kernel) -> Tensor:
                return loop_over_groups(*x, kernel=kernel, groups=8)

            def compact(*x: Tensor, kernel=kernel) -> Tensor:
                return cgnl.ops.compact_generalized_non_local(*x, kernel=kernel, groups=8)

            torch.testing.assert_close(compact(*inputs), loop(*inputs), rtol=1e-3, atol=1e-3)
            a, b, ratio = race(forward_backward(loop, *inputs), forward_backward(compact, *inputs), args.rounds)
            print(f"{' x '.join(map(str, shape)):26} {name:13} {a:8.1f} {b:8.1f} {ratio:14.2f}x")

    print(f"\n{'block: x':26} {'kernel':13} {'block':>8} {'parts':>8} {'block / parts':>15}")
    for batch, inner, *positions in SHAPES:
        x = torch.randn(batch, 2 * inner, *positions, requires_grad=True)
        for name, kernel in KERNELS.items():
            block = cgnl.CGNL(2 * inner, ndim=len(positions), kernel=kernel)
            a, b, ratio = race(forward_backward(block, x), parts_alone(block, x), args.rounds)
            print(f"{' x '.join(map(str, x.shape)):26} {name:13} {a:8.1f} {b:8.1f} {ratio:14.2f}x")


if __name__ == "__main__":
    main()
