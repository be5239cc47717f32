"""FSDP2: weights, gradients and the state of the optimizer, each divided over the ranks.

The optimizer and the average of the weights see the part of this rank as plain tensors, so that fused kernels apply.
Nothing of it is imported before it is used: it takes seconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..models.layers import find_stages
from .distributed import is_rank_zero, world_size


def divide(network: nn.Module, device: torch.device) -> None:
    """Divide the weights of a network; those of a residual block are gathered while it computes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    network.to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]  # FSDP2 takes no other
    mesh = init_device_mesh(device.type, (world_size(),))
    for name in chain.from_iterable(find_stages(network)):
        fully_shard(network.get_submodule(name), mesh=mesh)
    fully_shard(network, mesh=mesh)
    for parameter in network.parameters():
        mine: Any = parameter
        mine.part = nn.Parameter(mine.to_local().detach(), parameter.requires_grad)


def part(tensor: Tensor) -> Any:
    """This rank's part of a divided weight; any other tensor itself."""
    return getattr(tensor, "part", tensor)


def whole(tensor: Any) -> Any:
    """A divided tensor, gathered on the CPU of rank 0 (all ranks must call this); anything else as it is."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    full = tensor.full_tensor()
    return full.cpu() if is_rank_zero() else full.new_empty(0)


def divided_like(tensor: Tensor, like: Any) -> Tensor:
    """A tensor that every rank has, divided as another is."""
    if not hasattr(like, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def take_gradients(network: nn.Module) -> None:
    """Hand the gradients of divided weights over to their parts."""
    for parameter in network.parameters():
        if parameter.grad is not None:
            gradient: Any = parameter.grad
            part(parameter).grad, parameter.grad = gradient.to_local(), None


def total_norm(norm: Tensor) -> Tensor:
    """The norm of all gradients, from that of the parts of this rank."""
    square = norm.square()
    dist.all_reduce(square)
    return square.sqrt()


def read_state(optimizer: torch.optim.Optimizer, network: nn.Module) -> dict[str, Any]:
    """The state of the optimizer of a divided network, put together on rank 0."""
    from torch.distributed.tensor import DTensor

    def join(value: Tensor, like: Any) -> Tensor:
        shape = {"shape": like.shape, "stride": like.stride()}
        return whole(DTensor.from_local(value, like.device_mesh, like.placements, **shape))

    return _change(optimizer.state_dict(), join, optimizer, network)


def divide_state(state: dict[str, Any], optimizer: torch.optim.Optimizer, network: nn.Module) -> dict[str, Any]:
    """The reverse: of the whole state of an optimizer the part of this rank."""

    def divide_one(value: Tensor, like: Any) -> Tensor:
        mine: Any = divided_like(value, like)
        return mine.to_local()

    return _change(state, divide_one, optimizer, network)


def _change(
    state: dict[str, Any],
    change: Callable[[Tensor, Any], Tensor],
    optimizer: torch.optim.Optimizer,
    network: nn.Module,
) -> dict[str, Any]:
    """Change every tensor of the state but the counts of steps, which have no dimensions."""
    weights = {id(part(parameter)): parameter for parameter in network.parameters()}
    order = [weights[id(p)] for group in optimizer.param_groups for p in group["params"]]
    entries = {
        number: {name: change(value, order[number]) if value.ndim else value for name, value in entry.items()}
        for number, entry in state["state"].items()
    }
    return state | {"state": entries}


@contextmanager
def gathered(network: nn.Module) -> Iterator[None]:
    """Gather the weights on every rank, so that each can use the network by itself."""
    parts: list[Any] = [module for module in network.modules() if hasattr(module, "unshard")]
    for module in parts:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in parts:
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()
