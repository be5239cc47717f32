"""Augmentation is torchvision's, follows from seed, epoch and sample alone, and leaves the global generators alone."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from cgnl.data.augment import FILL, MIX, SAMPLE, Augmentation, Mix, augment, mix, seeded
from cgnl.data.transforms import generator, normalize

COLOUR: Any = FILL  # torchvision's annotation knows only numbers
SMOOTH: dict[str, Any] = {"interpolation": v2.InterpolationMode.BILINEAR, "fill": FILL}
TRUTH = {
    "trivial": (Augmentation("trivial"), v2.TrivialAugmentWide(**SMOOTH)),
    "rand": (Augmentation("rand"), v2.RandAugment(**SMOOTH)),
    "jitter": (Augmentation(jitter=0.4), v2.ColorJitter(0.4, 0.4, 0.4)),
    "erase": (Augmentation(erase=0.7), v2.RandomErasing(0.7, value=COLOUR)),
}
ALL = Augmentation("rand", jitter=0.4, erase=0.5)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def shares(mixed: Tensor) -> list[float]:
    """The share of each sample itself in a batch of as many classes."""
    return mixed.diagonal().tolist()


# samples


@pytest.mark.parametrize("name", TRUTH)
def test_augment_is_torchvisions_under_the_same_seed(name):
    how, transform = TRUTH[name]
    pixels = noise(3, 40, 48)
    changed = 0
    for sample in range(12):
        torch.manual_seed(generator(3, SAMPLE, 2, sample).initial_seed())
        expected = transform(pixels)
        found = augment(pixels, how, 3, 2, sample)
        assert (found.dtype, found.shape) == (torch.uint8, pixels.shape)
        assert torch.equal(found, expected)
        changed += not torch.equal(found, pixels)
    assert changed > 5


def test_augment_applies_policy_jitter_and_erasing_in_this_order():
    pixels = noise(3, 32, 32)
    torch.manual_seed(generator(0, SAMPLE, 0, 0).initial_seed())
    expected = v2.RandomErasing(0.5, value=COLOUR)(v2.ColorJitter(0.4, 0.4, 0.4)(v2.RandAugment(**SMOOTH)(pixels)))
    assert torch.equal(augment(pixels, ALL, 0, 0, 0), expected)


def test_augment_jitter_changes_a_grey_image_by_at_most_its_strength():
    grey = torch.full((3, 8, 8), 100, dtype=torch.uint8)  # neither contrast nor saturation changes it
    values = [augment(grey, Augmentation(jitter=0.3), 0, 0, sample).unique() for sample in range(200)]
    assert all(len(value) == 1 for value in values)
    brightness = torch.cat(values)
    assert 67 <= brightness.min() < 80  # each of three steps rounds down
    assert 120 < brightness.max() <= 130


def test_augment_erases_a_box_of_the_colour_that_is_zero_for_the_network():
    assert normalize(torch.tensor(FILL).view(3, 1, 1)).abs().max() < 0.01
    pixels, colour = torch.zeros(3, 50, 60, dtype=torch.uint8), torch.tensor(FILL, dtype=torch.uint8)
    erased = 0
    for sample in range(300):
        found = augment(pixels, Augmentation(erase=0.25), 0, 0, sample)
        where = found.any(0)
        if where.any():
            erased += 1
            rows, columns = (where.any(axis).nonzero() for axis in (1, 0))
            box = found[:, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
            assert (box == colour.view(3, 1, 1)).all()
            assert where.sum() == box[0].numel()
            assert 0.015 < box[0].numel() / 3000 < 0.34
    assert 50 < erased < 100


def test_augment_follows_from_seed_epoch_and_sample():
    pixels = noise(3, 32, 32)
    found = [augment(pixels, ALL, *place) for place in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert all(not torch.equal(one, other) for i, one in enumerate(found) for other in found[:i])
    assert torch.equal(found[0], augment(pixels, ALL, 0, 0, 0))


@pytest.mark.parametrize("policy", ["trivial", "rand"])
def test_augment_changes_all_frames_of_a_clip_alike(policy):
    still = noise(1, 3, 24, 24).expand(5, 3, 24, 24)
    for sample in range(20):
        clip = augment(still, Augmentation(policy, 0.4, 1.0), 0, 0, sample)
        assert clip.shape == still.shape
        assert all(torch.equal(frame, clip[0]) for frame in clip)
        assert torch.equal(clip[0], augment(still[0], Augmentation(policy, 0.4, 1.0), 0, 0, sample))


def test_seeded_uses_one_thread_as_workers_do():
    pixels, threads = torch.rand(448, 448, generator=torch.Generator().manual_seed(1)), torch.get_num_threads()
    found = []
    try:
        for number in (1, 4):
            torch.set_num_threads(number)
            with seeded(0):
                assert torch.get_num_threads() == 1
                found.append(pixels.mean().item())
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1]


def states():
    return torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002


def test_seeded_neither_reads_nor_changes_the_global_generators():
    pixels, batch, labels = noise(3, 16, 16), noise(4, 3, 16, 16), torch.arange(4)
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        before = states()
        single = [augment(pixels, how, 0, 0, s) for how in (ALL, Augmentation("trivial")) for s in range(10)]
        mixed = [part for s in range(4) for part in mix(batch, labels, Mix(s, 0.2, 1.0, 4))]
        found.append(single + mixed)
        after = states()
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]
    assert all(map(torch.equal, *found))


def test_seeded_puts_all_back_after_an_error():
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    with pytest.raises(RuntimeError), seeded(5):
        torch.matmul(torch.rand(1), torch.rand(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


# batches


def test_mix_by_mixup_blends_pixels_and_labels_in_the_same_shares():
    pixels, labels = noise(4, 3, 6, 5), torch.tensor([2, 0, 1, 1])
    whole = torch.eye(3)[labels]
    for seed in range(10):
        torch.manual_seed(seed)
        torch.multinomial(torch.ones(1), 1)  # the choice of one
        share = float(torch.distributions.Beta(torch.tensor([0.4]), torch.tensor([0.4])).sample(()))
        mixed, found = mix(pixels, labels, Mix(seed, 0.4, 0.0, 3))
        before = [3, 0, 1, 2]
        assert torch.allclose(mixed, share * pixels + (1 - share) * pixels[before], atol=1e-3)
        assert torch.allclose(found, share * whole + (1 - share) * whole[before], atol=1e-6)
        assert (mixed.dtype, found.dtype) == (torch.float32, torch.float32)


def test_mix_by_cutmix_has_labels_in_the_shares_of_the_area():
    size = 4, 3, 20, 30
    pixels = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(size)
    areas = []
    for seed in range(40):
        mixed, labels = mix(pixels, torch.arange(4), Mix(seed, 0.0, 1.0, 4))
        for number, sample in enumerate(mixed):
            pasted = sample != number
            assert (sample[pasted] == (number - 1) % 4).all()
            area = pasted[0].sum().item() / 600
            expected = torch.zeros(4)
            expected[number], expected[number - 1] = 1 - area, area
            assert torch.allclose(labels[number], expected, atol=1e-6)
            areas.append(area)
    assert 0.2 < sum(areas) / len(areas) < 0.5


def test_mix_shares_are_of_the_beta_distribution():
    pixels, labels = torch.zeros(2, 3, 1, 1, dtype=torch.uint8), torch.arange(2)
    drawn = torch.tensor([shares(mix(pixels, labels, Mix(seed, 0.2, 0.0, 2))[1])[0] for seed in range(1500)])
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.04)
    assert drawn.var().item() == pytest.approx(1 / (4 * (2 * 0.2 + 1)), abs=0.012)


def test_mix_by_either_is_a_fair_coin():
    pixels = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 8, 8)
    blended = 0
    for seed in range(400):
        mixed, _ = mix(pixels, torch.arange(2), Mix(seed, 1.0, 1.0, 2))
        blended += not ((mixed == 0) | (mixed == 255)).all()
    assert 160 < blended < 240


def test_mix_of_clips_cuts_all_frames_alike():
    still = noise(3, 1, 3, 16, 16).expand(3, 4, 3, 16, 16)
    for how in (Mix(0, 0.0, 1.0, 3), Mix(1, 1.0, 0.0, 3)):
        mixed, labels = mix(still, torch.arange(3), how)
        assert mixed.shape == still.shape
        images, same_labels = mix(still[:, 0], torch.arange(3), how)
        assert all(torch.equal(mixed[:, frame], images) for frame in range(4))
        assert torch.equal(labels, same_labels)


def test_draw_mix_follows_from_seed_epoch_and_samples():
    how = Augmentation(mixup=0.2, cutmix=1.0, classes=7)
    places = [(0, 0, (1, 2)), (1, 0, (1, 2)), (0, 1, (1, 2)), (0, 0, (2, 1)), (0, 0, (1, 3))]
    drawn = [how.draw_mix(*place) for place in places]
    assert len({one.seed for one in drawn if one}) == 5
    assert drawn[0] == Mix(generator(0, MIX, 0, 1, 2).initial_seed(), 0.2, 1.0, 7)
    assert ALL.draw_mix(0, 0, (1, 2)) is None


@pytest.mark.parametrize(
    ("how", "changes"),
    [
        (Augmentation(), False),
        (Augmentation(mixup=1.0, cutmix=1.0), False),
        *((how, True) for how, _ in TRUTH.values()),
    ],
    ids=str,
)
def test_changes_samples_where_anything_is_done_to_single_ones(how, changes):
    assert how.changes_samples is changes
