"""Batches follow from seed, epoch and sample, whoever loads them."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from cgnl.data.augment import Augmentation, augment, mix
from cgnl.data.index import Sample, UnreadableError
from cgnl.data.loading import (
    Batch,
    EpochSample,
    EvalBatches,
    EvalSet,
    TrainBatchSampler,
    TrainSet,
    View,
    make_loader,
    read_again,
)
from cgnl.data.sources import CachedSource, FileSource, SyntheticSource
from cgnl.data.transforms import generator, random_crop, resize
from cgnl.data.video import Pick


class Memory:
    """Samples in memory, of which those that are None cannot be read."""

    def __init__(self, pixels: Iterable[Tensor | None]):
        self.pixels = list(pixels)

    def __len__(self) -> int:
        return len(self.pixels)

    def label(self, index: int) -> int:
        return 10 + index

    def name(self, index: int) -> str:
        return str(index)

    def read(self, index: int, pick: Pick) -> Tensor:
        pixels = self.pixels[index]
        if pixels is None:
            raise UnreadableError(f"sample {index}", "it is broken")
        return pixels if pixels.ndim == 3 else pixels[list(pick(len(pixels)))]


def pictures(count: int, bad: Iterable[int] = (), size: tuple[int, int] = (24, 32)) -> Memory:
    source = torch.Generator().manual_seed(0)
    drawn = [torch.randint(256, (3, *size), dtype=torch.uint8, generator=source) for _ in range(count)]
    return Memory(None if index in set(bad) else pixels for index, pixels in enumerate(drawn))


def numbered(frames: int, height: int = 16, width: int = 16) -> Tensor:
    """A video whose pixels are the number of the frame."""
    return torch.arange(frames, dtype=torch.uint8).view(-1, 1, 1, 1).expand(frames, 3, height, width)


def read_one(samples: TrainSet | EvalSet, place: Any) -> Batch:
    """The batch of a single sample."""
    return samples.__getitems__([place])


def same(one: Batch, other: Batch) -> bool:
    return one.problems == other.problems and all(map(torch.equal, one[:3], other[:3]))


# TrainBatchSampler


LABELS = [0] * 14 + [1] * 5 + [2] * 3
"""22 samples of three classes."""


def balanced(**options: Any) -> list[list[EpochSample]]:
    return list(TrainBatchSampler(22, 4, epochs=6, seed=5, labels=LABELS, **options))


def test_train_batches_balanced_classes():
    count = len(LABELS)
    extra = set()
    for epoch in range(6):
        order = TrainBatchSampler(count, 1, epochs=6, seed=5, labels=LABELS, first=count * epoch)
        places = [place for (place,) in islice(order, count)]
        assert {place.epoch for place in places} == {epoch}
        assert len(set(places)) == count  # a repeated sample has another view
        seen = Counter(place.sample % count for place in places)
        drawn = Counter(LABELS[sample] for sample in seen.elements())
        assert sorted(drawn.values()) == [7, 7, 8]
        extra.add(max(drawn, key=drawn.__getitem__))
        for label in range(3):
            of_class = [seen[sample] for sample in range(count) if LABELS[sample] == label]
            assert max(of_class) - min(of_class) <= 1  # none again before all were drawn
    assert len(extra) > 1  # not always the same class gets one more


def test_train_batches_balanced_follow_from_seed_and_epoch():
    whole = balanced()
    assert whole == balanced()
    assert whole != list(TrainBatchSampler(22, 4, epochs=6, seed=6, labels=LABELS))
    for first in (1, 5, 13, 29):
        assert balanced(first=first) == whole[first:]
    ranks = [balanced(rank=rank, world=2) for rank in range(2)]
    for step, parts in zip(whole, zip(*ranks, strict=True), strict=True):
        assert sorted(step) == sorted(place for part in parts for place in part)


def test_train_set_repeats_a_sample_in_another_view():
    source = pictures(5, size=(64, 64))
    samples = TrainSet(source, View(16), seed=0, bad_limit=0)
    once, again = read_one(samples, EpochSample(0, 2)), read_one(samples, EpochSample(0, 7))
    assert (once.samples.item(), again.samples.item(), once.labels) == (2, 2, again.labels)
    assert not torch.equal(once.pixels, again.pixels)


def test_train_batches_epoch_is_a_permutation():
    batches = list(TrainBatchSampler(12, 4, epochs=3, seed=0))
    assert [len(batch) for batch in batches] == [4] * 9
    for epoch in range(3):
        places = [place for batch in batches[3 * epoch : 3 * epoch + 3] for place in batch]
        assert {place.epoch for place in places} == {epoch}
        assert sorted(place.sample for place in places) == list(range(12))


def test_train_batches_leaves_out_what_fills_no_batch():
    batches = list(TrainBatchSampler(11, 4, epochs=2, seed=0))
    assert [len(batch) for batch in batches] == [4] * 4
    for epoch in (0, 1):
        samples = [place.sample for batch in batches if batch[0].epoch == epoch for place in batch]
        assert len(set(samples)) == 8


def test_train_batches_leaves_out_others_in_each_epoch():
    left_out = [
        set(range(11))
        - {place.sample for batch in TrainBatchSampler(11, 4, 20, seed=0) for place in batch if place[0] == e}
        for e in range(20)
    ]
    assert set().union(*left_out) == set(range(11))


def test_train_batches_order_follows_from_seed_and_epoch():
    first, second = (list(TrainBatchSampler(64, 64, epochs=2, seed=seed)) for seed in (0, 1))
    assert first == list(TrainBatchSampler(64, 64, epochs=2, seed=0))
    orders = [[place.sample for place in batch] for batch in (*first, *second)]
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_train_batches_first_gives_the_rest(world, accumulate):
    options = {"rank": world - 1, "world": world, "accumulate": accumulate}
    whole = list(TrainBatchSampler(18, 4, epochs=3, seed=5, **options))
    assert len(whole) == 3 * 4 * accumulate
    for first in range(len(whole) + 2):
        batches = TrainBatchSampler(18, 4, epochs=3, seed=5, first=first, **options)
        assert list(batches) == whole[first:]
        assert len(batches) == len(whole)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_train_batches_of_all_ranks_are_those_of_one(world, accumulate):
    alone = list(TrainBatchSampler(37, 8, epochs=2, seed=3))
    ranks = [list(TrainBatchSampler(37, 8, 2, 3, rank=r, world=world, accumulate=accumulate)) for r in range(world)]
    assert {len(batches) for batches in ranks} == {len(alone) * accumulate}
    assert {len(batch) for batches in ranks for batch in batches} == {8 // (world * accumulate)}
    for step, expected in enumerate(alone):
        parts = [part for batches in ranks for part in batches[step * accumulate : (step + 1) * accumulate]]
        assert sorted(place for part in parts for place in part) == sorted(expected)


@pytest.mark.parametrize(
    ("count", "batch_size", "world", "accumulate"), [(9, 3, 2, 1), (9, 6, 2, 2), (9, 4, 1, 3), (3, 4, 1, 1)]
)
def test_train_batches_refuses_what_does_not_divide(count, batch_size, world, accumulate):
    expected = f"a batch of {batch_size} cannot be cut into {world} x {accumulate} equal parts out of {count} samples"
    with pytest.raises(ValueError, match=expected):
        TrainBatchSampler(count, batch_size, 1, 0, world=world, accumulate=accumulate)


# EvalBatches


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 12, 13])
def test_eval_batches_give_every_sample_once(count, world):
    ranks = [EvalBatches(count, 2, rank, world) for rank in range(world)]
    given = [sample for batches in ranks for batch in batches for sample in batch]
    assert sorted(given) == list(range(count))
    assert [len(batches) for batches in ranks] == [len(list(batches)) for batches in ranks]
    assert all(0 < len(batch) <= 2 for batches in ranks for batch in batches)


def test_eval_batches_keep_the_order():
    assert list(EvalBatches(5, 2)) == [[0, 1], [2, 3], [4]]
    assert list(EvalBatches(5, 2, rank=1, world=2)) == [[1, 3]]


# TrainSet


def test_train_set_gives_a_view_of_the_sample():
    batch = read_one(TrainSet(pictures(3), View(16), seed=0, bad_limit=0), EpochSample(0, 2))
    assert (batch.pixels.shape, batch.pixels.dtype) == ((1, 3, 16, 16), torch.uint8)
    assert (batch.labels.tolist(), batch.samples.tolist(), batch.problems) == ([12], [2], ())


def test_train_set_view_depends_on_its_place_alone():
    places = [EpochSample(epoch, sample) for epoch in (0, 1) for sample in range(4)]
    samples = TrainSet(pictures(4), View(16), seed=0, bad_limit=0)
    forward = {place: read_one(samples, place) for place in places}
    torch.rand(100)
    backward = {
        place: read_one(TrainSet(pictures(4), View(16), seed=0, bad_limit=0), place) for place in reversed(places)
    }
    assert all(same(forward[place], backward[place]) for place in places)


def test_train_set_view_changes_with_seed_and_epoch():
    views = [
        read_one(TrainSet(pictures(1), View(16), seed, bad_limit=0), EpochSample(epoch, 0))
        for seed in (0, 1)
        for epoch in range(4)
    ]
    assert not any(same(one, other) for i, one in enumerate(views) for other in views[:i])


def test_train_set_view_takes_its_settings():
    bright = torch.zeros(3, 32, 32, dtype=torch.uint8)
    bright[..., 16:] = 255
    whole = TrainSet(Memory([bright]), View(8, area=(1.0, 1.0), flip=False), seed=0, bad_limit=0)
    for epoch in range(20):
        pixels = read_one(whole, EpochSample(epoch, 0)).pixels
        assert pixels[..., 0].max() == 0
        assert pixels[..., -1].min() == 255


def test_train_set_crops_all_frames_of_a_clip_alike():
    still = torch.randint(256, (1, 3, 24, 32), dtype=torch.uint8).expand(9, 3, 24, 32)
    samples = TrainSet(Memory([still]), View(16, frames=4), seed=0, bad_limit=0)
    views = [read_one(samples, EpochSample(epoch, 0)).pixels[0] for epoch in range(8)]
    for clip in views:
        assert clip.shape == (4, 3, 16, 16)
        assert all(torch.equal(frame, clip[0]) for frame in clip)
    assert len({view.sum().item() for view in views}) > 1


def test_train_set_clips_begin_anywhere_they_fit():
    samples = TrainSet(Memory([numbered(12)]), View(None, frames=4, stride=2), seed=0, bad_limit=0)
    clips = [read_one(samples, EpochSample(epoch, 0)).pixels[0] for epoch in range(60)]
    assert {tuple(clip[:, 0, 0, 0].tolist()) for clip in clips} == {
        (start, start + 2, start + 4, start + 6) for start in range(5)
    }


def test_train_set_without_a_size_leaves_the_pixels():
    source = pictures(2)
    batch = read_one(TrainSet(source, View(None), seed=0, bad_limit=0), EpochSample(3, 1))
    assert torch.equal(batch.pixels[0], source.read(1, range))


def test_train_set_replaces_what_cannot_be_read_by_the_next():
    samples = TrainSet(pictures(5, bad=[0, 3, 4]), View(16), seed=0, bad_limit=3)
    batch = read_one(samples, EpochSample(0, 3))
    assert (batch.labels.tolist(), batch.samples.tolist()) == ([11], [1])
    assert batch.problems == tuple(f"sample {index} cannot be read: it is broken" for index in (3, 4, 0))
    assert read_one(samples, EpochSample(0, 2)).problems == ()


def test_train_set_view_of_a_replacement_depends_on_its_place_alone():
    class Late(Memory):
        """Notices what is broken only after the frames were picked."""

        def read(self, index: int, pick: Pick) -> Tensor:
            if self.pixels[index] is None:
                pick(30)
            return super().read(index, pick)

    videos = [None, torch.randint(256, (30, 3, 24, 32), dtype=torch.uint8)]
    view = View(16, frames=4)
    for epoch in range(4):
        early, late = (
            read_one(TrainSet(kind(videos), view, seed=0, bad_limit=1), EpochSample(epoch, 0))
            for kind in (Memory, Late)
        )
        assert same(early, late)


def joined(batches: list[Batch]) -> Batch:
    """Batches of single samples as one."""
    read = [batch for batch in batches if len(batch.labels)]
    pixels, labels = torch.cat([batch.pixels for batch in read]), torch.cat([batch.labels for batch in read])
    problems = tuple(problem for batch in batches for problem in batch.problems)
    return Batch(pixels, labels, torch.cat([batch.samples for batch in read]), problems)


def test_train_set_gives_many_samples_as_one_by_one():
    samples = TrainSet(pictures(5, bad=[1, 2]), View(16), seed=0, bad_limit=1)
    places = [EpochSample(epoch, sample) for epoch in (0, 1) for sample in range(5)]
    many, one_by_one = samples.__getitems__(places), joined([read_one(samples, place) for place in places])
    assert len(many.labels) == 8
    assert same(many, one_by_one)


def assert_empty(batch: Batch) -> None:
    assert [len(part) for part in batch[:3]] == [0, 0, 0]
    assert (batch.pixels.dtype, batch.labels.dtype) == (torch.uint8, torch.int64)


@pytest.mark.parametrize(("limit", "named"), [(0, [3]), (1, [3, 4]), (2, [3, 4, 0])])
def test_train_set_gives_up_beyond_the_limit(limit, named):
    batch = read_one(TrainSet(pictures(5, bad=[0, 3, 4]), View(16), seed=0, bad_limit=limit), EpochSample(0, 3))
    assert_empty(batch)
    assert batch.problems == tuple(f"sample {index} cannot be read: it is broken" for index in named)


def test_train_set_gives_up_when_nothing_can_be_read():
    batch = read_one(TrainSet(pictures(3, bad=range(3)), View(16), seed=0, bad_limit=100), EpochSample(0, 1))
    assert_empty(batch)
    assert len(batch.problems) == 3


# EvalSet


def test_eval_set_of_a_picture_is_its_centre():
    pixels = torch.arange(20, dtype=torch.uint8).expand(3, 16, 20)
    batch = read_one(EvalSet(Memory([pixels]), View(8, short_side=16)), 0)
    assert torch.equal(batch.pixels, pixels[None, None, :, 4:12, 6:14])
    assert (batch.labels.tolist(), batch.samples.tolist(), batch.problems) == ([10], [0], ())


def test_eval_set_of_a_video_is_crops_of_clips(tmp_path):
    frames, height, width = 11, 16, 24
    across = torch.arange(width)
    for number in range(frames):
        pixels = torch.stack([torch.full((width,), number), across, torch.full((width,), 7)], -1)  # [W, 3]
        image = np.ascontiguousarray(pixels.expand(height, width, 3).to(torch.uint8).numpy())
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    view = View(16, short_side=16, frames=3, stride=2, clips=2, crops=3)
    (views,) = read_one(EvalSet(FileSource([Sample(tmp_path, 0)], "videos"), view), 0).pixels
    assert views.shape == (6, 3, 3, 16, 16)
    shown = [(v[:, 0, 0, 0].tolist(), v[0, 1, 0].tolist()) for v in views]
    clips, crops = ([0, 2, 4], [5, 7, 9]), (0, 4, 8)
    assert sorted(shown) == sorted((clip, list(range(left, left + 16))) for clip in clips for left in crops)


def test_eval_set_takes_one_clip_from_the_middle():
    (views,) = read_one(EvalSet(Memory([numbered(12)]), View(16, short_side=16, frames=4, stride=2)), 0).pixels
    assert views.shape == (1, 4, 3, 16, 16)
    assert views[0, :, 0, 0, 0].tolist() == [2, 4, 6, 8]


def test_eval_set_plays_a_short_video_in_a_loop():
    (views,) = read_one(EvalSet(Memory([numbered(3)]), View(None, frames=4, stride=2, clips=2)), 0).pixels
    assert views[:, :, 0, 0, 0].tolist() == [[0, 2, 1, 0]] * 2


def test_eval_set_without_a_size_leaves_the_pixels():
    source = pictures(1)
    (views,) = read_one(EvalSet(source, View(None)), 0).pixels
    assert torch.equal(views, source.read(0, range)[None])


def test_eval_set_names_what_cannot_be_read():
    batch = read_one(EvalSet(pictures(2, bad=[1]), View(16, short_side=16)), 1)
    assert_empty(batch)
    assert batch.problems == ("sample 1 cannot be read: it is broken",)


def test_eval_set_leaves_out_what_cannot_be_read():
    samples = EvalSet(pictures(3, bad=[1]), View(16, short_side=16))
    batch = samples.__getitems__([0, 1, 2])
    assert same(batch, joined([read_one(samples, index) for index in range(3)]))
    assert batch.samples.tolist() == [0, 2]


# loader


def same_batches(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        a.problems == b.problems and all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("train", [True, False], ids=["train", "test"])
def test_loader_gives_the_same_batches_with_workers(train):
    source = pictures(9, bad=[4])
    samples = TrainSet(source, View(16), 0, bad_limit=2) if train else EvalSet(source, View(16, short_side=20))
    batches = TrainBatchSampler(9, 4, epochs=2, seed=0) if train else EvalBatches(9, 2)
    alone, together = (list(make_loader(samples, batches, workers)) for workers in (0, 2))
    assert len(alone) == (4 if train else 5)
    assert same_batches(alone, together)


def test_loader_from_the_middle_gives_the_rest():
    samples = TrainSet(SyntheticSource("parts", 0, 10), View(32), 0, bad_limit=0)
    whole = list(make_loader(samples, TrainBatchSampler(10, 4, epochs=2, seed=0), 0))
    assert same_batches(list(make_loader(samples, TrainBatchSampler(10, 4, epochs=2, seed=0, first=3), 0)), whole[3:])


def test_loader_of_unreadable_files_names_them(tmp_path):
    missing = [Sample(Path(tmp_path / f"{number}.png"), 0) for number in range(2)]
    (batch,) = make_loader(EvalSet(FileSource(missing, "images"), View(16)), EvalBatches(2, 2), 0)
    assert len(batch.pixels) == 0
    assert batch.problems == tuple(f"{path} cannot be read: No such file or directory" for path, _ in missing)


def test_batch_resized_later_is_the_batch_resized_at_once():
    source, view = SyntheticSource("parts", 0, 9), View(32)
    places = [EpochSample(2, sample) for sample in range(9)]
    at_once = TrainSet(source, view, 0, 0).__getitems__(places)
    later = TrainSet(source, view, 0, 0, resize_later=True).__getitems__(places)
    assert later.pixels.ndim == 1
    assert len(later.shapes) == 9
    moved = later.to("cpu")
    assert moved.shapes == ()
    assert torch.equal(moved.pixels, at_once.pixels)
    assert torch.equal(moved.labels, at_once.labels)


@pytest.mark.parametrize("number", [0, 4, 5])
def test_read_again_gives_the_same_batch(number):
    samples = TrainSet(SyntheticSource("parts", 0, 24), View(None, frames=1, stride=1), seed=0, bad_limit=0)
    batches = make_loader(samples, TrainBatchSampler(24, 8, epochs=2, seed=0), workers=0)
    expected, again = list(batches)[number], read_again(batches, number)
    assert torch.equal(again.pixels, expected.pixels)
    assert torch.equal(again.labels, expected.labels)
    assert torch.equal(again.samples, expected.samples)


# augmentation

EVERYTHING = Augmentation("rand", jitter=0.4, erase=0.5, mixup=0.2, cutmix=1.0, classes=40)


def augmented(source, how: Augmentation = EVERYTHING, seed: int = 0, **options) -> TrainSet:
    return TrainSet(source, View(16, frames=4), seed, bad_limit=2, augmentation=how, **options)


def moved(samples: TrainSet, workers: int = 0, **options) -> list[Batch]:
    batches = TrainBatchSampler(len(samples.source), 4, epochs=2, seed=0, **options)
    return [batch.to("cpu") for batch in make_loader(samples, batches, workers)]


def clips(count: int) -> Memory:
    source = torch.Generator().manual_seed(0)
    return Memory([torch.randint(256, (12, 3, 20, 24), dtype=torch.uint8, generator=source) for _ in range(count)])


def test_train_set_without_augmentation_gives_resized_and_flipped_crops():
    source, places = pictures(6), [EpochSample(1, sample) for sample in range(6)]
    batch = TrainSet(source, View(16), seed=4, bad_limit=0).__getitems__(places)
    for place, found in zip(places, batch.pixels, strict=True):
        part, flip = random_crop(source.read(place.sample, range), generator(4, *place))
        square = resize(part, 16, 16)
        assert torch.equal(found, square.flip(-1) if flip else square)
    assert (batch.pixels.dtype, batch.labels.tolist(), batch.mix) == (torch.uint8, list(range(10, 16)), None)


@pytest.mark.parametrize("source", [pictures(4), clips(4)], ids=["images", "clips"])
def test_train_set_augments_resized_crops_by_their_places(source):
    how = Augmentation("trivial", erase=1.0)
    places = [EpochSample(2, sample) for sample in range(4)]
    plain = augmented(source, Augmentation()).__getitems__(places).pixels
    found = augmented(source, how).__getitems__(places).pixels
    expected = [augment(pixels, how, 0, *place) for pixels, place in zip(plain, places, strict=True)]
    assert torch.equal(found, torch.stack(expected))
    assert not any(map(torch.equal, found, plain))


def test_train_set_augments_a_replacement_as_its_place():
    how, samples = Augmentation("rand", erase=1.0), pictures(3, bad=[1])
    samples.pixels[0] = samples.pixels[2]
    found = [read_one(augmented(samples, how), EpochSample(0, place)) for place in (1, 2)]
    assert [batch.samples.item() for batch in found] == [2, 2]
    assert not same(*found)


def test_train_set_augments_many_as_one_by_one():
    samples = augmented(pictures(5, bad=[1, 2]))
    places = [EpochSample(epoch, sample) for epoch in (0, 1) for sample in range(5)]
    assert torch.equal(
        samples.__getitems__(places).pixels, joined([read_one(samples, place) for place in places]).pixels
    )


def test_train_set_without_a_size_augments_what_is_there():
    source = SyntheticSource("parts", 0, 4)
    samples = TrainSet(source, View(None), 0, 0, augmentation=EVERYTHING)
    (pixels,), drawn = read_one(samples, EpochSample(0, 1)).pixels, source.read(1, range)
    assert pixels.shape == drawn.shape
    assert not torch.equal(pixels, drawn)


def test_batch_is_mixed_once_it_is_moved():
    places = [EpochSample(0, sample) for sample in range(4)]
    batch = augmented(pictures(30)).__getitems__(places)
    assert (batch.pixels.dtype, batch.labels.tolist()) == (torch.uint8, [10, 11, 12, 13])
    assert batch.mix is not None
    mixed = batch.to("cpu")
    pixels, shares = mix(batch.pixels, batch.labels, batch.mix)
    assert torch.equal(mixed.pixels, pixels)
    assert torch.equal(mixed.labels, shares)
    assert shares.shape == (4, 40)
    assert torch.allclose(shares.sum(1), torch.ones(4))
    again = mixed.to("cpu")
    assert (again.pixels is mixed.pixels, again.labels is mixed.labels) == (True, True)


@pytest.mark.parametrize("source", [pictures(9, bad=[4]), clips(9)], ids=["images", "clips"])
def test_loader_augments_alike_with_workers_from_the_middle_and_from_a_cache(source):
    whole = moved(augmented(source))
    assert len(whole) == 4
    assert same_batches(moved(augmented(source), workers=2), whole)
    assert same_batches(moved(augmented(source), first=1, workers=1), whole[1:])
    assert same_batches(moved(augmented(CachedSource(source, "cpu"))), whole)
    assert not same_batches(moved(augmented(source, seed=1)), whole)


def test_each_part_of_a_step_is_mixed_by_its_own_samples():
    samples = augmented(pictures(8), Augmentation(mixup=1.0, classes=20))
    parts = [
        batch
        for rank in (0, 1)
        for batch in make_loader(samples, TrainBatchSampler(8, 8, 1, 0, rank=rank, world=2, accumulate=2), 0)
    ]
    assert len({batch.mix.seed for batch in parts}) == 4
    for batch in parts:
        assert len(batch.labels) == 2
        assert set(batch.to("cpu").labels.nonzero()[:, 1].tolist()) == set(batch.labels.tolist())


def test_batch_mixed_and_resized_later_is_the_one_resized_at_once():
    how = Augmentation(mixup=0.4, cutmix=1.0, classes=20)
    at_once, later = (moved(augmented(pictures(8), how, resize_later=later)) for later in (False, True))
    assert same_batches(at_once, later)


def test_augmented_samples_are_resized_before():
    source, places = pictures(4), [EpochSample(0, 0), EpochSample(0, 1)]
    assert augmented(source, Augmentation(jitter=0.4), resize_later=True).__getitems__(places).shapes == ()
    assert len(augmented(source, Augmentation(mixup=0.4), resize_later=True).__getitems__(places).shapes) == 2


def test_batch_of_nothing_is_not_mixed():
    batch = augmented(pictures(3, bad=range(3))).__getitems__([EpochSample(0, 0), EpochSample(0, 1)])
    assert len(batch.to("cpu").samples) == 0
