"""What was exported computes what the module does, on inputs of other shapes than it was traced with."""

import copy
import io
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import cgnl
from cgnl.export import BAR, files, part_that_exports, to_onnx, to_program
from cgnl.export.files import (
    CLIPS,
    IMAGES,
    agree,
    convert,
    difference,
    example_inputs,
    run_network,
    start_onnx,
    to_safetensors,
    trace,
)
from cgnl.heads import KINDS
from cgnl.kernels import Dot, EmbeddedGaussian, GaussianRBF, Taylor
from tests.export.conftest import Small, shorten, stir

KERNELS = {
    "dot": {"kernel": Dot()},
    "embedded_gaussian-normalized": {"kernel": EmbeddedGaussian(order=2), "normalize": True},
    "rbf-norm": {"kernel": GaussianRBF(beta="norm", gamma=1e-3)},
    "rbf-exact": {"kernel": GaussianRBF(beta="exact", gamma=0.1)},
    "rbf-exact-normalized": {"kernel": GaussianRBF(beta="exact", gamma=0.1), "normalize": True},
    "taylor-without-constant": {"kernel": Taylor([0, 1, 0.2])},
}
BLOCKS = {
    **{f"cgnl-{name}": lambda o=o: cgnl.CGNL(8, groups=2, **o) for name, o in KERNELS.items()},
    **{f"cgnl-{s}": lambda s=s: cgnl.CGNL(8, groups=2, kernel="rbf", scale=s) for s in ("sqrt", "resolution")},
    "cgnl-energy": lambda: cgnl.CGNL(8, groups=2, scale="energy"),
    **{f"cgnl-norm-{n}": lambda n=n: cgnl.CGNL(8, groups=2, norm=n) for n in ("group", None)},
    "cgnl-clip": lambda: cgnl.CGNL(8, groups=2, ndim=3, kernel="rbf", scale="sqrt"),
    "nl": lambda: cgnl.NonLocal(8),
    "nl-dot": lambda: cgnl.NonLocal(8, kernel="dot", norm="group"),
    "nl-subsampled": lambda: cgnl.NonLocal(8, subsample=True, norm=None),
    "nl-clip": lambda: cgnl.NonLocal(8, ndim=3, scale=False),
    "residual": lambda: cgnl.SimpleResidual(8, groups=2),
}
SHAPES = [(1, 5, 7), (3, 8, 9), (2, 13, 4), (1, 2, 2), (5, 40, 31)]
"""Batch, height and width; the last has more positions than a non-local block multiplies at once."""


def largest_difference(actual: Tensor, expected: Tensor) -> float:
    assert actual.shape == expected.shape
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("block", BLOCKS)
def test_block_exports_for_every_shape(block):
    module = stir(BLOCKS[block]())
    clips = [] if module.ndim == 2 else [3]
    program = trace(module, torch.randn(2, 8, *clips, 6, 7))
    assert not [node for node in program.graph.nodes if "cgnl" in str(node.target)]  # plain tensor code
    run, loaded = start_onnx(convert(program, {0: "batch"})), program.module()
    for frames, (batch, *size) in enumerate(SHAPES, start=1):
        x = torch.randn(batch, 8, *(frames for _ in clips), *size)
        with torch.no_grad():
            expected = module(x)
            assert largest_difference(loaded(x), expected) < BAR
        assert largest_difference(run(x)[0], expected) < BAR


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_head_exports_for_every_shape(kind, ndim):
    pool = stir(cgnl.SecondOrderPool(8, 5, kind=kind, ndim=ndim))
    clips = [3] * (ndim - 2)
    program = trace(pool, torch.randn(2, 8, *clips, 6, 7))
    assert not [node for node in program.graph.nodes if "cgnl" in str(node.target)]
    run, loaded = start_onnx(convert(program, {0: "batch"})), program.module()
    for frames, (batch, *size) in enumerate([(1, 1, 1), (4, 1, 1), *SHAPES]):
        x = torch.randn(batch, 8, *(max(frames - 1, 1) for _ in clips), *size)
        with torch.no_grad():
            expected = pool(x)
            torch.testing.assert_close(loaded(x), expected, atol=BAR, rtol=0)
        torch.testing.assert_close(run(x)[0], expected, atol=BAR, rtol=0)
        if kind == "covariance" and frames < 2:
            assert not expected.any()  # one position varies with nothing


@pytest.mark.parametrize("kind", KINDS)
def test_head_exports_with_a_batch_that_torch_is_told_of(kind):
    pool, batch = stir(cgnl.SecondOrderPool(8, 5, kind=kind)), torch.export.Dim("batch")
    program = torch.export.export(pool, (torch.randn(3, 8, 4, 4),), dynamic_shapes=({0: batch},))  # no guards dropped
    for samples in (1, 5):
        x = torch.randn(samples, 8, 4, 4)
        torch.testing.assert_close(program.module()(x), pool(x))


@pytest.mark.parametrize(
    ("network", "options", "shape"),
    [
        ("resnet50", {"block": "cgnlx"}, (2, 3, 50, 71)),
        ("i3d_resnet50", {"block": "cgnl", "scale": "resolution"}, (1, 3, 11, 40, 56)),
        ("maskrcnn_resnet50_fpn", {"block": "cgnl"}, (1, 3, 96, 71)),
        ("resnet18", {"head": "covariance"}, (3, 3, 32, 40)),
    ],
    ids=str,
)
def test_network_exports(network, options, shape):
    options = options if "head" in options else {"zero_init": False, **options}
    model: Any = shorten(cgnl.create_model(network, num_classes=4, **options)).eval()
    content, agreement = to_onnx(model, {"note": "hello"})
    assert agreement.largest < BAR
    assert len(agreement.shapes) == 5
    onnx.checker.check_model(onnx.load_from_string(content))
    started = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    assert started.get_modelmeta().custom_metadata_map["note"] == "hello"
    (given,) = started.get_inputs()
    axes = ["batch", 3, "height", "width"] if len(shape) == 4 else ["batch", 3, "frames", "height", "width"]
    assert (given.name, given.shape) == ("pixels", axes)
    x = torch.randn(shape)
    with torch.no_grad():
        expected = model.backbone(x).values() if "maskrcnn" in network else [model(x)]
    found = started.run(None, {"pixels": x.numpy()})
    for actual, y in zip(found, expected, strict=True):
        assert largest_difference(torch.from_numpy(actual), y) < BAR


@pytest.mark.parametrize(
    ("network", "options", "size"),
    [
        ("maskrcnn_resnet50_fpn", {}, (57, 44)),
        ("c2d_resnet18", {"head": "compact"}, (9, 40, 33)),
    ],
    ids=str,
)
def test_program_of_a_network_can_be_loaded(network, options, size):
    model = shorten(cgnl.create_model(network, num_classes=4, block="cgnl", groups=4, zero_init=False, **options))
    content, agreement = to_program(model, {"cgnl.json": "{}"}, size)
    assert model.training  # as it was
    assert agreement.shapes[-1] == (1, 3, *size)
    assert agreement.largest < BAR
    beside = {"cgnl.json": ""}
    loaded = torch.export.load(io.BytesIO(content), extra_files=beside).module()
    assert beside == {"cgnl.json": "{}"}
    x = torch.randn(4, 3, *size)
    expected = run_network(part_that_exports(model.eval()), x)
    for actual, y in zip(run_network(loaded, x), expected, strict=True):
        assert largest_difference(actual, y) < BAR


class OneSize(Small):
    """A network that takes pictures of one size, as ViT does."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[2:] == (40, 48), "another size"
        return super().forward(x)


class BySize(Small):
    """A network that does something else for larger pictures."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if self.conv1(x).shape[2] * x.shape[3] > 2000 else 1)


class ByValue(Small):
    """A network whose path depends on its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if x.sum() > 0 else 1)


@pytest.mark.parametrize("export", [to_onnx, to_program, lambda model, size: to_safetensors(model, {}, size)])
@pytest.mark.parametrize("kind", [OneSize, BySize])
def test_networks_of_one_size_export_for_it(export, kind, monkeypatch):
    model = stir(kind(4, 2))
    monkeypatch.setattr(files, "build_again", lambda **_: copy.deepcopy(model))
    monkeypatch.setattr(files, "get_arguments", lambda _: {})
    _, agreement = export(model, size=(40, 48))
    assert agreement.largest < BAR
    follows_sizes = kind is BySize and export not in (to_onnx, to_program)  # it is the same code
    assert agreement.one_size != follows_sizes
    assert follows_sizes or agreement.shapes == ((1, 3, 40, 48), (3, 3, 40, 48), (2, 3, 40, 48))


@pytest.mark.parametrize("export", [to_onnx, to_program])
def test_export_refuses_networks_of_a_size_that_is_not_told(export):
    with pytest.raises(ValueError, match="another size"):
        export(stir(OneSize(4, 2)))


@pytest.mark.parametrize("export", [to_onnx, to_program])
def test_export_refuses_what_does_not_agree(export):
    with pytest.raises(ValueError, match=r"the export differs from the network by .* for an input of 1 x 3 x 64 x 64"):
        export(stir(BySize(4, 2)))


@pytest.mark.parametrize("export", [to_onnx, to_program])
def test_export_refuses_what_cannot_be_followed(export):
    with pytest.raises(ValueError, match=r"torch\.export cannot follow the network: ") as caught:
        export(stir(ByValue(4, 2)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("export", [to_onnx, to_program])
def test_export_refuses_what_is_not_finite(export):
    model: Any = stir(Small(4, 2))
    nn.init.constant_(model.fc.bias, float("nan"))
    with pytest.raises(ValueError, match="the network's own output is not finite for an input of 1 x 3 x 64 x 64"):
        export(model)


X = [torch.randn(1, 3, 8, 8), torch.randn(2, 3, 9, 12)]


def test_agree_tells_the_difference_for_each_shape():
    model = stir(Small(4, 2))
    found = agree(model, lambda x: run_network(model, x) if len(x) == 1 else [1.00001 * model(x).detach()], X)
    assert found.shapes == ((1, 3, 8, 8), (2, 3, 9, 12))
    assert found.differences[0] == 0 < found.differences[1] == found.largest < BAR


@pytest.mark.parametrize(
    ("exported", "message"),
    [
        (
            lambda y: [1.001 * y],
            r"differs from the network by 1\.0e-03 .* more than 1e-04, for an input of 1 x 3 x 8 x 8",
        ),
        (lambda y: [y[:, :2]], "differs from the network by inf"),
        (lambda y: [y * torch.nan], "differs from the network by nan"),
        (lambda y: y.missing, "does not take an input of 1 x 3 x 8 x 8: "),
    ],
    ids=["value", "shape", "nan", "error"],
)
def test_agree_refuses(exported, message):
    model = stir(Small(4, 2))
    with pytest.raises(ValueError, match=message):
        agree(model, lambda x: exported(model(x).detach()), X)


def test_difference_of_nothing_but_zeros():
    assert difference(torch.zeros(3), torch.zeros(3)) == 0


@pytest.mark.parametrize(("ndim", "shapes", "size"), [(2, IMAGES, (57, 44)), (3, CLIPS, (9, 40, 33))])
def test_example_inputs_end_with_the_networks_own_size(ndim, shapes, size):
    model = nn.Sequential(nn.Flatten(), Small(4, ndim))
    assert [(len(x), *x.shape[2:]) for x in example_inputs(model)] == list(shapes)
    *before, last = example_inputs(model, size)
    assert [(len(x), *x.shape[2:]) for x in before] == list(shapes[:-1])
    assert last.shape == (1, 3, *size)
    assert len(example_inputs(model, shapes[0][1:])) == len(shapes)
