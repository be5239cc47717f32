"""Parity with the authors' released code: numbers it produced, kept in ``tests/assets``."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import cgnl
from tests.conftest import relative_error

ASSETS = Path(__file__).parent / "assets"
OURS = {"t": "theta", "p": "phi", "g": "g", "z": "z", "gn": "norm", "bn": "norm"}

BLOCKS = {
    "cgnl": lambda: cgnl.CGNL(16, groups=2, norm="group"),
    "cgnl_one_group": lambda: cgnl.CGNL(16, groups=1, norm="group"),
    "cgnl_scaled": lambda: cgnl.CGNL(16, groups=4, norm="group", scale="sqrt"),
    "cgnlx": lambda: cgnl.CGNL(16, groups=2, norm="group", kernel="rbf"),
    "cgnlx_scaled": lambda: cgnl.CGNL(16, groups=4, norm="group", kernel=cgnl.kernels.GaussianRBF(2), scale="sqrt"),
    "nl": lambda: cgnl.NonLocal(16, scale=False),
    "nl_scaled": lambda: cgnl.NonLocal(16),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_block_gives_the_released_outputs_and_gradients(case):
    stored = np.load(ASSETS / "released_blocks.npz")
    golden = {k.removeprefix(f"{case}/"): torch.from_numpy(stored[k]) for k in stored if k.startswith(f"{case}/")}
    block, x = BLOCKS[case](), golden["x"].requires_grad_()
    theirs = {name: name.split(".") for name in golden if "." in name and not name.startswith("d ")}
    ours = {name: block.get_submodule(OURS[child]).get_parameter(leaf) for name, (child, leaf) in theirs.items()}
    with torch.no_grad():
        for name, parameter in ours.items():
            parameter.copy_(golden[name])

    y = block(x)
    y.backward(golden["dy"])

    scale = max(float(golden[f"d {name}"].abs().max()) for name in ours)  # some gradients cancel in GroupNorm

    assert len(ours) == len(list(block.parameters()))
    assert relative_error(y, golden["y"]) < 1e-5
    assert x.grad is not None
    assert relative_error(x.grad, golden["dx"]) < 1e-5
    for name, parameter in ours.items():
        assert parameter.grad is not None
        assert (parameter.grad - golden[f"d {name}"]).abs().max() < 1e-5 * scale


@pytest.mark.parametrize(("block", "options"), [("cgnl", {"norm": "group"}), ("nl", {})], ids=["cgnl", "nl"])
def test_load_reference_checkpoint_gives_the_released_logits(block, options, tmp_path):
    golden = json.loads((ASSETS / "released_networks.json").read_text())[block]
    state = {f"module.{name}": _weights(name, shape) for name, shape in golden["names"].items()}
    torch.save({"epoch": 100, "state_dict": state, "best_prec1": torch.tensor(85.0), "optimizer": {}}, tmp_path / "r50")

    model = cgnl.create_model("resnet50", block=block, num_classes=20, **options).eval()
    report = cgnl.load_reference_checkpoint(model, tmp_path / "r50")
    with torch.no_grad():
        logits = model(torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)))

    assert len(report.loaded) == len(state)
    assert not report.ignored
    assert relative_error(logits, torch.tensor(golden["logits"])) < 1e-5


def _weights(name: str, shape: list[int]) -> torch.Tensor:
    """The formula with which the stored logits were made."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    if name.endswith("num_batches_tracked"):
        return torch.zeros(shape, dtype=torch.long)
    if name.endswith("running_var"):
        return 1 + 0.1 * noise.abs()
    if noise.ndim > 1:
        return noise * (0.2 / noise[0].numel()) ** 0.5
    return 1 + 0.1 * noise if name.endswith("weight") else 0.1 * noise
