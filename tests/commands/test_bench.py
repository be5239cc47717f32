import csv
import re

import pytest
import torch

from cgnl.cli import main
from cgnl.commands.bench import read_setting, read_size


def bench(*arguments: str) -> int:
    return main(["bench", *arguments])


SMALL = ["channels=16", "size=4", "seconds=0.001", "mode=forward"]


def test_bench_block_with_a_peer(tmp_path, capsys):
    (tmp_path / "theirs.py").write_text(
        "import torch\ndef Theirs(channels, side):\n    return torch.nn.Conv2d(channels, channels, side)\n"
    )
    table, plot = tmp_path / "rows.csv", tmp_path / "rows.png"
    peer = f"--peer={tmp_path}/theirs.py:Theirs(C, 1)"
    assert bench("block", *SMALL, "rows=reference,squeeze-excitation", peer, f"csv={table}", f"plot={plot}") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("cgnl bench block: forward, 2 x 16 x 4 x 4, float32, Dot()\n")
    assert [row["row"] for row in csv.DictReader(table.open())] == ["reference", "squeeze-excitation", "Theirs"]
    assert plot.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["blok"], "there is no benchmark 'blok'; did you mean block?"),
        (["block", "chanels=8"], "there is no option 'chanels'; did you mean channels?"),
        (["block", "rows=refrence"], "there is no row 'refrence'; did you mean reference?"),
        (["block", "channels=12"], "inner_channels = 6 is not divisible by groups = 8"),
        (["ops", "norm=batch"], "cgnl bench ops has no option 'norm'"),
        (["ops", "blocks=5"], "cgnl bench ops has no option 'blocks'"),
        (["network", "head=covariance"], "cgnl bench network has no option 'head'"),
        (["block", "reduced=3"], "cgnl bench block has no option 'reduced'"),
        (["ops", "reduced=3"], "cgnl bench ops has no option 'reduced'"),
        (["network", "reduced=0"], "reduced = 0 must be more than 0"),
        (["block", "batch=0"], "batch = 0 must be more than 0"),
        (["block", "seconds=nan"], "seconds = nan must be"),
        (["block", "seconds=inf"], "seconds = inf must be"),
        (["block", "mode=trian"], "mode = trian must be one of forward, train"),
        (["block", "dtype=bfloat"], "dtype = bfloat must be one of bfloat16"),
        (["block", "norm=bach"], "norm = bach must be one of batch"),
        (["ops", "peer=a.py:A"], "cgnl bench ops has no peer"),
        (["network", "blocks=4"], "no placement of blocks = 4 is known for 'resnet50'"),
        (["block", "peer=none.py:A"], "there is no file none.py to take a peer from"),
    ],
    ids=str,
)
def test_bench_refuses_in_one_sentence(capsys, arguments, message):
    assert bench(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"cgnl bench: {message}")
    assert err.count("\n") == 1


def test_bench_fails_where_nothing_could_be_measured(tmp_path, capsys):
    (tmp_path / "theirs.py").write_text("def broken(channels):\n    raise RuntimeError('never')\n")
    assert bench("block", *SMALL, "rows=squeeze-excitation", "size=2x2x2", f"peer={tmp_path}/theirs.py:broken") == 2
    out, err = capsys.readouterr()
    assert "timm's SEModule is for images" in out
    assert "never" in out
    assert err == "cgnl bench: no row could be measured\n"


@pytest.mark.parametrize(
    ("text", "size"), [("28", (28, 28)), ("28x14", (28, 14)), ("16x28x28", (16, 28, 28)), ("1000x", (1000,))]
)
def test_read_size(text, size):
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["0", "x", "3x4x5x6", "-3", "3x0", "", "28 x 28"])
def test_read_size_refuses(text):
    with pytest.raises(ValueError, match="size must be like 28, 28x28, 16x28x28"):
        read_size(text)


@pytest.mark.parametrize("benchmark", ["block", "network", "ops"])
def test_read_setting_has_defaults(benchmark):
    setting = read_setting(benchmark, {"batch": None}, "cpu")
    assert (setting.batch, setting.dtype, setting.mode) == (2, torch.float32, "train")


@pytest.mark.parametrize(
    ("benchmark", "given", "message"),
    [
        ("block", {"dtype": "bfloat16", "tf32": True}, "tf32 is a way to multiply float32, not bfloat16"),
        ("network", {"size": "8x64x64"}, "size = 8x64x64 has 3 axes, resnet50 takes 2"),
        ("network", {"network": "c2d_resnet18"}, "size = 64 has 2 axes, c2d_resnet18 takes 3"),
    ],
    ids=str,
)
def test_read_setting_refuses(benchmark, given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read_setting(benchmark, given, "cpu")


@pytest.mark.parametrize("device", ["tpu", "cuda:999", "cpu:0x"])
def test_read_setting_refuses_a_device(device):
    with pytest.raises(ValueError, match=device):
        read_setting("block", {}, device)


@pytest.mark.parametrize(("network", "blocks"), [("resnet18", 1), ("resnet50", 5), ("c2d_resnet101", 5)])
def test_read_setting_takes_as_many_blocks_as_there_are_places(network, blocks):
    size = "8x32x32" if network.startswith("c2d") else "32"
    assert read_setting("network", {"network": network, "size": size}, "cpu").blocks == blocks
    assert read_setting("network", {"network": network, "size": size, "blocks": 1}, "cpu").blocks == 1


def test_read_setting_takes_heads():
    network, serve = (
        read_setting("network", {}, "cpu"),
        read_setting("serve", {"head": "covariance", "reduced": 32}, "cpu"),
    )
    assert (network.head, network.reduced, serve.head, serve.reduced) == ("average", 256, "covariance", 32)
    assert "reduced=256" in network.summary
    assert "head=covariance reduced=32" in serve.summary
    assert "reduced" not in read_setting("serve", {}, "cpu").summary + read_setting("block", {}, "cpu").summary
