"""Networks as programs of torch.export, for inputs of every batch size, height, width and clip length."""

import io
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..surgery import in_eval_mode
from .agreement import Agreement, agree, cause_of, example_inputs, outputs_of, takes_clips

AXES = ("batch", "frames", "height", "width")
"""What may be of any size in a clip [B, 3, T, H, W]; pictures have no frames."""


def part_that_exports(model: nn.Module) -> nn.Module:
    """The network; of a detector its backbone, since what follows depends on how much there is to find."""
    return model.get_submodule("backbone") if hasattr(model, "roi_heads") else model


def axes_of(model: nn.Module) -> dict[int, str]:
    """The axes of the input that may be of any size, with their names."""
    names = AXES if takes_clips(model) else tuple(name for name in AXES if name != "frames")
    return dict(zip((0, *range(2, len(names) + 1)), names, strict=True))


def trace(model: nn.Module, example: Tensor | None = None) -> ExportedProgram:
    """The network in eval mode as a program. ``example`` tells the number of axes; it must not have an axis of 1."""
    if example is None:
        example = torch.randn(2, 3, *((16, 48, 64) if takes_clips(model) else (112, 128)))  # no layer sees a size of 1
        axes = axes_of(model)
    else:
        axes = dict.fromkeys((0, *range(2, example.ndim)))
    with in_eval_mode(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own insides
        try:
            program = torch.export.export(model, (example,), dynamic_shapes=(dict.fromkeys(axes, Dim.DYNAMIC),))
        except Exception as error:  # a network of somebody's own may do anything
            raise ValueError(f"torch.export cannot follow the network: {cause_of(error)}") from error
    # What torch noted about the example's strides (that no layer has a size of 1, that one size is larger than another)
    # would be demanded of every input. No operation depends on it, which the shapes of the check show.
    program._guards_code = []
    return program


def to_program(
    model: nn.Module, about: Mapping[str, str] | None = None, size: Sequence[int] = ()
) -> tuple[bytes, Agreement]:
    """The network as a .pt2 file, checked against it; ``torch.export.load(file).module()`` runs it.

    Args:
        model: a float32 network of ours; of a detector, its backbone is exported.
        about: text to put beside the program, by the name of its file, or None.
        size: [frames,] height and width of a sample that the network was made for, to be checked too.
    """
    model = part_that_exports(model)
    file = io.BytesIO()
    torch.export.save(trace(model), file, extra_files=dict(about or {}))
    with in_eval_mode(model):
        loaded = torch.export.load(io.BytesIO(file.getvalue())).module()
        return file.getvalue(), agree(model, lambda x: outputs_of(loaded, x), example_inputs(model, size))
