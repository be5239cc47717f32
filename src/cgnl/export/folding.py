"""Batch norms folded into the convolutions before them."""

import copy
from collections import Counter
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..heads import second_order_pools

Model = TypeVar("Model", bound=nn.Module)


def fold(model: Model) -> Model:
    """A copy of a network, for inference alone, whose batch norms are part of the convolutions before them.

    Blocks keep theirs, because the attention stands between W_z and the norm, and a compact head its own, which follows
    a square root.
    """
    folded = copy.deepcopy(model).eval()
    try:
        nodes = torch.fx.symbolic_trace(folded).graph.nodes
    except Exception as error:  # torch.fx and the network may stumble over anything
        raise ValueError(f"the order of the layers cannot be followed: {error}") from None
    calls = Counter(node.target for node in nodes if node.op == "call_module")
    for node in nodes:
        before = node.args[0] if node.op == "call_module" else None
        if not isinstance(before, torch.fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        conv: Any
        norm: Any
        conv, norm = (folded.get_submodule(str(n.target)) for n in (before, node))
        once = calls[before.target] == calls[node.target] == 1
        if once and type(conv) in _CONVOLUTIONS and type(norm) in _NORMS and norm.running_mean is not None:
            folded.set_submodule(str(before.target), fuse_conv_bn_eval(conv, norm))
            folded.set_submodule(str(node.target), nn.Identity())
    for head in second_order_pools(folded).values():  # each is one layer to torch.fx
        if head.kind != "compact" and type(head.norm) in _NORMS and head.norm.running_mean is not None:
            reduce: Any = head.reduce
            head.reduce, head.norm = fuse_conv_bn_eval(reduce, head.norm), nn.Identity()
    return folded


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
