"""Runs of a network that finds objects, from annotations to drawn pictures."""

import csv
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads
from torchvision.ops import MultiScaleRoIAlign

from cgnl import load as cgnl_load
from cgnl.cli import main
from cgnl.data.sources import FileSource
from cgnl.data.transforms import generator
from cgnl.engine.checkpoint import open_trained
from cgnl.engine.config import load
from cgnl.engine.evaluate import evaluate
from cgnl.engine.loop import Loop
from cgnl.engine.predict_objects import find_objects
from cgnl.engine.tasks import Objects
from cgnl.engine.tasks.detection import LOSSES, gather_results, same_objects
from cgnl.engine.train import train
from cgnl.explain.verdict import judge_run, read_verdict
from cgnl.models import NETWORKS
from cgnl.models.detection import BoxPredictor, FrozenBatchNorm2d, MaskPredictor, RPNHead
from tests.engine.conftest import SETTINGS as COMMON
from tests.engine.conftest import same, table, weights
from tests.engine.forks import run_ranks
from tests.engine.judge import by_pycocotools

HEIGHT, WIDTH = 48, 64


class TinyBody(nn.Module):
    out_channels = 8

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(3, 8, 4, stride=4), norm=FrozenBatchNorm2d(8), layer1=nn.Conv2d(8, 8, 3, padding=1)
            )
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"0": self.body(x)}


def tiny(num_classes: int, dropout: float) -> nn.Module:  # noqa: ARG001
    """A Mask R-CNN for pictures of 48 x 64."""
    anchors = AnchorGenerator(((12, 24),), ((1.0,),))
    pool = MultiScaleRoIAlign(["0"], 4, 1)
    return MaskRCNN(
        TinyBody(),
        rpn_anchor_generator=anchors,
        rpn_head=RPNHead(8, 2),
        rpn_pre_nms_top_n_train=40,
        rpn_post_nms_top_n_train=20,
        rpn_pre_nms_top_n_test=40,
        rpn_post_nms_top_n_test=10,
        box_roi_pool=pool,
        box_head=nn.Sequential(nn.Flatten(), nn.Linear(8 * 16, 16), nn.ReLU()),
        box_predictor=BoxPredictor(16, num_classes),
        box_batch_size_per_image=16,
        box_score_thresh=0.0,
        mask_roi_pool=pool,
        mask_head=MaskRCNNHeads(8, (8,), 1),
        mask_predictor=MaskPredictor(8, 8, num_classes),
    )


@pytest.fixture(autouse=True)
def _network(monkeypatch):
    monkeypatch.setitem(NETWORKS, "maskrcnn_tiny", tiny)


def write_scenes(root: Path, splits: dict[str, int]) -> Path:
    """Squares of two colours on grey, the last picture of each split empty, one crowd in each."""
    draw, number = np.random.default_rng(0), 0
    (root / "annotations").mkdir(parents=True)
    for split, count in splits.items():
        (root / split).mkdir()
        content: dict[str, Any] = {"images": [], "annotations": [], "categories": [{"id": 4, "name": "red"}]}
        content["categories"].append({"id": 9, "name": "blue"})
        for image in range(count):
            pixels = np.full((HEIGHT, WIDTH, 3), 100, np.uint8)
            for _ in range(0 if image == count - 1 else 2):
                number += 1
                side, colour = int(draw.integers(12, 24)), int(draw.integers(2))
                x, y = int(draw.integers(0, WIDTH - side)), int(draw.integers(0, HEIGHT - side))
                pixels[y : y + side, x : x + side] = (250, 0, 0) if colour == 0 else (0, 0, 250)
                shape: Any = [[x, y, x + side, y, x + side, y + side, x, y + side]]
                crowd = int(image == 1 and number % 2)
                if crowd:
                    shape = {"size": [HEIGHT, WIDTH], "counts": [500, 300, HEIGHT * WIDTH - 800]}
                content["annotations"].append(
                    {
                        "id": number,
                        "image_id": 10 * image,
                        "category_id": (4, 9)[colour],
                        "bbox": [x, y, side, side],
                        "area": side * side,
                        "iscrowd": crowd,
                        "segmentation": shape,
                    }
                )
            name = f"{10 * image:06}.png"
            content["images"].append({"id": 10 * image, "file_name": name, "height": HEIGHT, "width": WIDTH})
            Image.fromarray(pixels).save(root / split / name)
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return root


SETTINGS: dict[str, Any] = {
    "recipe": None,
    "model__name": "maskrcnn_tiny",
    "data__dataset": "coco",
    "data__size": 48,
    "data__test_short_side": 48,
    "data__long_side": 80,
    "optim__batch_size": 4,
    "optim__epochs": 2,
    "optim__lr": 1.0,
    "optim__warmup_steps": 2,
}


@pytest.fixture
def find(run, tmp_path):
    """A run of two epochs of two steps."""
    root = write_scenes(tmp_path / "scenes", {"train2017": 9, "val2017": 5})
    return lambda **settings: run(**{**SETTINGS, "data__root": str(root), **settings})


def test_run_leaves_what_a_run_leaves(find):
    result = find()
    rows = table(result.folder)
    assert len(rows) == 2
    assert [row["step"] for row in rows] == ["2", "4"]
    assert {f"train_{name}" for name in ("loss", *LOSSES)} <= set(rows[0])
    for row in rows:
        assert sum(float(row[f"train_{name}"]) for name in LOSSES) == pytest.approx(float(row["train_loss"]), rel=1e-6)
    summary = json.loads((result.folder / "results.json").read_text())
    assert summary["best_box_ap"] == result.best == max(float(row["test_box_ap"]) for row in rows)
    assert summary["test_count"] == 5
    log = (result.folder / "log.txt").read_text()
    assert "8 images to train on, 5 to test on, 2 classes" in log
    assert "1 training image without objects: left out of the training" in log
    assert "test: average precision on 5 images" in log
    trained = open_trained(result.folder / "last.ckpt")
    assert (trained.classes, trained.ids, trained.kind) == (("red", "blue"), (4, 9), "objects")


def test_training_lowers_the_loss(find):
    rows = find(optim__epochs=12, test_every=12, optim__warmup_steps=0, optim__lr=2.0).rows
    assert rows[-1]["train_loss"] < 0.8 * rows[0]["train_loss"]


@pytest.mark.parametrize("settings", [{}, {"optim__ema": 0.9, "optim__accumulate": 2}])
def test_resume_ends_the_same_to_the_last_bit(find, tmp_path, monkeypatch, settings):
    settings = {"save_every": 1, **settings}
    whole = find(runs=tmp_path / "whole", **settings)
    backward = Loop.backward

    def dying(self, batch, number, last_part):
        if number == 3 * self.config.optim.accumulate:
            raise KeyError
        return backward(self, batch, number, last_part)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "backward", dying)
        with pytest.raises(KeyError):
            find(runs=tmp_path / "parts", **settings)
    parts = find(resume=True, runs=tmp_path / "parts", **settings)
    assert same(weights(whole.folder / "last.ckpt"), weights(parts.folder / "last.ckpt"))
    assert table(whole.folder) == table(parts.folder)
    assert whole.test == parts.test


def break_batch(monkeypatch, number: int) -> None:
    """Let the first layers return no numbers for one batch of the training."""
    forward, seed = TinyBody.forward, generator(0, number, 0).initial_seed()

    def broken(self, x):
        found = forward(self, x)
        return {"0": found["0"] / 0} if self.training and torch.initial_seed() == seed else found

    monkeypatch.setattr(TinyBody, "forward", broken)


def test_step_that_is_not_finite_is_named(find, monkeypatch):
    break_batch(monkeypatch, 2)
    with pytest.raises(ValueError, match=r"^step 3: the loss is nan; the first module .* is not finite is backbone: "):
        find()


def test_step_that_is_not_finite_is_skipped(find, monkeypatch):
    break_batch(monkeypatch, 2)
    rows = table(find(optim__on_nan="skip").folder)
    assert [row["skipped"] for row in rows] == ["0", "1"]
    for row in rows:
        assert sum(float(row[f"train_{name}"]) for name in LOSSES) == pytest.approx(float(row["train_loss"]), rel=1e-6)


def test_eval_and_predict_agree_with_pycocotools(find, cgnl, tmp_path):
    result = find(optim__epochs=6, test_every=6)
    path, folder = result.folder / "last.ckpt", tmp_path / "scenes" / "val2017"
    assert evaluate(path)["test"] == result.test
    status, out, _ = cgnl("predict", path, folder, "--json")
    assert status == 0
    found = json.loads(out)
    assert {row["category_id"] for row in found} <= {4, 9}
    assert len(found) > 10
    truth = json.loads((tmp_path / "scenes" / "annotations" / "instances_val2017.json").read_text())
    expected = by_pycocotools(truth, found)
    assert {name: result.test[f"test_{name}"] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_eval_on_the_training_pictures_when_told(find, cgnl):
    path = find(optim__epochs=1).folder / "last.ckpt"
    status, out, _ = cgnl("eval", path, "data.test_on=train")
    assert status == 0
    assert "average precision on 9 images" in out
    status, out, _ = cgnl("eval", path, path, "--json")
    printed = json.loads(out)
    assert printed["mean_box_ap"] == pytest.approx(printed["tests"][0]["test_box_ap"])


def test_predict_names_and_draws(find, cgnl, tmp_path):
    path, folder = find(optim__epochs=1).folder / "last.ckpt", tmp_path / "scenes" / "val2017"
    status, out, _ = cgnl("predict", path, folder / "000000.png", "threshold=0", f"draw={tmp_path / 'drawn'}")
    assert status == 0
    assert out.splitlines()[0].endswith("found")
    assert any(name in out for name in ("red", "blue"))
    with Image.open(tmp_path / "drawn" / "000000.png") as drawn, Image.open(folder / "000000.png") as before:
        assert drawn.size == before.size
        assert drawn.tobytes() != before.convert("RGB").tobytes()
    status, out, _ = cgnl("predict", path, folder / "000000.png", "threshold=1")
    assert "nothing found" in out


def test_predict_refuses(find, cgnl, tmp_path):
    path, folder = find(optim__epochs=1).folder / "last.ckpt", tmp_path / "scenes" / "val2017"
    picture = folder / "000000.png"
    assert cgnl("predict", path, picture, "--csv")[0] == 2
    assert "threshold = 2.0 " in cgnl("predict", path, picture, "threshold=2")[2]
    picture.write_bytes(b"no")
    status, out, err = cgnl("predict", path, folder, "--json")
    assert status == 2
    assert "000000.png cannot be read" in err
    assert {row["image_id"] for row in json.loads(out)} == {10, 20, 30, 40}


def test_app_refuses_what_finds_objects(find, cgnl):
    status, _, err = cgnl("app", find(optim__epochs=1).folder / "last.ckpt")
    assert status == 2
    assert "finds objects" in err


INSERTED = "backbone.body.layer1_cgnl"
BLOCK: dict[str, Any] = {
    "model__block": "cgnl",
    "model__after": ["backbone.body.layer1"],
    "model__options": {"groups": 2, "zero_init": False, "norm": "group"},
}


@pytest.fixture
def blocked(find):
    """A checkpoint of a detector with a block that does something."""
    return find(**BLOCK, optim__epochs=6, test_every=6).folder / "last.ckpt"


def test_explain_shows_what_the_block_sees_in_a_test(blocked, cgnl, tmp_path):
    """The factors are those that the block computes when the detector finds objects in the file."""
    file, target, saved = tmp_path / "scenes" / "val2017" / "000000.png", tmp_path / "a.png", tmp_path / "a.npz"
    status, out, err = cgnl("explain", blocked, file, "--at", "41,22", "-o", target, "--save", saved)
    assert (status, err) == (0, "")
    assert INSERTED in out
    trained, seen = open_trained(blocked), []
    block: Any = trained.network.get_submodule(INSERTED)
    block.register_forward_pre_hook(lambda _, inputs: seen.extend(block.factors(inputs[0])))
    next(find_objects(trained, FileSource.of_files([file], "objects")))
    arrays = np.load(saved)
    assert np.array_equal(arrays["theta"], seen[0][0].detach().double().numpy())
    assert np.array_equal(arrays["phi"], seen[1][0].detach().double().numpy())
    assert arrays["crop"].tolist() == [0, 0, 64, 64]  # with the margin to a multiple of 32
    assert arrays["position"].tolist() == [5, 10]
    with Image.open(target) as picture:
        assert picture.width > picture.height


def test_explain_from_python_names_what_is_found(blocked, tmp_path):
    file, trained = tmp_path / "scenes" / "val2017" / "000000.png", cgnl_load(blocked)
    found = trained.predict(file)
    row = trained.explain(file, at=(41, 22), columns=2)
    assert len(row.maps) == 2
    assert ("Nothing found" in row.caption) == (not found.results)
    row.save(tmp_path / "why.png")
    with pytest.raises(ValueError, match="Grad-CAM"):
        trained.explain(file, grad_cam=True)


def test_report_says_whether_the_block_is_used(blocked, cgnl):
    found = judge_run(blocked.parent)
    assert found is not None
    assert found.samples == 5
    assert read_verdict(blocked, open_trained(blocked).network) == found
    status, out, _ = cgnl("diagnose", blocked, "accelerator=cpu")
    assert (status, found.sentence() in out) == (0, True)
    assert cgnl("report", blocked.parent)[0] == 0
    assert found.sentence() in (blocked.parent / "report.html").read_text()


def test_diagnose_compares_the_average_precision(blocked, cgnl, tmp_path):
    status, out, err = cgnl("diagnose", blocked, "-o", tmp_path / "d", "accelerator=cpu")
    assert (status, err) == (0, "")
    assert "box AP" in out
    with (tmp_path / "d.csv").open(newline="") as lines:
        rows = {row["attention"]: row for row in csv.DictReader(lines)}
    assert list(rows) == ["as it is", "its mean", "its sign x mean size", "another sample's", "block off"]
    assert float(rows["as it is"]["box_ap"]) == pytest.approx(100 * evaluate(blocked)["test"]["test_box_ap"])
    content = torch.load(blocked, weights_only=True)
    for name, value in content["state_dict"].items():
        if INSERTED in name and ".norm." in name:
            value.zero_()  # which switches the block off
    torch.save(content, tmp_path / "off.ckpt")
    without = 100 * evaluate(tmp_path / "off.ckpt")["test"]["test_box_ap"]
    assert float(rows["block off"]["box_ap"]) == pytest.approx(without)
    verdict = json.loads((blocked.parent / "diagnosis.json").read_text())["last.ckpt"]
    assert (verdict["samples"], verdict["changed"]) == (5, int(rows["block off"]["changed"]))
    assert list(verdict["added"]) == [INSERTED]


def objects(*rows: tuple[int, float, tuple[float, ...]]) -> list[dict[str, Any]]:
    return [{"category_id": c, "score": s, "bbox": list(box)} for c, s, box in rows]


def test_same_objects_go_by_class_and_place():
    box, moved, away = (0.0, 0.0, 10.0, 10.0), (0.0, 0.0, 10.0, 8.0), (20.0, 20.0, 10.0, 10.0)
    assert same_objects([], objects((1, 0.4, box)))
    assert not same_objects([], objects((1, 0.6, box)))
    assert same_objects(objects((1, 0.9, box), (2, 0.6, away)), objects((2, 0.8, away), (1, 0.5, moved)))
    assert not same_objects(objects((1, 0.9, box)), objects((2, 0.9, box)))
    assert not same_objects(objects((1, 0.9, box)), objects((1, 0.9, away)))
    assert not same_objects(objects((1, 0.9, box), (1, 0.9, moved)), objects((1, 0.9, box), (1, 0.9, away)))


def test_annotations_and_pictures_need_no_root(run, tmp_path):
    root = write_scenes(tmp_path / "scenes", {"train2017": 9})
    files = {"annotations": root / "annotations" / "instances_train2017.json", "images": root / "train2017"}
    result = run(**{**SETTINGS, "optim__epochs": 1}, **{f"data__{name}": str(path) for name, path in files.items()})
    assert result.test["test_count"] == 2


def test_report_of_a_run_that_finds_objects(find, cgnl):
    folder = find(optim__epochs=1).folder
    assert cgnl("report", folder)[0] == 0
    page = (folder / "report.html").read_text()
    assert "test box AP50" in page
    assert "Accuracy of each class" not in page


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"compile": True}, "compile is not possible for maskrcnn_tiny"),
        ({"data__cache": "gpu"}, "data.cache=gpu is not possible for maskrcnn_tiny"),
        ({"model__name": "tiny"}, "model.name = tiny does not fit coco"),
        ({"data__annotations": "none.json"}, r"there is no file .*none.json"),
    ],
)
def test_run_refuses(find, settings, reason):
    with pytest.raises(ValueError, match=reason):
        find(**settings)


def test_detector_is_refused_for_pictures_without_objects(run):
    with pytest.raises(ValueError, match=r"model.name = maskrcnn_tiny does not fit parts"):
        run(model__name="maskrcnn_tiny")


def test_unreadable_pictures_are_counted(find, tmp_path):
    for split in ("train2017", "val2017"):
        (tmp_path / "scenes" / split / "000000.png").write_bytes(b"no")
    result = find()
    assert (result.unreadable, result.test["test_count"]) == (2, 4)


def test_without_a_test_split_pictures_are_kept_for_it(run, tmp_path):
    root = write_scenes(tmp_path / "scenes", {"train2017": 9})
    result = run(**{**SETTINGS, "data__root": str(root), "optim__epochs": 1})
    assert "has no test split: 20% of the images are kept for testing" in (result.folder / "log.txt").read_text()
    assert result.test["test_count"] == 2


def test_run_goes_on_frozen_as_it_began(find, tmp_path):
    network = tiny(3, 0.0)
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    settings = {"model__weights": str(tmp_path / "weights.pt"), "save_every": 1}
    result = find(**settings)
    first = "network.backbone.body.conv1.weight"
    assert torch.equal(weights(result.folder / "last.ckpt")[first], network.state_dict()[first.partition(".")[2]])
    trained = open_trained(result.folder / "last.ckpt").network
    assert not trained.get_parameter("backbone.body.conv1.weight").requires_grad
    assert trained.get_parameter("rpn.head.bbox_pred.weight").requires_grad


def test_train_takes_its_recipe_by_name(cgnl, tmp_path):
    status, _, err = cgnl("train", "recipe=coco_maskrcnn_r50_cgnl1", f"data.root={tmp_path}")
    assert status == 2
    assert "has no annotations/instances_train*.json" in err
    assert "did you mean coco_maskrcnn_r50_cgnl1?" in cgnl("train", "recipe=coco_maskrcnn_r50_cgnl")[2]


def test_two_processes_test_every_picture_once(tmp_path):
    root = write_scenes(tmp_path / "scenes", {"train2017": 9, "val2017": 5})
    given = {name.replace("__", "."): value for name, value in SETTINGS.items() if name != "recipe"}
    settings = {**COMMON, **given, "data.root": str(root), "runs": str(tmp_path), "devices": 2}

    def train_and_test() -> int:
        last = train(load(None, settings)).folder / "last.ckpt"
        print("MARK")
        return main(["eval", str(last), "--json", "devices=2", "accelerator=cpu"])

    said, _ = run_ranks(train_and_test, tmp_path)
    together = json.loads(said.split("MARK\n")[-1])["tests"][0]
    alone = evaluate(tmp_path / "run" / "last.ckpt", {"accelerator": "cpu"})["test"]
    assert {name: together[name] for name in alone} == pytest.approx(alone, abs=1e-6)
    assert alone["test_count"] == 5
    assert [row["step"] for row in table(tmp_path / "run")] == ["2", "4"]


def test_losses_are_means_over_pictures(find, monkeypatch):
    seen, loss = [], Objects.loss

    def noting(self, model, batch):
        value = loss(self, model, batch)
        seen.append((value.item(), len(batch.samples)))
        return value

    monkeypatch.setattr(Objects, "loss", noting)
    rows = find().rows
    means = [sum(value * count for value, count in part) / 8 for part in (seen[:2], seen[2:])]
    assert [row["train_loss"] for row in rows] == pytest.approx(means, rel=1e-6)


def test_gather_results_is_in_one_order_however_many_ranks_there_are(monkeypatch):
    def rows(picture: int) -> list[dict[str, Any]]:
        return [{"image_id": picture, "score": score} for score in (0.5, 0.5, 0.1)]

    alone: tuple[list[int], list[Any]] = ([], [])
    parts: list[tuple[list[int], list[Any]]] = [([], []), ([], [])]
    for number, picture in enumerate((4, 9, 2, 7, 5)):  # three for one rank, two for the other
        for pictures, found in (alone, parts[number % 2]):
            pictures.append(picture)
            found += rows(picture)

    def gather(into: list[Any], _: Any) -> None:
        into[:] = parts

    expected = gather_results(*alone)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    assert gather_results(*parts[0]) == gather_results(*parts[1]) == expected
    assert expected[0] == [2, 4, 5, 7, 9]
