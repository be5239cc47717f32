"""Entry points for torch.hub."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cgnl.models import NETWORKS
from cgnl.surgery import inserted

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("entry", "size"), [("cgnl_resnet18", (32, 32)), ("nl_c2d_resnet18", (8, 32, 32))])
def test_load_from_the_repository(entry, size):
    model: Any = torch.hub.load(str(ROOT), entry, source="local", num_classes=5)
    assert [type(block).__name__ for block in inserted(model).values()] == ["CGNL" if "cgnl" in entry else "NonLocal"]
    assert model(torch.randn(2, 3, *size)).shape == (2, 5)


@pytest.mark.parametrize("arguments", [["cgnl_resnet18"], ["create_model", "resnet18"]])
def test_load_with_a_head(arguments):
    model: Any = torch.hub.load(str(ROOT), *arguments, source="local", head="covariance", reduced=16, num_classes=5)
    assert (model.avgpool.kind, model.fc.in_features) == ("covariance", 16 * 17 // 2)
    assert len(inserted(model)) == ("cgnl" in arguments[0])
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 5)


def test_entry_points_are_networks_alone(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    hubconf = importlib.import_module("hubconf")
    names = {name for name in dir(hubconf) if callable(getattr(hubconf, name)) and not name.startswith("_")}
    expected = {f"{block}_{network}" for block in ("cgnl", "cgnlx", "nl", "residual") for network in NETWORKS}
    assert names == {"create_model"} | expected
    assert all(getattr(hubconf, name).__doc__ for name in names)


def test_load_needs_no_installed_package(tmp_path):
    script = (
        "import sys, torch; "
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]; "
        "sys.path[:] = [p for p in sys.path if not p.endswith('src')]; "
        f"torch.hub.load({str(ROOT)!r}, 'cgnl_resnet18', source='local'); "
        "import cgnl; print(cgnl.CGNL, cgnl.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"<class 'cgnl.blocks.CGNL'> {ROOT / 'src' / 'cgnl' / '__init__.py'}\n"
