"""Augmentation beyond crops and flips, by torchvision's transforms, for images and clips alike.

Samples are augmented one by one, a clip as one; mixup and CutMix mix the samples of a batch and their labels. Every
random number follows from (seed, epoch, sample), or from (seed, epoch, samples of the batch).
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..extras import need
from .transforms import MEAN, generator

FILL = [round(255 * mean) for mean in MEAN]
"""The colour of erased boxes, and of what a rotation leaves empty: zero for the network."""
SAMPLE, MIX = -1, -2
"""Stand for the epoch in a seed, so that augmentation does not draw the same numbers as crops."""


class Mix(NamedTuple):
    """How to mix a batch."""

    seed: int
    mixup: float
    cutmix: float
    """Their alphas, 0 for none."""
    classes: int


@dataclass(frozen=True)
class Augmentation:
    """What happens to training samples besides crops and flips; nothing by default."""

    policy: Literal["none", "trivial", "rand"] = "none"
    jitter: float = 0.0
    """Largest change of brightness, contrast and saturation, as a share."""
    erase: float = 0.0
    """Probability of an erased box."""
    mixup: float = 0.0
    cutmix: float = 0.0
    classes: int = 0

    @property
    def changes_samples(self) -> bool:
        """Whether samples are augmented one by one."""
        return self.policy != "none" or self.jitter > 0 or self.erase > 0

    def draw_mix(self, seed: int, epoch: int, samples: Sequence[int]) -> Mix | None:
        """How to mix a batch of these samples, if at all."""
        if not (self.mixup or self.cutmix):
            return None
        return Mix(generator(seed, MIX, epoch, *samples).initial_seed(), self.mixup, self.cutmix, self.classes)


def augment(pixels: Tensor, how: Augmentation, seed: int, epoch: int, sample: int) -> Tensor:
    """Augment an image [3, H, W] or all frames of a clip [T, 3, H, W] alike, uint8."""
    transform = sample_transform(how.policy, how.jitter, how.erase)
    with seeded(generator(seed, SAMPLE, epoch, sample).initial_seed()):
        return transform(pixels)


def mix(pixels: Tensor, labels: Tensor, how: Mix) -> tuple[Tensor, Tensor]:
    """Mix each sample of a batch with the one before it, by mixup or CutMix.

    uint8 [B, .., H, W] and classes [B] -> float32 [B, .., H, W], from 0 to 255, and shares of classes [B, K].
    """
    transform = batch_transform(how.mixup, how.cutmix, how.classes)
    with seeded(how.seed):
        mixed, shares = transform(pixels.float().flatten(1, -3), labels)
    return mixed.view(pixels.shape), shares


@functools.cache
def sample_transform(policy: str, jitter: float, erase: float) -> Any:
    """The transforms of a sample."""
    v2 = need("torchvision.transforms.v2", "data")
    smooth = {"interpolation": v2.InterpolationMode.BILINEAR, "fill": FILL}
    policies = {"trivial": v2.TrivialAugmentWide, "rand": v2.RandAugment}
    steps = [policies[policy](**smooth)] if policy != "none" else []
    steps += [v2.ColorJitter(jitter, jitter, jitter)] if jitter else []
    steps += [v2.RandomErasing(erase, value=FILL)] if erase else []
    return v2.Compose(steps)


@functools.cache
def batch_transform(mixup: float, cutmix: float, classes: int) -> Any:
    """Mixup or CutMix, or one of the two by a fair coin."""
    v2 = need("torchvision.transforms.v2", "data")
    kinds = ((v2.MixUp, mixup), (v2.CutMix, cutmix))
    return v2.RandomChoice([kind(alpha=float(alpha), num_classes=classes) for kind, alpha in kinds if alpha])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Have torchvision draw from a seed, and leave the global generator, its only source, as it was.

    On one thread, as in the workers of a loader: the last bit of a mean depends on their number.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed GPUs
            yield
    finally:
        torch.set_num_threads(threads)
