"""Functions that launch kernels as operators of torch: shapes for compilers, costs for counters."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .launch import aligned

_library = torch.library.Library("cgnl", "FRAGMENT")


def torch_operator(fake: Callable, flops: Callable = lambda *_: 0) -> Callable:
    """The function as an operator of its name for compilers and counters; all others call the function itself.

    What goes through torch's dispatcher costs Python as much as a kernel does. ``fake`` makes results without numbers,
    ``flops`` counts two operations for each multiply-add from the shapes of all tensors.
    """

    def define(function: Callable) -> Callable:
        # Not torch.library.custom_op: its first call imports torch._dynamo, which takes seconds.
        name = function.__name__
        _library.define(name + torch.library.infer_schema(function, mutates_args=()))
        _library.impl(name, lambda *arguments: function(*map(_align, arguments)), "CompositeExplicitAutograd")
        torch.library.register_fake(f"cgnl::{name}", fake, lib=_library)
        packet = getattr(torch.ops.cgnl, name)
        register_flop_formula(packet)(lambda *shapes, **_: flops(*shapes))

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
                return packet.default(*arguments)
            return function(*arguments)

        return call

    return define


def _align(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return aligned(argument)
    return [*map(_align, argument)] if isinstance(argument, list) else argument
