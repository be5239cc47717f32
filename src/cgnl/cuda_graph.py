"""CUDA graphs: all kernels of a step, launched at once."""

from collections.abc import Callable
from typing import Any

import torch


def capture(step: Callable[[], Any], clear: Callable[[], None] = lambda: None) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Capture a step; return the graph, and the step's output, which each replay overwrites.

    ``clear`` is called before every step, of the warm-up too.
    """
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):  # what is set up on first use must not be captured
        for _ in range(3):
            clear()
            step()
    current.wait_stream(side)
    clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    return graph, output
