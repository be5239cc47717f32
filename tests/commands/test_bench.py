import csv

import pytest

from cgnl.cli import main


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
        (["ops", "peer=a.py:A"], "a peer stands beside a block: cgnl bench ops has no place for one"),
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
