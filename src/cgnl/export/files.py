"""A network as a file: ONNX, a torch.export program, safetensors, or a folder in Hugging Face's convention.

Every file is checked against the network on several shapes. ONNX files and programs take inputs of any batch size and,
unless the network has one size, of any height, width and clip length.
"""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..atomic_io import naming_if_full
from ..extras import need
from ..models.arguments import build_again, get_arguments
from ..surgery import in_eval_mode
from ..text import first_line

SUFFIXES = (".onnx", ".pt2", ".safetensors")
CARD = "cgnl"
"""The name of the card in a file's metadata."""
INPUT, OUTPUT = "pixels", "logits"
"""Names in an ONNX file."""
BAR = 1e-4
"""The largest difference allowed between an export and its network, relative to the largest output."""

IMAGES = ((1, 64, 64), (3, 65, 97), (2, 96, 33), (1, 32, 32), (1, 127, 80))
CLIPS = ((1, 8, 64, 64), (3, 9, 65, 49), (2, 16, 33, 48), (1, 8, 32, 32), (1, 13, 80, 64))
"""Batch, frames, height and width to try: one sample and three, odd sizes, and the smallest input of a ResNet."""

Function = Callable[[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class Agreement:
    """How closely an export follows its network."""

    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the inputs."""
    differences: tuple[float, ...]
    """The largest difference for each input, relative to the largest output."""

    @property
    def largest(self) -> float:
        """The largest of all differences."""
        return max(self.differences)

    @property
    def one_size(self) -> bool:
        """Whether only the batch may differ."""
        return len({shape[1:] for shape in self.shapes}) == 1


def to_file(network: nn.Module, suffix: str, card: Mapping[str, Any], size: Sequence[int]) -> tuple[bytes, Agreement]:
    """The network as the bytes of a file of this kind, checked against it, with the card inside."""
    text = json.dumps(card)
    if suffix == ".onnx":
        return to_onnx(network, {CARD: text}, size)
    if suffix == ".pt2":
        return to_program(network, {f"{CARD}.json": text}, size)
    return to_safetensors(network, {CARD: text}, size)


def to_onnx(
    model: nn.Module, about: Mapping[str, str] | None = None, size: Sequence[int] = ()
) -> tuple[bytes, Agreement]:
    """The network as an ONNX file, checked against it by onnxruntime.

    Args:
        model: a float32 network of ours; of a detector, its backbone is exported.
        about: text to put into the file's metadata, or None.
        size: [frames,] height and width of a sample that the network was made for, to be checked too.
    """
    model = part_that_exports(model)

    def write(only: Sequence[int]) -> tuple[bytes, Function]:
        content = convert(*_trace_for(model, only), about)
        return content, start_onnx(content)

    return _write_checked(model, size, write)


def to_program(
    model: nn.Module, about: Mapping[str, str] | None = None, size: Sequence[int] = ()
) -> tuple[bytes, Agreement]:
    """The network as a .pt2 file, checked against it; ``torch.export.load(file).module()`` runs it.

    Args:
        model: a float32 network of ours; of a detector, its backbone is exported.
        about: text to store with the program, by file name, or None.
        size: [frames,] height and width of a sample that the network was made for, to be checked too.
    """
    model = part_that_exports(model)

    def write(only: Sequence[int]) -> tuple[bytes, Function]:
        file = io.BytesIO()
        torch.export.save(_trace_for(model, only)[0], file, extra_files=dict(about or {}))
        loaded = torch.export.load(io.BytesIO(file.getvalue())).module()
        return file.getvalue(), partial(run_network, loaded)

    return _write_checked(model, size, write)


def _trace_for(model: nn.Module, only: Sequence[int]) -> tuple[ExportedProgram, dict[int, str]]:
    """The network as a program for inputs of any size, or of this one alone, with the names of its free axes."""
    axes = {0: "batch"} if only else free_axes(model)
    return trace(model, torch.randn(2, 3, *only) if only else None, axes), axes


def _write_checked(
    model: nn.Module, size: Sequence[int], write: Callable[[Sequence[int]], tuple[bytes, Function]]
) -> tuple[bytes, Agreement]:
    """Write a network for inputs of any size; for its own alone if it takes, or its program knows, no other.

    Transformers have position embeddings of one size, and windows that depend on it. ``write`` takes that size, or (),
    and returns the file with a function that runs it.
    """
    try:
        content, run = write(())
        return content, agree(model, run, example_inputs(model, size))
    except ValueError:
        if not size:
            raise
        content, run = write(size)
        return content, agree(model, run, own_size_inputs(size))


def to_safetensors(network: nn.Module, about: Mapping[str, str], size: Sequence[int]) -> tuple[bytes, Agreement]:
    """The weights, checked by building the network of ``create_model`` again."""
    safetensors = need("safetensors.torch", "vision")
    weights = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    content = safetensors.save(weights, {"format": "pt", **about})
    again = build_again(**get_arguments(network))
    again.load_state_dict(safetensors.load(content))
    return _check_copy(network, again, content, size)


def to_folder(
    network: nn.Module, folder: Path, card: Mapping[str, Any], size: Sequence[int]
) -> tuple[bytes, Agreement]:
    """The network in Hugging Face's convention, checked by loading it again; returns the bytes of its weights."""
    from ..models.pretrained import WEIGHTS, Network

    with naming_if_full(folder):
        Network(network, classes=card["classes"], preprocessing=card["preprocessing"]).save_pretrained(folder)
    again = Network.from_pretrained(folder).network
    return _check_copy(network, again, (folder / WEIGHTS).read_bytes(), size)


def _check_copy(network: nn.Module, again: nn.Module, content: bytes, size: Sequence[int]) -> tuple[bytes, Agreement]:
    """Check a network that was built again from a file."""
    run = partial(run_network, part_that_exports(again).eval())
    return _write_checked(part_that_exports(network), size, lambda _: (content, run))


def part_that_exports(model: nn.Module) -> nn.Module:
    """The network; of a detector its backbone, since all that follows depends on the number of objects."""
    return model.get_submodule("backbone") if hasattr(model, "roi_heads") else model


def free_axes(model: nn.Module) -> dict[int, str]:
    """The axes of the input that may be of any size, with their names."""
    names = ("batch", "frames", "height", "width") if takes_clips(model) else ("batch", "height", "width")
    return dict(zip((0, *range(2, len(names) + 1)), names, strict=True))


def trace(model: nn.Module, example: Tensor | None = None, free: Iterable[int] | None = None) -> ExportedProgram:
    """The network in eval mode as a program; all axes but the channels are free unless ``free`` names others.

    ``example`` gives the number of axes, and must not have an axis of size 1, nor cause one in any layer.
    """
    if example is None:
        example = torch.randn(2, 3, *((16, 48, 64) if takes_clips(model) else (112, 128)))
    axes = dict.fromkeys((0, *range(2, example.ndim)) if free is None else free, Dim.DYNAMIC)
    with in_eval_mode(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch's own internals
        try:
            program = torch.export.export(model, (example,), dynamic_shapes=(axes,))
        except Exception as error:  # a user's network may do anything
            raise ValueError(f"torch.export cannot follow the network: {explain_error(error)}") from error
    # What torch noted about the example's strides (that no layer has a size of 1, that one size is larger than another)
    # would be demanded of every input. No operation depends on it, which the shapes of the check show.
    program._guards_code = []
    return program


def convert(program: ExportedProgram, axes: Mapping[int, str], about: Mapping[str, str] | None = None) -> bytes:
    """A program of torch.export with one input as an ONNX file whose free axes have names."""
    need("onnxscript", "export")
    count = len(program.graph_signature.user_outputs)
    outputs = [OUTPUT] if count == 1 else [f"features{i}" for i in range(count)]
    names: Any = {"input_names": [INPUT], "output_names": outputs, "dynamic_shapes": (dict(axes),)}
    try:
        with _quiet():
            exported: Any = torch.onnx.export(program, dynamo=True, verbose=False, **names)
    except Exception as error:  # a user's network may do anything
        raise ValueError(f"ONNX cannot express the network: {explain_error(error)}") from error
    exported.model.metadata_props.update(about or {})
    return exported.model_proto.SerializeToString()


def start_onnx(content: bytes) -> Function:
    """A function that runs an ONNX file on the CPU."""
    session = need("onnxruntime", "export").InferenceSession(content, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: [torch.from_numpy(y) for y in session.run(None, {name: x.numpy()})]


@contextlib.contextmanager
def _quiet():
    """Silence the exporter's progress messages."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def agree(model: nn.Module, exported: Function, inputs: Sequence[Tensor]) -> Agreement:
    """Compare an export with its network in eval mode; ``ValueError`` if they differ."""
    differences = []
    for x in inputs:
        shape = format_shape(x.shape)
        try:
            with in_eval_mode(model):
                expected = run_network(model, x)
        except Exception as error:  # a user's network may do anything
            raise ValueError(f"the network takes no {shape}: {explain_error(error)}") from error
        if not all(y.isfinite().all() for y in expected):
            raise ValueError(f"the network's own output is not finite for an input of {shape}")
        try:
            actual = exported(x)
        except Exception as error:  # every runtime has errors of its own
            raise ValueError(f"the export does not take an input of {shape}: {explain_error(error)}") from error
        largest = max(difference(a, e) for a, e in zip(actual, expected, strict=True))
        if not largest <= BAR:
            raise ValueError(
                f"the export differs from the network by {largest:.1e} of its largest output, more than {BAR:.0e}, "
                f"for an input of {shape}"
            )
        differences.append(largest)
    return Agreement(tuple(tuple(x.shape) for x in inputs), tuple(differences))


def example_inputs(model: nn.Module, size: Sequence[int] = ()) -> list[Tensor]:
    """Random inputs of several shapes; ``size`` adds the one that the network was made for."""
    shapes = CLIPS if takes_clips(model) else IMAGES
    if size and (1, *size) not in shapes:
        shapes = (*shapes[:-1], (1, *size))
    return _draw_inputs(shapes)


def own_size_inputs(size: Sequence[int]) -> list[Tensor]:
    """Random inputs of one size, of different batches."""
    return _draw_inputs([(batch, *size) for batch in (1, 3, 2)])


def _draw_inputs(shapes: Iterable[Sequence[int]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, 3, *size, generator=generator) for batch, *size in shapes]


def takes_clips(model: nn.Module) -> bool:
    """Whether a network is for [B, 3, T, H, W] and not for [B, 3, H, W]."""
    return isinstance(next(m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)), nn.Conv3d)


def run_network(model: Callable, x: Tensor) -> list[Tensor]:
    """The outputs for x as a list: backbones of detectors return dictionaries."""
    with torch.no_grad():
        y = model(x)
    return list(y.values()) if isinstance(y, dict) else [y]


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest element; infinite where the shapes differ."""
    if actual.shape != expected.shape:
        return float("inf")
    largest = expected.abs().max().clamp_min(torch.finfo(expected.dtype).tiny)
    return float((actual - expected).abs().max() / largest)


def format_shape(shape: Sequence[int]) -> str:
    """``1 x 3 x 64 x 64``."""
    return " x ".join(map(str, shape))


def explain_error(error: Exception) -> str:
    """What went wrong, in one line."""
    return first_line(error.__cause__ or error)
