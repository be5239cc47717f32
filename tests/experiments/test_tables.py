"""The tables hold what the paper's do."""

import re
from dataclasses import replace

import pytest

from cgnl.engine.config import recipes
from cgnl.experiments.tables import METRICS, TABLES, Row, is_diagnosed, select_rows
from cgnl.models.table import cost

PAPER = {name: table for name, table in TABLES.items() if not table.ours}
NUMBERS: dict[str, tuple[float, ...]] = {
    # kernel functions on CUB
    "cub_r50": (84.05, 96.00),
    "cub_r50_cgnl1": (85.14, 96.88),
    "cub_r50_cgnlx1": (84.10, 95.78),
    "cub_r50_cgnl1_embedded_gaussian": (84.01, 96.08),
    # UCF101
    "ucf101_r50": (81.62, 94.62),
    "ucf101_r50_nl1": (82.88, 95.74),
    "ucf101_r50_cgnl1": (83.38, 95.42),
    # groups on CUB
    "cub_r101_cgnl1_groups1": (86.17, 97.82),
    "cub_r101_cgnl1_groups4": (86.24, 97.05),
    "cub_r101_cgnl1_groups16": (86.13, 96.75),
    "cub_r101_cgnl1_groups32": (86.04, 96.69),
    "cub_r101_cgnl5_groups1": (86.01, 95.97),
    "cub_r101_cgnl5_groups4": (86.19, 96.07),
    "cub_r101_cgnl5_groups16": (86.43, 98.89),
    "cub_r101_cgnl5_groups32": (86.10, 97.13),
    # groups on Mini-Kinetics
    "mini_kinetics_r50_cgnl1_groups1": (77.16, 93.56),
    "mini_kinetics_r50_cgnl1_groups4": (77.56, 93.00),
    "mini_kinetics_r101_cgnl1_groups1": (78.79, 93.64),
    "mini_kinetics_r101_cgnl1_groups4": (79.06, 93.54),
    # a simple residual block on CUB
    "cub_r50_residual1": (84.11, 96.23),
    # main results on Mini-Kinetics
    "mini_kinetics_r50": (75.54, 92.16),
    "mini_kinetics_r50_nl1": (76.53, 92.90),
    "mini_kinetics_r50_cgnl1": (77.76, 93.18),
    "mini_kinetics_r50_nl5": (77.53, 94.00),
    "mini_kinetics_r50_cgnl5": (78.79, 94.37),
    "mini_kinetics_r101": (77.44, 93.18),
    "mini_kinetics_r101_nl1": (78.02, 93.86),
    "mini_kinetics_r101_cgnl1": (79.54, 93.84),
    "mini_kinetics_r101_nl5": (79.21, 93.21),
    "mini_kinetics_r101_cgnl5": (79.88, 93.37),
    # main results on CUB
    "cub_r50_nl1": (84.79, 96.76),
    "cub_r50_nl5": (85.10, 96.18),
    "cub_r50_cgnl5": (85.68, 96.69),
    "cub_r101": (85.05, 96.70),
    "cub_r101_nl1": (85.49, 97.04),
    "cub_r101_cgnl1": (86.35, 97.86),
    "cub_r101_nl5": (86.10, 96.35),
    "cub_r101_cgnl5": (86.24, 97.23),
    # ImageNet
    "imagenet_r50": (76.15, 92.87),
    "imagenet_r50_cgnl1": (77.69, 93.64),
    "imagenet_r50_cgnlx1": (77.32, 93.46),
    "imagenet_r152": (78.31, 94.06),
    "imagenet_r152_cgnl1": (79.53, 94.59),
    "imagenet_r152_cgnlx1": (79.37, 94.47),
    # COCO: average precision of boxes and masks
    "coco_maskrcnn_r50": (34.47, 54.87, 36.58, 30.44, 51.55, 31.95),
    "coco_maskrcnn_r50_nl1": (35.02, 55.79, 37.54, 30.23, 52.40, 32.77),
    "coco_maskrcnn_r50_cgnl1": (35.70, 56.07, 38.69, 31.22, 52.44, 32.67),
}
"""Row -> top-1 and top-5 as printed in the paper; a row of several tables is listed with the first."""
ROWS = {
    "cub-kernels": "cub_r50 cub_r50_cgnl1 cub_r50_cgnlx1 cub_r50_cgnl1_embedded_gaussian",
    "cub-groups": "cub_r101 cub_r101_cgnl1_groups1 cub_r101_cgnl1_groups4 cub_r101_cgnl1 cub_r101_cgnl1_groups16 "
    "cub_r101_cgnl1_groups32 cub_r101_cgnl5_groups1 cub_r101_cgnl5_groups4 cub_r101_cgnl5 cub_r101_cgnl5_groups16 "
    "cub_r101_cgnl5_groups32",
    "mini-kinetics-groups": "mini_kinetics_r50 mini_kinetics_r50_cgnl1_groups1 mini_kinetics_r50_cgnl1_groups4 "
    "mini_kinetics_r50_cgnl1 mini_kinetics_r101 mini_kinetics_r101_cgnl1_groups1 mini_kinetics_r101_cgnl1_groups4 "
    "mini_kinetics_r101_cgnl1",
    "mini-kinetics-reduction": "mini_kinetics_r50 mini_kinetics_r50_cgnl1_inner1024 mini_kinetics_r50_cgnl1_groups1 "
    "mini_kinetics_r50_cgnl1_inner256 mini_kinetics_r50_cgnl1_groups4 mini_kinetics_r50_cgnl1",
    "ucf101": "ucf101_r50 ucf101_r50_nl1 ucf101_r50_cgnl1",
    "mini-kinetics": "mini_kinetics_r50 mini_kinetics_r50_nl1 mini_kinetics_r50_cgnl1 mini_kinetics_r50_nl5 "
    "mini_kinetics_r50_cgnl5 mini_kinetics_r101 mini_kinetics_r101_nl1 mini_kinetics_r101_cgnl1 "
    "mini_kinetics_r101_nl5 mini_kinetics_r101_cgnl5",
    "cub": "cub_r50 cub_r50_nl1 cub_r50_cgnl1 cub_r50_nl5 cub_r50_cgnl5 cub_r101 cub_r101_nl1 cub_r101_cgnl1 "
    "cub_r101_nl5 cub_r101_cgnl5",
    "residual": "cub_r50 cub_r50_residual1 cub_r50_cgnl1",
    "coco": "coco_maskrcnn_r50 coco_maskrcnn_r50_nl1 coco_maskrcnn_r50_cgnl1",
    "imagenet": "imagenet_r50 imagenet_r50_cgnl1 imagenet_r50_cgnlx1 imagenet_r152 imagenet_r152_cgnl1 "
    "imagenet_r152_cgnlx1",
}


def test_tables_are_the_papers():
    assert {name: [row.name for row in table.rows] for name, table in PAPER.items()} == {
        name: rows.split() for name, rows in ROWS.items()
    }


@pytest.mark.parametrize("name", PAPER)
def test_rows_report_the_numbers_of_the_paper(name):
    for row in PAPER[name].rows:
        metrics = METRICS[2:] if name == "coco" else METRICS[:2]
        assert row.reported == dict(zip(metrics, NUMBERS.get(row.name, ()), strict=False))
        assert len(row.reported) == len(NUMBERS.get(row.name, ()))


def test_numbers_are_percentages():
    for row, numbers in NUMBERS.items():
        if row.startswith("coco"):
            assert all(20 < number < 60 for number in numbers)
        else:
            assert 50 < numbers[0] < numbers[1] < 100


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


def test_reported_is_empty_for_other_settings():
    assert Row("R-50", "cub_r50").reported == {"top1": 84.05, "top5": 96.00}
    assert Row("R-50", "cub_r50", {"optim.lr": 1.0}, "other").reported == {}


def test_select_takes_patterns(toy):
    assert [row.name for row in toy.select("toy,*_r")] == ["toy", "toy_r"]
    assert toy.select(None) == toy.rows
    with pytest.raises(ValueError, match=r"there is no row 'toy_cgn'; did you mean toy_cgnl\?"):
        toy.select("toy,toy_cgn")


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


def test_select_rows_by_table():
    assert select_rows("cub-kernels", "*cgnlx1") == {"cub-kernels": TABLES["cub-kernels"].rows[2:3]}
    assert select_rows("all") == {name: table.rows for name, table in TABLES.items()}
    with pytest.raises(ValueError, match="'gated-fields'; did you mean gated-field"):
        select_rows("gated-fields")


@pytest.mark.parametrize("name", ["cub-heads", "pets-heads"])
def test_rows_of_heads_differ_in_the_network_and_the_rate_of_its_new_layers(name):
    configs = [row.config() for row in TABLES[name].rows]
    alike = (replace(c.optim, new_layers=1.0) for c in configs)
    assert len({str((c.data, o, c.model.weights, c.model.dropout)) for c, o in zip(configs, alike, strict=True)}) == 1
    assert all(c.optim.new_layers == (1.0 if c.model.head == "average" else 5.0) for c in configs)


def test_rows_of_heads_stand_beside_the_papers_networks():
    rows = {row.name: row for row in TABLES["cub-heads"].rows}
    assert rows["cub_heads_r50"].reported["top1"] == 84.05
    assert rows["cub_heads_r50_cgnl1"].reported["top1"] == 85.14
    assert rows["cub_heads_r50_nl1"].reported["top1"] == 84.79
    assert rows["cub_heads_r50_covariance"].reported == {}
    assert is_diagnosed("cub_heads_r50_covariance")
    assert not is_diagnosed("cub_heads_r50")
