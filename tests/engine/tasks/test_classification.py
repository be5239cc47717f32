"""What is counted in training and testing, against plain computation."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from cgnl.data.loading import Batch
from cgnl.data.synthetic import SYNTHETIC
from cgnl.engine.checkpoint import open_trained
from cgnl.engine.config import load
from cgnl.engine.datasets import TEST_SEED, open_dataset
from cgnl.engine.loop import Loop, validate
from cgnl.engine.predictions import ranked
from cgnl.engine.settings import Data
from cgnl.engine.tasks import Images
from cgnl.engine.tasks.base import Sums
from cgnl.engine.tasks.classification import check_finite, count_classes, inverse_frequencies
from tests.engine.conftest import (
    PICTURES,
    VIDEOS,
    Death,
    Tiny,
    dying,
    normalized,
    read_picture,
    same,
    video_input,
    views_by_hand,
    weights,
    write_frame_folders,
    write_pictures,
)


def test_check_finite_refuses_a_test_without_numbers(caplog, monkeypatch):
    monkeypatch.setattr("cgnl.engine.tasks.classification.log.propagate", True)
    monkeypatch.setattr("cgnl.engine.tasks.classification.log.handlers", [])  # which other tests may have left
    check_finite([])
    check_finite([0.5, 1.0])
    assert caplog.messages == []
    check_finite([0.5, math.nan, 1.0])
    assert [text[:6] for text in caplog.messages] == ["1 of 3"]
    with pytest.raises(ValueError, match=r"all 2 test samples are not finite: .*optim\.lr"):
        check_finite([math.nan, math.nan])


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


def test_loss_takes_shares_of_classes_and_counts_the_largest():
    module, samples = task(**{"optim.label_smoothing": 0.3}), batch()
    shares = torch.tensor([[0.2, 0.8, 0.0], [0.6, 0.0, 0.4], [0.0, 0.45, 0.55], [1.0, 0.0, 0.0], [0.3, 0.7, 0.0]])
    mixed = samples._replace(pixels=samples.pixels.float() * 0.7, labels=shares)
    loss = module.loss(module.network, mixed)
    module.network.train()
    logits = module.network(normalized(mixed.pixels))
    target = torch.full((5, 3), 0.1) + 0.7 * shares
    assert loss.item() == pytest.approx(-(target * logits.log_softmax(1)).sum(1).mean().item(), rel=1e-5)
    top1, _ = by_hand(logits, torch.tensor([1, 0, 2, 0, 1]))
    assert module.sums.means() == {"loss": pytest.approx(loss.item()), "top1": top1, "top5": 1.0, "count": 5}


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
    for module, micro_batch in ((whole, 6), (parts, 4)):
        module.micro_batch = micro_batch
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


# Classes of different sizes


def write_unequal(root, counts=(12, 6, 3)):
    """Class folders of 12, 6 and 3 pictures."""
    for path in write_pictures(root, count=max(counts)):
        if int(path.stem) >= counts["abc".index(path.parent.name)]:
            path.unlink()


def weighted_by_hand(logits, labels, weight, smoothing):
    """The mean over all samples of the weighted loss; smoothed labels are weighted by their classes."""
    log, classes = logits.double().log_softmax(1), logits.shape[1]
    target = F.one_hot(labels, classes).double() * (1 - smoothing) + smoothing / classes
    return -(target * weight.double() * log).sum(1).mean()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_balanced_loss_weighs_classes_by_inverse_frequency(tmp_path, smoothing):
    write_unequal(tmp_path)
    settings = {"data.root": str(tmp_path), "data.balance": "weights", "data.test_on": "train"}
    config = load(None, settings | {"optim.label_smoothing": smoothing})
    task = Images(Tiny(3, 0.0), config, open_dataset(config.data), torch.device("cpu"))
    weight = task.class_weights
    assert weight is not None
    assert weight.tolist() == pytest.approx([21 / 36, 21 / 18, 21 / 9])
    pixels, labels = torch.randint(256, (10, 3, 32, 32), dtype=torch.uint8), torch.randint(3, (10,))
    task.network.eval()
    loss = task.loss(task.network, Batch(pixels, labels, labels, ()))
    expected = weighted_by_hand(task.network(normalized(pixels)), labels, weight, smoothing)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    parts = [task.loss(task.network, Batch(p, y, y, ())) for p, y in zip(pixels.split(5), labels.split(5), strict=True)]
    assert loss.item() == pytest.approx(torch.stack(parts).mean().item(), rel=1e-6)  # as ranks average theirs


def test_balanced_loss_has_a_mean_weight_of_one():
    labels = [0] * 50 + [2] * 3 + [3]  # class 1 has no sample
    weight = inverse_frequencies(labels, 4)
    assert weight[labels].double().mean().item() == pytest.approx(1, abs=1e-7)
    assert (weight[2] / weight[0]).item() == pytest.approx(50 / 3)


@pytest.mark.parametrize("balance", ["weights", "sampling"])
def test_balanced_training_resumes_exactly(run, tmp_path, monkeypatch, balance):
    write_unequal(tmp_path / "data")
    settings = PICTURES | {"recipe": None, "data__root": str(tmp_path / "data"), "data__balance": balance}
    settings |= {"save_every": 1, "optim__batch_size": 6}
    whole = run(runs=tmp_path / "whole", **settings)
    plain = run(runs=tmp_path / "plain", **settings | {"data__balance": "none"})
    with monkeypatch.context() as patch:
        dying(patch, 3)
        with pytest.raises(Death):
            run(runs=tmp_path / "part", **settings)
    resumed = run(resume=True, runs=tmp_path / "part", **settings | {"data__workers": 1})
    ends = [weights(result.folder / "last.ckpt") for result in (whole, resumed, plain)]
    assert same(ends[0], ends[1])
    assert not same(ends[0], ends[2])
