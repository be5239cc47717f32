"""Grad-CAM, to stand beside the other maps: where the score of a class comes from."""

import torch
from torch import Tensor, nn

from ..extras import need
from ..heads import second_order_pools
from ..surgery import in_eval_mode
from .maps import blocks_of, check_input, find_block


def grad_cam(model: nn.Module, x: Tensor, target: int | None = None, layer: str | None = None) -> Tensor:
    """Grad-CAM of one sample at the output of a layer, [*positions], at least 0.

    Args:
        model: a classifier, [1, channels, *positions] -> [1, K].
        x: one sample, [1, channels, *positions].
        target: the class; the predicted one unless given.
        layer: dotted name of any module; unless given the last NL or CGNL block, or else what a second-order head is
            given.
    """
    check_input(x)
    blocks, heads = blocks_of(model), second_order_pools(model)
    before_head = layer is None and not blocks and bool(heads)
    layer = layer or (list(heads)[-1] if before_head else find_block(blocks, None))
    captum = need("captum.attr", "explain")
    with in_eval_mode(model), torch.enable_grad():
        if target is None:
            target = int(model(x.detach()).float().softmax(1).argmax(1))
        cam = captum.LayerGradCam(model, model.get_submodule(layer))
        options = {"target": target, "relu_attributions": True, "attribute_to_layer_input": before_head}
        heat = cam.attribute(x.detach().requires_grad_(), **options)  # [1, 1, *P]
    return heat[0, 0].detach().float().cpu()
