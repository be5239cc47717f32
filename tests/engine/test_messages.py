"""What a run says of itself."""

import math
import re

import pytest

from cgnl.engine.messages import at_chance, describe_epoch
from cgnl.engine.tasks import TASKS


@pytest.mark.parametrize(
    ("losses", "warned"),
    [
        ([2.49], []),
        ([2.49, 2.47], []),
        ([2.49, 2.49], [2]),
        ([2.49, 2.44, 2.45], [3]),
        ([2.49, 2.3, 2.4], []),
        ([2.6, 2.55, 2.7, 2.7, 2.2, 2.6], [3]),
        ([2.6, math.nan, 2.6], []),
        ([2.6, math.inf], [2]),
    ],
    ids=str,
)
def test_at_chance_warns_once_when_a_loss_at_that_of_guessing_does_not_fall(losses, warned):
    epochs = range(1, len(losses) + 1)
    assert [epoch for epoch in epochs if at_chance(losses[:epoch], 12)] == warned


def test_at_chance_names_both_losses_and_what_to_try():
    said = at_chance([0.695, 0.7], 2) or ""
    assert [part in said for part in ("0.700", "0.693", "optim.lr", "optim.new_layers")] == [True] * 4


@pytest.mark.parametrize(("lr", "warnings"), [(1000.0, 1), (0.8, 0)])
def test_training_at_chance_warns_in_its_log(run, lr, warnings):
    folder = run(optim__lr=lr, optim__epochs=4, data__samples=96).folder
    lines = [line for line in (folder / "log.txt").read_text().splitlines() if " WARNING " in line]
    assert sum("ln 12 = 2.485" in line for line in lines) == warnings


def test_average_precision_has_one_spelling():
    names = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar_100")
    test = {f"test_{kind}_{name}": 0.1234 for kind in ("box", "mask") for name in names}
    lines = TASKS["objects"].describe(test | {"test_count": 3, "test_box_ap_small": -1.0}, 2)
    assert [re.findall(r"[0-9.]+%", line) for line in lines] == [[], ["12.34%"] * 6, ["12.34%"] * 7]
    assert "small -," in lines[1]
    row = {"epoch": 1, "train_loss": 1.0, "test_box_ap": 0.0, "test_mask_ap": -1.0, "samples_per_second": 1}
    assert "boxes 0.00%, of masks -," in describe_epoch(row, 1)
