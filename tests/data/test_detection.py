"""Pictures with objects as a detector gets them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cgnl.data.detection import (
    DetectionEvalSet,
    DetectionTrainSet,
    aspect_groups,
    decode,
    encode,
    horizontal_flip,
    make_target,
    read_scene,
)
from cgnl.data.index import Object, Scene, UnreadableError
from cgnl.data.loading import EpochSample, TrainBatchSampler, group_batches
from tests.engine.judge import api

POLYGON = [[2.0, 3.0, 11.0, 3.0, 11.0, 9.0, 6.0, 10.0], [14.0, 1.0, 18.0, 1.0, 18.0, 5.0]]


def thing(number: int = 1, box=(2.0, 3.0, 9.0, 7.0), shape=POLYGON, crowd=False, label=0) -> Object:
    return Object(number, label, box, shape, 40.0, crowd)


def scene(path: Path | str = "a.png", *objects: Object, height: int = 12, width: int = 20, number: int = 1) -> Scene:
    return Scene(Path(path), number, height, width, objects)


def scenes(folder: Path, count: int = 6) -> list[Scene]:
    """Noise, 12 high and 20 wide, with one object each."""
    draws, found = np.random.default_rng(0), []
    for number in range(count):
        path = folder / f"{number}.png"
        Image.fromarray(draws.integers(0, 255, (12, 20, 3), dtype=np.uint8)).save(path)
        found.append(scene(path, thing(number, label=number), number=number))
    return found


def by_pycocotools(shape) -> torch.Tensor:
    if isinstance(shape, dict) and isinstance(shape["counts"], str):
        return torch.from_numpy(api.decode(shape))
    encoded = api.frPyObjects(shape, 12, 20)
    return torch.from_numpy(api.decode(api.merge(encoded) if isinstance(shape, list) else encoded))


RUNS = {"size": [12, 20], "counts": [30, 40, 20, 50, 100]}
PACKED = {"size": [12, 20], "counts": api.frPyObjects(RUNS, 12, 20)["counts"].decode()}


@pytest.mark.parametrize("shape", [POLYGON, POLYGON[:1], RUNS, PACKED])
def test_decode_gives_the_mask_of_pycocotools(shape):
    mask = decode(thing(shape=shape), 12, 20)
    assert torch.equal(mask, by_pycocotools(shape))
    assert 0 < mask.sum() < mask.numel()


def test_encode_is_undone_by_decode():
    masks = torch.rand(4, 12, 20, generator=torch.Generator().manual_seed(0)) > 0.5
    encoded = encode(masks)
    assert [type(e["counts"]) for e in encoded] == [str] * 4
    assert torch.equal(torch.stack([by_pycocotools(e) for e in encoded]).bool(), masks)
    assert encode(masks[:0]) == []


def test_make_target_clips_boxes_at_the_edge_and_leaves_crowds_out():
    target = make_target(
        scene("a", thing(1, (-4.0, 3.0, 9.0, 70.0), label=2), thing(2, shape=RUNS, crowd=True), thing(3, shape=PACKED))
    )
    assert target["boxes"].tolist() == [[0, 3, 5, 12], [2, 3, 11, 10]]
    assert target["labels"].tolist() == [3, 1]
    assert torch.equal(target["masks"], torch.stack([by_pycocotools(POLYGON), by_pycocotools(PACKED)]))


@pytest.mark.parametrize(
    ("orientation", "size", "turned"), [(6, (12, 20), False), (6, (20, 12), True), (3, (12, 20), True)]
)
def test_an_image_is_turned_unless_it_was_annotated_as_stored(tmp_path, orientation, size, turned):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.random.default_rng(0).integers(0, 255, (12, 20, 3), dtype=np.uint8)
    Image.fromarray(stored).save(tmp_path / "a.png", exif=exif)
    shown = np.rot90(stored, {6: -1, 3: 2}[orientation]) if turned else stored
    found = read_scene(scene(tmp_path / "a.png", height=size[0], width=size[1]))
    assert np.array_equal(found.permute(1, 2, 0), shown)


def test_target_of_a_picture_without_objects_is_empty():
    target = make_target(scene("a"))
    assert (target["boxes"].shape, target["labels"].shape, target["masks"].shape) == ((0, 4), (0,), (0, 12, 20))


def test_horizontal_flip_moves_boxes_with_their_masks():
    target = make_target(scene("a", thing(1, shape=POLYGON[:1])))
    pixels, turned = horizontal_flip(torch.arange(12 * 20).view(1, 12, 20), target)
    assert pixels[0, 0, 0] == 19
    columns = turned["masks"][0].any(0).nonzero().flatten()
    left, right = turned["boxes"][0, [0, 2]].tolist()
    assert (left, right) == (9, 18)
    assert left <= columns.min() <= columns.max() < right
    again = horizontal_flip(pixels, turned)[1]
    assert torch.equal(again["boxes"], target["boxes"])
    assert torch.equal(again["masks"], target["masks"])


def test_read_scene_refuses_another_size_than_the_annotated_one(tmp_path):
    found = scenes(tmp_path, 1)[0]
    with pytest.raises(UnreadableError, match="it is 20 x 12 pixels, and annotated as 12 x 20"):
        read_scene(found._replace(height=20, width=12))
    found.path.unlink()
    with pytest.raises(UnreadableError, match=r"0.png cannot be read: No such file"):
        read_scene(found)


def test_batch_gives_back_pictures_and_targets(tmp_path):
    found = scenes(tmp_path)
    found[1] = found[1]._replace(objects=())
    batch = DetectionTrainSet(found, seed=0, flip=False, bad_limit=3).__getitems__(
        [EpochSample(0, n) for n in (2, 1, 0)]
    )
    assert batch.samples.tolist() == [2, 1, 0]
    for number, picture, target in zip((2, 1, 0), batch.images(), batch.targets(), strict=True):
        assert torch.equal(picture, read_scene(found[number]) / 255)
        expected = make_target(found[number])
        assert all(torch.equal(target[name], expected[name]) for name in ("boxes", "labels", "masks"))
    assert [t.dtype for t in batch.tensors()] == [torch.uint8, torch.float32, torch.int64, torch.uint8]


def test_train_set_mirrors_by_seed_epoch_and_sample_alone(tmp_path):
    found = scenes(tmp_path)

    def flips(seed: int, epoch: int, order: list[int]) -> dict[int, bool]:
        batch = DetectionTrainSet(found, seed, True, 3).__getitems__([EpochSample(epoch, n) for n in order])
        pairs = zip(order, batch.images(), strict=True)
        return {n: not torch.equal(picture, read_scene(found[n]) / 255) for n, picture in pairs}

    assert flips(0, 0, [0, 1, 2, 3, 4, 5]) == flips(0, 0, [5, 3, 1, 0, 2, 4])
    assert {tuple(flips(s, e, list(range(6))).values()) for s in (0, 1) for e in (0, 1)} != {(False,) * 6}
    assert flips(0, 0, list(range(6))) != flips(0, 1, list(range(6))) or flips(0, 1, [0]) != flips(0, 2, [0])


def test_unreadable_picture_is_replaced_in_training_and_left_out_in_a_test(tmp_path):
    found = scenes(tmp_path)
    found[2].path.write_bytes(b"")
    batch = DetectionTrainSet(found, 0, False, 3).__getitems__([EpochSample(0, 2), EpochSample(0, 5)])
    assert batch.samples.tolist() == [3, 5]
    assert batch.labels.tolist() == [4, 6]
    assert len(batch.problems) == 1
    assert "2.png cannot be read: it is empty" in batch.problems[0]
    test = DetectionEvalSet(found).__getitems__([1, 2, 3])
    assert (test.samples.tolist(), len(test.images()), test.counts) == ([1, 3], 2, (0, 0))
    nothing = DetectionEvalSet(found).__getitems__([2])
    assert (len(nothing.samples), nothing.images(), nothing.targets()) == (0, [], [])


def test_aspect_groups_follow_width_over_height():
    sizes = [(100, 100), (100, 133), (133, 100), (100, 500), (500, 100), (100, 101)]
    groups = aspect_groups([scene("a", height=h, width=w) for h, w in sizes])
    assert groups == [0, 1, -1, 3, -3, 0]


def test_group_batches_keeps_batches_of_one_group_and_loses_nothing():
    groups = [n % 3 for n in range(20)]
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0)).tolist()
    found = group_batches(order, groups, 4)
    assert sorted(found) == list(range(20))
    batches = [{groups[n] for n in found[i : i + 4]} for i in range(0, 20, 4)]
    assert [len(batch) for batch in batches] == [1, 1, 1, 2, 2]  # 7, 7 and 6 samples leave 3, 3 and 2
    assert group_batches(order, [0] * 20, 4) == order


@pytest.mark.parametrize("first", [1, 5, 7])
def test_batches_by_groups_go_on_where_they_stopped(first):
    groups = [n % 3 for n in range(14)]
    whole, rest = (list(TrainBatchSampler(14, 4, 3, seed=2, first=f, groups=groups)) for f in (0, first))
    assert rest == whole[first:]
    assert len(whole) == 9
    shares = [list(TrainBatchSampler(14, 4, 3, 2, rank=rank, world=2, groups=groups)) for rank in (0, 1)]
    assert [sorted(a + b) for a, b in zip(*shares, strict=True)] == [sorted(batch) for batch in whole]
