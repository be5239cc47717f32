from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cgnl.engine.predict_objects import Finding, draw, table

SIDE, SCORES = 40, (0.9, 0.5, 0.3, 0.02, 0.0)


def found(count: int) -> Finding:
    """A black picture with some objects next to each other, as found with a threshold that keeps so many."""
    masks = torch.zeros(count, SIDE, SIDE * len(SCORES), dtype=torch.bool)
    results = []
    for number, score in enumerate(SCORES[:count]):
        masks[number, 20:30, SIDE * number + 10 : SIDE * number + 30] = True
        results.append({"bbox": [SIDE * number + 10, 20, 20, 10], "score": score, "category_id": 1, "image_id": 0})
    pixels = torch.zeros(3, SIDE, SIDE * len(SCORES), dtype=torch.uint8)
    return Finding(Path("a.png"), 0, ("thing",) * count, tuple(results), pixels, masks)


@pytest.mark.parametrize("count", range(len(SCORES) + 1))
def test_draw_draws_all_that_was_found_and_nothing_else(count):
    pytest.importorskip("torchvision")
    painted = draw(found(count))[:, 20:30].any(0)  # [rows, W]
    is_drawn = [bool(part[:, 12:28].all()) for part in painted.split(SIDE, dim=1)]
    assert is_drawn == [number < count for number in range(len(SCORES))]


def test_table_and_drawing_spell_out_control_characters(capsys):
    evil = replace(found(2), path=Path("a\x1b\n.png"), classes=("thing\x1b[31m\r", "lone\ud800"))
    assert table(iter([evil])) == []
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == r"a\x1b\n.png: 2 found"
    assert second.startswith(r"   90.00%  thing\x1b[31m\r ")
    assert r"lone\ud800" in third
    pytest.importorskip("torchvision")
    draw(evil)
