"""The whole block against the reference in float64: at most 2 times the reference's own error, 3 times in gradients."""

import pytest
import torch

from cgnl.ops.fused import autograd, norm
from tests.ops.fused.helpers import DEVICE, HALF, KERNELS, LAYOUTS, Case, assert_exact

pytestmark = pytest.mark.filterwarnings("ignore:.*single sample")

CASES = {
    # Norms: batch with every kernel is below.
    "group-norm": Case(norm="group"),
    "group-norm-with-a-constant-term": Case(norm="group", kernel="rbf-exact"),
    "no-norm": Case(norm=None, scale="sqrt"),
    "no-norm-with-a-constant-term": Case(norm=None, scale="sqrt", kernel="embedded_gaussian"),
    "no-norm-and-constant-of-the-sample": Case(norm=None, scale="sqrt", kernel="rbf-norm"),
    # Evaluation: with gradients a norm of fixed statistics, without them one kernel for all after the coefficients.
    "eval-dot": Case(train=False),
    "eval-constant-term": Case(train=False, kernel="rbf-exact"),
    "eval-first-power-2": Case(train=False, kernel="taylor"),
    "eval-no-norm": Case(train=False, norm=None, scale="sqrt", kernel="order-8"),
    "eval-group-norm": Case(train=False, norm="group", kernel="embedded_gaussian"),
    "eval-group-beyond-the-output-kernel": Case((1, 320, 3, 3), 1, train=False, kernel="rbf-paper"),
    "eval-dot-group-beyond-it": Case((2, 256, 3, 3), 1, inner=136, train=False),
    "eval-group-beyond-it-no-norm": Case((2, 64, 9), 1, "rbf-norm", None, 136, "sqrt", train=False),
    "eval-groups-left-over": Case((2, 144, 3, 4), 3, train=False, kernel="taylor"),
    # Recomputing: theta lies where its gradient goes to, which beta="norm" wants to know once more.
    "recompute": Case(recompute=True),
    "recompute-constant-term": Case(recompute=True, kernel="embedded_gaussian"),
    "recompute-no-norm": Case((1, 64, 3, 3), recompute=True, kernel="rbf-norm", norm=None, scale="sqrt"),
    "recompute-constant-of-the-sample": Case(recompute=True, kernel="rbf-norm"),
    "recompute-wide": Case((2, 64, 3, 4), groups=1, inner=136, recompute=True, kernel="taylor"),
    # Position axes.
    "sequence": Case((2, 64, 9), kernel="rbf-exact"),
    "video": Case((2, 64, 2, 3, 4), kernel="embedded_gaussian"),
    # Numbers of positions: one, fewer than a tile, a tile and a bit.
    "1-position": Case((5, 64, 1, 1), kernel="taylor"),
    "7-positions": Case((2, 64, 7), groups=1),
    "49-positions": Case((4, 32, 7, 7), groups=2, kernel="rbf-paper"),
    "65-positions": Case((2, 64, 65), kernel="rbf-exact"),
    "200-positions-shared-out": Case((1, 64, 10, 20), groups=4, norm=None, scale="sqrt", kernel="taylor"),
    # Widths of groups: several in a tile, some left over, a part of a tile, beyond a tile.
    "width-8": Case((2, 64, 4, 4), groups=8, inner=64, kernel="embedded_gaussian"),
    "width-24-groups-left-over": Case((2, 144, 3, 4), groups=3, kernel="rbf-exact"),
    "width-40": Case((2, 64, 3, 4), inner=80, kernel="taylor"),
    "width-64": Case((4, 128, 3, 4), groups=1, kernel="rbf-paper"),
    "width-136": Case((2, 64, 3, 4), groups=1, inner=136, kernel="embedded_gaussian"),
    "widest-narrow": Case((2, 128, 3, 3), groups=1, inner=128),
    "least-wide-by-product": Case((3, 136, 3, 3), groups=1, inner=128, kernel="taylor"),
    "wide-by-channels-alone": Case((2, 320, 3, 3), groups=1, inner=16, kernel="taylor"),
    "96-channels": Case((4, 96, 3, 4), kernel="rbf-paper"),
    "320-channels-one-group": Case((2, 320, 3, 3), groups=1),
    "320-channels-inner-not-half": Case((2, 320, 3, 3), groups=4, inner=96, kernel="rbf-exact"),
    # Scales and batches.
    "sqrt": Case(scale="sqrt", kernel="embedded_gaussian"),
    "resolution": Case(scale="resolution"),
    "batch-of-1": Case((1, 64, 5, 5), kernel="rbf-exact"),
    "batch-of-2": Case((2, 64, 3, 3), kernel="taylor"),
    "batch-of-5": Case((5, 64, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
def test_block_is_as_exact_as_the_reference_with_every_kernel(kernel, precision):
    assert_exact(Case(kernel=kernel), precision.dtype)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_block_is_as_exact_as_the_reference(case):
    assert_exact(case, torch.float32)


@pytest.mark.parametrize("name", [
    "group-norm-with-a-constant-term", "no-norm", "eval-dot", "eval-constant-term", "eval-first-power-2",
    "eval-dot-group-beyond-it", "eval-group-beyond-it-no-norm", "recompute-constant-of-the-sample", "1-position",
    "65-positions", "width-8",
    "width-24-groups-left-over", "width-136", "wide-by-channels-alone", "320-channels-inner-not-half",
])  # fmt: skip
def test_block_in_half_precision_is_as_exact_as_the_reference(name):
    """What takes another way or another tile than in float32."""
    for dtype in {torch.float16, HALF}:
        assert_exact(CASES[name], dtype)


@pytest.mark.usefixtures("pointers")
@pytest.mark.parametrize("name", [
    "eval-dot-group-beyond-it", "recompute-constant-of-the-sample", "width-136", "width-24-groups-left-over",
])  # fmt: skip
def test_block_through_pointers_is_as_exact_as_the_reference(name, two_precisions):
    assert_exact(CASES[name], two_precisions.dtype)


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("recompute", [True, False], ids=["recompute", "keep"])
def test_block_goes_back_through_a_part_of_the_samples_at_a_time(parts, recompute, monkeypatch):
    monkeypatch.setattr(autograd, "count_parts", lambda *_: parts)
    assert_exact(Case((5, 32, 3, 3), kernel="rbf-norm", recompute=recompute), torch.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_block_takes_any_strides(layout, train):
    assert_exact(Case((4, 32, 3, 2), kernel="rbf-paper", layout=layout, train=train), torch.float32)


@pytest.mark.usefixtures("eight_processors")
@pytest.mark.parametrize("kernel", ["dot", "rbf-exact"])
def test_block_shares_positions_out_over_processors(kernel, two_precisions):
    assert_exact(Case((2, 32, 130), kernel=kernel), two_precisions.dtype)


@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_block_keeps_the_layout(layout, train):
    case = Case((2, 64, 3, 4), layout=layout, train=train)
    x, _ = case.inputs()
    with torch.set_grad_enabled(train):
        assert case.block()(x).stride() == x.stride()


@pytest.mark.skipif(DEVICE == "cpu", reason="would take an interpreter minutes")
@pytest.mark.parametrize("case", [
    Case((8, 1024, 14, 14), groups=8, kernel="rbf-paper"),
    Case((4, 512, 28, 28), groups=1),
    Case((2, 512, 8, 28, 28), groups=8, kernel="embedded_gaussian", recompute=True),
    Case((300, 64, 7, 7), groups=2),  # more samples than the kernels of batch norm hold
], ids=["res4", "one-group", "clip", "large-batch"])  # fmt: skip
def test_block_is_as_exact_as_the_reference_at_full_size(case, precision):
    assert_exact(case, precision.dtype)


@pytest.mark.parametrize("kernel", ["dot", "rbf-exact", "taylor"])
def test_block_beyond_the_samples_that_the_kernels_of_batch_norm_hold(kernel, monkeypatch):
    monkeypatch.setattr(norm, "MOST", 3)
    assert_exact(Case(kernel=kernel), torch.float32)
