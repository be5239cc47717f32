"""Batches that are read once more."""

import pytest
import torch

from cgnl.data.loading import TrainBatchSampler, TrainSet, View, make_loader
from cgnl.data.prefetch import read_again
from cgnl.data.sources import SyntheticSource


@pytest.mark.parametrize("number", [0, 4, 5])
def test_read_again_gives_the_same_batch(number):
    samples = TrainSet(SyntheticSource("parts", 0, 24), View(None, frames=1, stride=1), seed=0, bad_limit=0)
    batches = make_loader(samples, TrainBatchSampler(24, 8, epochs=2, seed=0), workers=0)
    expected, again = list(batches)[number], read_again(batches, number)
    assert torch.equal(again.pixels, expected.pixels)
    assert torch.equal(again.labels, expected.labels)
    assert torch.equal(again.samples, expected.samples)
