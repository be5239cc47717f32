"""The benchmark of training from files, with a script in place of timm's that prints what timm's does."""

import csv
import sys

import pytest
import torch

from benchmarks import against_timm
from benchmarks.against_timm import describe, link, main, read_log
from cgnl.data.images import to_image

LOG = """\
Scheduled epochs: 3 (epochs + cooldown_epochs). Warmup within epochs when warmup_prefix=False. LR stepped per epoch.
Train: 0 [   0/7 ( 14%)]  Loss: 2.47 (2.47)  Time: 38.872s,    0.41/s  (38.872s,    0.41/s)  LR: 1.000e-02  Data: 0.071 (0.071)
Train: 0 [   6/7 (100%)]  Loss: 2.57 (2.54)  Time: 0.053s,  303.58/s  (7.152s,    2.24/s)  LR: 1.000e-02  Data: 0.000 (0.028)
Skipping eval and checkpointing
Train: 1 [   0/7 ( 14%)]  Loss: 2.41 (2.41)  Time: 0.066s,  242.31/s  (0.066s,  242.31/s)  LR: 7.500e-03  Data: 0.004 (0.004)
Train: 1 [   6/7 (100%)]  Loss: 2.61 (2.50)  Time: 0.054s,  294.79/s  (0.061s,  263.16/s)  LR: 7.500e-03  Data: 0.000 (0.003)
Skipping eval and checkpointing
Train: 2 [   0/7 ( 14%)]  Loss: 2.37 (2.37)  Time: 0.067s,  239.81/s  (0.067s,  239.81/s)  LR: 2.500e-03  Data: 0.006 (0.006)
Train: 2 [   6/7 (100%)]  Loss: 2.40 (2.45)  Time: 0.054s,  1296.65/s  (0.060s, 1267.90/s)  LR: 2.500e-03  Data: 0.000 (0.005)
Current checkpoints:
"""  # noqa: E501

SCRIPT = """\
import sys
from pathlib import Path

given = dict(zip(sys.argv, sys.argv[1:]))
assert {"--use-multi-epochs-loader", "--pin-mem", "--amp", "--channels-last"} < given.keys()
assert len(list(Path(given["--data-dir"], "train").glob("*/*.png"))) == 24
print("Model created", file=sys.stderr)
for epoch in range(int(given["--epochs"])):
    for step, rate in enumerate(["5.00", f"{10 * (epoch + 1)}.00"]):
        part, time = f"[{step:>4d}/2 ({50 * step + 50:>3.0f}%)]", f"Time: 0.100s,   80.00/s  (0.100s, {rate:>7}/s)"
        print(f"Train: {epoch} {part}  Loss: 2.4 (2.4)  {time}  LR: 1e-2", file=sys.stderr)
"""


@pytest.fixture
def pictures(tmp_path):
    """Three classes of 6, 12 and 18 pictures."""
    for label in range(3):
        (tmp_path / "pictures" / f"class{label}").mkdir(parents=True)
        for number in range(6 * (label + 1)):
            image = to_image(torch.randint(256, (3, 40, 40), dtype=torch.uint8))
            image.save(tmp_path / "pictures" / f"class{label}" / f"{number:02}.png")
    return tmp_path / "pictures"


def test_rates_are_those_of_the_last_line_of_each_epoch():
    assert read_log(LOG) == [2.24, 263.16, 1267.90]
    assert read_log(LOG.replace("/7 ", "/9 ")) == []


def test_medians_leave_the_first_epoch_out():
    ours = [(64, "plain", 1, "ours", e, 10.0 * e) for e in (1, 2, 3)]
    theirs = [(64, "plain", n, "theirs", e, 40.0 * n) for n in (1, 2, 3) for e in (1, 2)]
    assert describe([*ours, *theirs]).splitlines()[2] == "| 64 | plain | 25.0 | 80.0 | 0.312 |"


@pytest.mark.parametrize("inside", ["", "train"])
def test_links_are_balanced(pictures, tmp_path, inside):
    folder = pictures
    if inside:
        folder = tmp_path / "split"
        folder.mkdir()
        pictures.rename(folder / inside)
    assert link(folder, 21, tmp_path / "links") == (3, 21)
    trained = [len(list((tmp_path / "links" / "train" / name).iterdir())) for name in ("class0", "class1", "class2")]
    assert sorted(trained) == [6, 7, 8]
    tested = sorted((tmp_path / "links" / "test").glob("*/*"))
    assert [path.parent.name for path in tested if path.is_file()] == ["class0", "class1", "class2"]


def test_one_class_is_refused(pictures, tmp_path):
    with pytest.raises(ValueError, match="at least two class folders"):
        link(pictures / "class0", 24, tmp_path / "links")


@pytest.mark.long
def test_measures_both_in_turns(pictures, tmp_path, monkeypatch, capsys):
    script, figures = tmp_path / "train.py", tmp_path / "rates.csv"
    script.write_text(SCRIPT)
    words = [str(script), str(pictures), "--sizes", "32", "--modes", "plain", "--network", "resnet18", "--batch", "4"]
    words += ["--workers", "1", "--epochs", "2", "--limit", "24", "--rounds", "1", "--csv", str(figures)]
    monkeypatch.setattr(sys, "argv", ["against_timm", *words])
    assert main() == 0
    *about, _, _, row = capsys.readouterr().out.splitlines()
    assert "resnet18, batch of 4, 1 worker" in about[0]
    assert "24 pictures of 3 classes, 1 round of 2 epochs" in about[1]
    with figures.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["trainer"], row["epoch"]) for row in rows] == [
        *(("ours", "1"), ("ours", "2")),
        *(("theirs", "1"), ("theirs", "2")),
    ]
    assert [row["samples_per_second"] for row in rows[2:]] == ["10.0", "20.0"]
    mine = float(rows[1]["samples_per_second"])
    assert row == f"| 32 | plain | {mine:,.1f} | 20.0 | {mine / 20:.3f} |"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--workers", "8"],
            "36 pictures are too few: an epoch must have more steps than the 32 batches that 8 workers",
        ),
        (["--epochs", "1"], "the first one is left out"),
    ],
)
def test_refuses_what_has_no_steady_rate(pictures, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.setattr(
        sys, "argv", ["against_timm", str(tmp_path / "train.py"), str(pictures), "--batch", "4", *words]
    )
    with pytest.raises(SystemExit) as refused:
        main()
    assert message in f"{refused.value} {capsys.readouterr().err}"


def test_names_what_failed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('CUDA error: no such device')")
    setting = against_timm.Setting(tmp_path, 2, "resnet18", 4, 0, 2, "cpu")
    with pytest.raises(RuntimeError, match=r"(?s)train.py .*ended with 1:\nCUDA error"):
        against_timm.theirs(script, setting, tmp_path)
