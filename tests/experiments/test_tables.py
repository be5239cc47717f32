"""The tables hold what the paper's do."""

import re
from pathlib import Path

import pytest

from cgnl.engine.config import recipes
from cgnl.experiments.tables import TABLES, Row, Table, is_diagnosed
from cgnl.models.table import cost

PAPER = {name: table for name, table in TABLES.items() if not table.ours}
NUMBERS = {
    "cub-kernels": [84.05, 85.14, 84.10, 84.01],
    "cub-groups": [85.05, 86.17, 86.24, 86.35, 86.13, 86.04, 86.01, 86.19, 86.24, 86.43, 86.10],
    "mini-kinetics-groups": [75.54, 77.16, 77.56, 77.76, 77.44, 78.79, 79.06, 79.54],
    "mini-kinetics-reduction": [75.54, None, 77.16, None, 77.56, 77.76],
    "ucf101": [81.62, 82.88, 83.38],
    "mini-kinetics": [75.54, 76.53, 77.76, 77.53, 78.79, 77.44, 78.02, 79.54, 79.21, 79.88],
    "cub": [84.05, 84.79, 85.14, 85.10, 85.68, 85.05, 85.49, 86.35, 86.10, 86.24],
    "residual": [84.05, 84.11, 85.14],
    "coco": [34.47, 35.02, 35.70],
    "imagenet": [76.15, 77.69, 77.32, 78.31, 79.53, 79.37],
}
"""Top-1, or average precision of boxes, row by row, as printed."""


def first_number(row: Row) -> float | None:
    return next(iter(row.reported.values()), None)


def test_tables_are_the_papers():
    assert {name: [first_number(row) for row in table.rows] for name, table in PAPER.items()} == NUMBERS


def test_tables_use_every_recipe_of_the_paper():
    used = {row.recipe for table in PAPER.values() for row in table.rows}
    assert used == {name for name in recipes() if "covariance" not in name} - {"parts", "relation", "actions"}


@pytest.mark.parametrize("name", TABLES)
def test_rows_say_what_the_label_says(name):
    for row in TABLES[name].rows:
        config = row.config()
        model = config.model
        if groups := re.search(r"groups (\d+)", row.label):
            assert model.options["groups"] == int(groups[1])
        if blocks := re.search(r"\+ (\d) (CGNLx?|NL)", row.label):
            assert (model.blocks, model.block) == (int(blocks[1]), blocks[2].lower())
        if depth := re.match(r"(C2D |I3D )?R-(\d+)", row.label):
            assert str(model.name).endswith(f"resnet{depth[2]}")
        plain = (
            row.label in ("R-18", "R-50", "R-101", "R-152", "Mask R-CNN R-50", "Mask R-CNN R-50 FPN")
            or "no block" in row.label
            or re.fullmatch(r"(C2D |I3D )?R-50(, \w+ head)?(, rate .*)?", row.label) is not None
        )
        if head := re.search(r"(\w+) head", row.label):
            assert (model.head, model.reduced) == (head[1], 256)
        else:
            assert model.head == "average"
        assert (model.block is None) == plain


def test_settings_are_those_the_paper_states():
    groups = {name: {row.config().model.options.get("groups") for row in table.rows} for name, table in PAPER.items()}
    assert groups["ucf101"] == {None, 1}
    for name in ("cub-kernels", "cub", "mini-kinetics", "residual", "coco", "imagenet"):
        assert groups[name] == {None, 8}, name


def test_rows_of_one_name_are_one_row():
    known: dict[str, Row] = {}
    for table in TABLES.values():
        for row in table.rows:
            assert row.config() == known.setdefault(row.name, row).config()


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.ours])
def test_rows_of_our_own_can_be_built(name):
    from cgnl.engine.network import network_options

    for row in TABLES[name].rows:
        model = row.config().model
        assert cost(str(model.name), 64, 8, 5, **network_options(model)).parameters > 0


def test_reported_is_nothing_where_settings_are_others():
    assert Row("R-50", "cub_r50").reported == {"top1": 84.05, "top5": 96.00}
    assert Row("R-50", "cub_r50", {"optim.lr": 1.0}, "other").reported == {}


def test_chosen_takes_patterns(toy):
    assert [row.name for row in toy.chosen("toy,*_r")] == ["toy", "toy_r"]
    assert toy.chosen(None) == toy.rows
    with pytest.raises(ValueError, match=r"there is no row 'toy_cgn'; did you mean toy_cgnl\?"):
        toy.chosen("toy,toy_cgn")


def test_diagnosed_are_blocks_with_attention():
    assert [is_diagnosed(name) for name in ("toy", "toy_cgnl", "toy_r")] == [False, True, False]
    assert is_diagnosed("cub_r50_cgnl1")
    assert not is_diagnosed("cub_r50_cgnl1_groups4")


def test_tries_never_see_the_test_set():
    rows = [*TABLES["cub-tries"].rows, *TABLES["cub-heads-rates"].rows]
    assert all(row.config().data.test_on == "validation" and row.name.endswith("_validation") for row in rows)
    assert not any(row.reported for row in rows)
    others = [row for table in TABLES.values() for row in table.rows if row not in rows]
    assert all(row.config().data.test_on == "test" for row in others)


def test_design_is_kept():
    assert isinstance(TABLES["cub-kernels"], Table)
    assert not any(Path(row.recipe).suffix for table in TABLES.values() for row in table.rows)


@pytest.mark.parametrize("name", ["cub-heads", "pets-heads"])
def test_rows_of_heads_differ_in_the_network_alone(name):
    configs = [row.config() for row in TABLES[name].rows]
    assert len({str((c.data, c.optim, c.model.weights, c.model.dropout)) for c in configs}) == 1


def test_rows_of_heads_stand_beside_the_papers_networks():
    rows = {row.name: row for row in TABLES["cub-heads"].rows}
    assert rows["cub_heads_r50"].reported["top1"] == 84.05
    assert rows["cub_heads_r50_cgnl1"].reported["top1"] == 85.14
    assert rows["cub_heads_r50_nl1"].reported["top1"] == 84.79
    assert rows["cub_heads_r50_covariance"].reported == {}
    assert is_diagnosed("cub_heads_r50_covariance")
    assert not is_diagnosed("cub_heads_r50")
