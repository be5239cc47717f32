"""What is counted in training and testing, against plain computation."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from cgnl.data.loading import Batch
from cgnl.data.synthetic import SYNTHETIC
from cgnl.engine.checkpoint import open_trained
from cgnl.engine.config import Data, load
from cgnl.engine.datasets import TEST_SEED, open_dataset
from cgnl.engine.loop import Loop, validate
from cgnl.engine.predictions import ranked
from cgnl.engine.tasks import Images
from cgnl.engine.tasks.base import Sums
from cgnl.engine.tasks.classification import count_classes
from tests.engine.conftest import (
    PICTURES,
    VIDEOS,
    Tiny,
    normalized,
    read_picture,
    video_input,
    views_by_hand,
    weights,
    write_frame_folders,
    write_pictures,
)


def by_hand(scores, labels):
    """Top-1 and top-5 by sorting."""
    ranked = [sorted(range(len(row)), key=lambda k, row=row: -row[k])[:5] for row in scores.tolist()]
    pairs = list(zip(ranked, labels.tolist(), strict=True))
    return sum(r[0] == y for r, y in pairs) / len(pairs), sum(y in r for r, y in pairs) / len(pairs)


@pytest.mark.parametrize("classes", [1, 2, 4, 5, 6, 50])
def test_count_classes_equals_plain_counting(classes):
    scores, labels = torch.randn(37, classes), torch.randint(classes, (37,))
    losses = F.cross_entropy(scores, labels, reduction="none")
    sums = Sums("loss", "top1", "top5")
    for part in torch.arange(37).split(10):  # the last one is smaller
        count_classes(sums, losses[part], ranked(scores[part], 5)[1], labels[part])
    result, (top1, top5) = sums.means(), by_hand(scores, labels)
    assert (result["top1"], result["top5"], result["count"]) == (top1, top5, 37)
    assert result["loss"] == pytest.approx(losses.double().mean().item(), rel=1e-6)


def test_count_classes_takes_the_mean_of_the_losses_as_well():
    scores, labels = torch.randn(12, 3), torch.randint(3, (12,))
    sums, classes = Sums("loss", "top1", "top5"), torch.zeros(12, 1)
    for part in torch.arange(12).split(8):
        count_classes(sums, F.cross_entropy(scores[part], labels[part]), classes[part], labels[part])
    assert sums.means()["loss"] == pytest.approx(F.cross_entropy(scores, labels).item(), rel=1e-6)


@pytest.mark.parametrize("settings", [{}, {"optim__ema": 0.9}, {"precision": "32", "channels_last": False}], ids=str)
def test_classification_test_equals_the_saved_network_by_hand(run, settings):
    result = run(data__samples=72, optim__lr=2.0, **settings)
    network = open_trained(result.folder / "last.ckpt").network
    samples = [SYNTHETIC["parts"][1](TEST_SEED, index) for index in range(18)]
    labels = torch.tensor([sample.label for sample in samples])
    with torch.no_grad():
        logits = network(normalized(torch.stack([sample.pixels for sample in samples])))
    top1, top5 = by_hand(logits, labels)
    assert (result.test["test_top1"], result.test["test_top5"], result.test["test_count"]) == (top1, top5, 18)
    assert result.test["test_loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)


def test_classification_test_takes_the_centre_of_pictures(run, tmp_path):
    for split in ("train", "test"):
        write_pictures(tmp_path / "data" / split, count=3 if split == "test" else 8)
    result = run(recipe=None, data__root=str(tmp_path / "data"), **PICTURES)
    network = open_trained(result.folder / "last.ckpt").network
    paths = sorted((tmp_path / "data" / "test").glob("*/*.png"))
    labels = torch.tensor(["abc".index(path.parent.name) for path in paths])
    with torch.no_grad():
        logits = network(normalized(torch.stack([read_picture(path)[:, 4:36] for path in paths])))
    top1, top5 = by_hand(logits, labels)
    assert (result.test["test_top1"], result.test["test_top5"], result.test["test_count"]) == (top1, top5, 9)
    assert result.test["test_loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)


def test_classification_averages_the_softmax_of_the_views_of_a_video(run, tmp_path):
    write_frame_folders(tmp_path / "data" / "train", contrast=4)
    folders = write_frame_folders(tmp_path / "data" / "test", count=5, contrast=4)
    result = run(recipe=None, data__root=str(tmp_path / "data"), optim__lr=3.0, **VIDEOS)
    network = open_trained(result.folder / "last.ckpt").network
    labels = torch.tensor(["abc".index(folder.parent.name) for folder in folders])
    with torch.no_grad():
        logits = torch.stack([network(video_input(views_by_hand(folder))) for folder in folders])  # [15, 6, 3]
    scores = logits.softmax(2).mean(1)
    right = (logits.argmax(2) == labels[:, None]).double()
    assert 0 < right.mean() < 1  # or else nothing is told apart
    assert result.test["test_top1"] == by_hand(scores, labels)[0]
    assert result.test["test_clip_top1"] == pytest.approx(right.mean().item(), rel=1e-12)
    assert (result.test["test_count"], result.test["test_views"]) == (15, 6)
    assert result.test["test_loss"] == pytest.approx(F.nll_loss(scores.log(), labels).item(), rel=1e-5)


def test_classification_tests_videos_between_epochs_by_the_middle_of_the_middle(run, tmp_path):
    write_frame_folders(tmp_path / "data" / "train", contrast=4)
    folders = write_frame_folders(tmp_path / "data" / "test", count=5, contrast=4)
    result = run(recipe=None, data__root=str(tmp_path / "data"), optim__lr=3.0, **VIDEOS)
    network = open_trained(result.folder / "last.ckpt").network
    labels = torch.tensor(["abc".index(folder.parent.name) for folder in folders])
    views = []
    for folder in folders:
        frames = torch.stack([read_picture(folder / f"{number}.png") for number in range(1, 5)])
        views.append(frames[..., 4:20])
    with torch.no_grad():
        logits = network(video_input(torch.stack(views)))
    row = result.rows[-1]
    assert (row["test_top1"], row["test_views"]) == (by_hand(logits, labels)[0], 1)
    assert row["test_loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)


def task(**settings) -> Images:
    config = load(None, {"model.name": "tiny", "model.block": None, **settings})
    samples = open_dataset(Data("parts", samples=4))
    return Images(Tiny(3, 0.0), config, dataclasses.replace(samples, classes=("a", "b", "c")), torch.device("cpu"))


def batch(count: int = 5, problems: tuple[str, ...] = ()) -> Batch:
    pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
    return Batch(pixels, torch.arange(count) % 3, torch.arange(count), problems)


def test_loss_smooths_labels():
    module, samples = task(**{"optim.label_smoothing": 0.3}), batch()
    loss = module.loss(module.network, samples)
    logs = module.network(normalized(samples.pixels)).log_softmax(1)
    target = torch.full((5, 3), 0.1) + 0.7 * F.one_hot(samples.labels, 3)
    assert loss.item() == pytest.approx(-(target * logs).sum(1).mean().item(), rel=1e-5)


def test_validate_counts_nothing_of_a_batch_that_could_not_be_read():
    module = task()
    unread = Batch(torch.empty(0), torch.empty(0, dtype=torch.long), torch.empty(0), ("gone",))
    with pytest.raises(ValueError, match="no test sample could be read; one is: gone"):
        validate(module, module.network, [unread])
    assert module.problems == {"gone"}


def test_test_step_is_the_same_in_any_number_of_parts():
    whole, parts = task(), task()
    parts.network.load_state_dict(whole.network.state_dict())
    samples = batch(6)
    samples = samples._replace(pixels=samples.pixels.unflatten(0, (3, 2)), labels=torch.tensor([0, 1, 2]))
    for module, at_once in ((whole, 6), (parts, 4)):
        module.at_once = at_once
        with torch.no_grad():
            module.start_test(module.network.eval())
            module.test_step(module.network, samples)
    assert parts.test_sums.means() == pytest.approx(whole.test_sums.means(), rel=1e-6)
    assert (parts.test_sums.means()["count"], parts.view_sums.means()["count"]) == (3, 6)


def test_classification_follows_sgd_by_hand(run, monkeypatch):
    settings = {"model__dropout": 0.0, "optim__weight_decay": 0.01, "optim__clip_norm": 0.5, "optim__epochs": 1}
    batches, start = [], {}
    original = Loop.backward

    def step(self, batch, *rest):
        if not batches:
            start.update({name: value.clone() for name, value in self.network.state_dict().items()})
        batches.append(batch)
        return original(self, batch, *rest)

    monkeypatch.setattr(Loop, "backward", step)
    result = run(**settings)
    network = Tiny(12, 0.0)
    network.load_state_dict(start)
    velocity = [torch.zeros_like(p) for p in network.parameters()]
    for number, samples in enumerate(batches):
        loss = F.cross_entropy(network(normalized(samples.pixels)), samples.labels)
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        length = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        rate = 0.8 * 8 / 256 * 0.5 * (1 + math.cos(math.pi * number / 3))
        for p, v, g in zip(network.parameters(), velocity, gradients, strict=True):
            v.mul_(0.9).add_(g * min(1, 0.5 / length) + 0.01 * p.detach())
            p.data -= rate * v
    saved = weights(result.folder / "last.ckpt")
    for name, value in network.named_parameters():
        torch.testing.assert_close(saved[f"network.{name}"], value.detach(), rtol=1e-4, atol=1e-6)


def test_classification_clips_gradients(run, tmp_path):
    plain, clipped = run(runs=tmp_path / "1"), run(runs=tmp_path / "2", optim__clip_norm=1e-3, optim__weight_decay=0.0)
    first = {"runs": tmp_path / "3", "optim__lr": 1e-9, "optim__weight_decay": 0.0}
    start = weights(run(**first).folder / "last.ckpt")

    def moved(result):
        end = weights(result.folder / "last.ckpt")
        names = [n for n in end if n.endswith(("weight", "bias"))]
        return math.sqrt(sum(float((end[n] - start[n]).square().sum()) for n in names))

    bound = 1e-3 * 10 * 0.8 * 8 / 256 * 6  # length x momentum's sum x rate x steps
    assert moved(clipped) < bound < moved(plain)
