"""What a run says of itself."""

import math

import pytest

from cgnl.engine.messages import at_chance


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
