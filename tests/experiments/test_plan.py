"""Which runs are made, which cannot be, and how long they take."""

import pytest
import torch

from cgnl.engine.config import load
from cgnl.engine.datasets import get_size, open_dataset
from cgnl.engine.network import build_network
from cgnl.engine.settings import SYNTHETIC
from cgnl.experiments.plan import describe, estimate_durations, flops, measure_speed, plan, scale_settings
from cgnl.experiments.tables import TABLES, Table
from cgnl.models.table import cost
from tests.experiments.conftest import row as make_row


def test_plan_goes_seed_by_seed(toy, tmp_path):
    runs, reasons = plan(toy, toy.rows, "paper", 2, tmp_path, {"optim.lr": 0.5})
    assert [run.config.name for run in runs] == [
        f"{name}_seed{n}" for n in (0, 1) for name in ("toy", "toy_cgnl", "toy_r")
    ]
    assert {run.config.optim.lr for run in runs} == {0.5}
    assert [run.config.seed for run in runs] == [0, 0, 0, 1, 1, 1]
    assert [run.diagnosed for run in runs[:3]] == [False, True, False]
    assert runs[0].folder == tmp_path / "toy_seed0"
    assert reasons == {}


def test_plan_makes_a_run_of_each_split(toy, tmp_path):
    table = Table("t", toy.rows[:1], splits=(1, 2))
    runs, _ = plan(table, table.rows, "paper", 1, tmp_path, {})
    assert [(run.config.name, run.config.data.split) for run in runs] == [
        ("toy_split1_seed0", 1),
        ("toy_split2_seed0", 2),
    ]


@pytest.mark.parametrize(
    ("table", "scale", "settings", "reason"),
    [
        ("cub", "paper", {}, "data.root must say where cub is"),
        ("coco", "embedded", {}, "no synthetic dataset with objects"),
        ("cub", "small", {"data.root": "nowhere"}, "nowhere"),
    ],
)
def test_plan_says_what_is_missing(tmp_path, table, scale, settings, reason):
    rows = TABLES[table].rows
    runs, reasons = plan(TABLES[table], rows, scale, 2, tmp_path, settings)
    assert runs == []
    assert set(reasons) == {r.name for r in rows}
    assert all(reason in said for said in reasons.values())


def test_plan_leaves_out_a_row_without_weights(toy, tmp_path):
    rows = (toy.rows[0], make_row("trained", "toy_w", None, **{"model.weights": "none.pth"}))
    runs, reasons = plan(toy, rows, "paper", 1, tmp_path, {})
    assert [run.row for run in runs] == ["toy"]
    assert reasons["toy_w"]


def test_plan_does_not_make_another_network_of_a_row(tmp_path):
    rows = TABLES["cub"].select("cub_r50,cub_r101")
    _, reasons = plan(TABLES["cub"], rows, "paper", 1, tmp_path, {"model.name": "resnet50_caffe"})
    assert reasons["cub_r101"] == "its network is resnet101, and model.name = resnet50_caffe is given"
    assert "data.root" in reasons["cub_r50"]


@pytest.mark.parametrize("name", ["model.block", "model.options.groups", "seed", "data.split", "name"])
def test_plan_refuses_what_is_for_the_rows_to_say(toy, tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} is set by the rows of a table"):
        plan(toy, toy.rows, "paper", 1, tmp_path, {name: "1"})


def test_flops_are_three_passes_of_training_and_one_of_testing(toy, tmp_path):
    config = plan(toy, toy.rows, "paper", 1, tmp_path, {"test_every": 2})[0][0].config
    once = 2e9 * cost("tiny", 64, num_classes=13).gmacs
    assert flops(config, open_dataset(config.data)) == pytest.approx(once * (3 * 2 * 24 + 6))


def test_flops_of_wide_pictures():
    config = load("relation", {"data.samples": 8, "model.block": None})  # 64 x 256
    once = 2e9 * cost("resnet18", 128, num_classes=3).gmacs
    assert flops(config, open_dataset(config.data)) == pytest.approx(once * (3 * 30 * 8 + 30 * 2), rel=0.01)


def test_estimate_durations_follow_what_runs_took(toy, tmp_path, monkeypatch):
    runs, _ = plan(toy, toy.rows[:2], "paper", 2, tmp_path, {})
    before = estimate_durations(runs, tmp_path)
    assert set(before) == {run.config.name for run in runs}
    assert all(seconds > 0 for seconds in before.values())
    monkeypatch.setattr("cgnl.experiments.plan.measure_speed", lambda: 1e9)  # FLOP/s
    alone, beside = (estimate_durations(runs, tmp_path, jobs) for jobs in (1, 5))
    assert beside == pytest.approx({name: 5 * seconds for name, seconds in alone.items()})
    from cgnl.engine.config import to_yaml

    folder = runs[0].folder
    folder.mkdir()
    (folder / "results.json").write_text('{"test_top1": 0.5, "seconds": 100}')
    (folder / "config.yaml").write_text(to_yaml(runs[0].config))
    after = estimate_durations(runs, tmp_path)
    assert after["toy_seed1"] == 100
    ratio = flops(runs[1].config, open_dataset(runs[1].config.data)) / flops(
        runs[0].config, open_dataset(runs[0].config.data)
    )
    assert after["toy_cgnl_seed1"] == pytest.approx(100 * ratio)


def test_measure_speed_is_plausible():
    assert 1e8 < measure_speed() < 1e16


ROWS = [(name, row) for name, table in TABLES.items() for row in table.rows]


@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=[f"{name}-{row.name}" for name, row in ROWS])
@pytest.mark.parametrize("scale", ["paper", "small"])
def test_scale_settings_of_a_row_keep_its_network(row, scale):
    config, alone = row.config(scale_settings(row, scale)), row.config()
    assert config.model == alone.model
    assert config.data.dataset == alone.data.dataset
    if scale == "paper":
        assert config == alone


def test_scale_settings_of_small_are_smaller():
    for _, row in ROWS:
        small, paper = (row.config(scale_settings(row, scale)) for scale in ("small", "paper"))
        assert small.optim.epochs <= paper.optim.epochs
        assert get_size(small.data) <= get_size(paper.data)


def test_scale_settings_of_embedded_need_nothing():
    seen = set()
    for name, row in ROWS:
        if name in ("coco", "cityscapes"):
            continue
        config = row.config(scale_settings(row, "embedded"))
        assert config.data.dataset in SYNTHETIC
        assert config.model.weights is None
        if str(config.model) not in seen:
            with torch.device("meta"):
                assert build_network(config.model, 4) is not None
        seen.add(str(config.model))
    assert len(seen) > 20


def test_scale_settings_of_embedded_refuse_objects():
    with pytest.raises(ValueError, match="no synthetic dataset with objects"):
        scale_settings(TABLES["coco"].rows[0], "embedded")


@pytest.mark.parametrize(
    ("recipe", "settings", "expected"),
    [
        ("cub_r50", {}, "resnet50 from the weights IMAGENET1K_V1: 448 pixels, 10 + 100 epochs, step schedule, 256"),
        ("parts", {}, "resnet18 from random weights: embedded parts, 1 + 2 epochs, cosine schedule, 48 samples"),
        ("ucf101_r50", {"data.limit": 1000}, "224 pixels, clips of 32 frames, at most 1,000 training samples, 10"),
        ("cub_r50", {"model.weights": "/mnt/weights/w.pth"}, "resnet50 from the weights w.pth: 448 pixels"),
        ("cub_r50", {"data.test_on": "validation"}, "samples a step, tested on 20% of the training samples"),
    ],
)
def test_describe_says_the_protocol(recipe, settings, expected):
    assert expected in describe(load(recipe, settings))
