import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cgnl.engine.predict_objects import Finding, draw, image_ids, name_drawings, print_json, print_table, save_drawings

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
    print_table([evil])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == r"a\x1b\n.png: 2 found"
    assert second.startswith(r"   90.00%  thing\x1b[31m\r ")
    assert r"lone\ud800" in third
    pytest.importorskip("torchvision")
    draw(evil)


def test_image_ids_are_the_numbers_of_the_names_if_all_have_one():
    assert image_ids([Path("a/000000139.jpg"), Path("7.png")]) == [139, 7]
    assert image_ids([Path("a/000000139.jpg"), Path("cat.png")]) == [0, 1]
    assert image_ids([Path("a/1.jpg"), Path("b/1.jpg")]) == [0, 1]


def test_json_and_table_have_every_object_of_what_could_be_read(capsys):
    results = [found(2), Finding(Path("b.png"), 1, problem="b.png is empty"), found(1)]
    print_table(results)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *("a.png:", "90.00%", "50.00%"),
        *("a.png:", "90.00%"),
    ]
    print_json(results)
    assert [row["score"] for row in json.loads(capsys.readouterr().out)] == [0.9, 0.5, 0.9]


def test_save_drawings_gives_each_image_a_file_of_its_own(tmp_path):
    pytest.importorskip("torchvision")
    findings = [
        found(1),
        replace(found(2), path=Path("other/a.png"), image_id=7),
        Finding(Path("b.png"), 2, problem=""),
    ]
    files = [finding.path for finding in findings]
    assert list(save_drawings(iter(findings), files, tmp_path / "new")) == findings
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a-1.png", "a.png"]


def test_name_drawings_gives_no_name_twice():
    files = [Path("a.png"), Path("b/a.jpg"), Path("a-2.png"), Path("c/a.png"), Path("c/a-2.png")]
    names = [path.name for path in name_drawings(files, Path("new"))]
    assert names == ["a.png", "a-1.png", "a-2.png", "a-3.png", "a-2-4.png"]


def test_save_drawings_writes_over_no_image(tmp_path):
    findings = [replace(found(1), path=tmp_path / name, image_id=i) for i, name in enumerate(("a.jpg", "a.png"))]
    for finding in findings:
        finding.path.write_text("original")
    files = [finding.path for finding in findings]
    with pytest.raises(ValueError, match=r"a\.jpg would be written over .*a\.png"):
        list(save_drawings(iter(findings), files, tmp_path / "none" / ".."))
    assert [file.read_text() for file in files] == ["original"] * 2
