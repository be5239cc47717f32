import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from cgnl import CGNL, explain
from cgnl.engine.config import load
from cgnl.engine.predictions import Prediction
from cgnl.explain.inputs import whole_input
from cgnl.report.examples import (
    Figure,
    choose_examples,
    find_strongest,
    make_thumbnail,
    make_thumbnails,
    open_samples,
)


def opened(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def test_thumbnail_is_small_and_looks_like_the_sample():
    pixels = torch.zeros(3, 300, 600, dtype=torch.uint8)
    pixels[0, :, :300] = 200
    small = opened(make_thumbnail(pixels))
    assert small.shape == (56, 112, 3)
    assert abs(small[28, 20] - [200, 0, 0]).max() < 20
    assert abs(small[28, 100]).max() < 20


def test_thumbnail_of_a_small_picture_keeps_its_size():
    assert opened(make_thumbnail(torch.zeros(1, 3, 20, 30, dtype=torch.uint8))).shape == (20, 30, 3)


def test_thumbnails_of_a_clip_show_its_middle():
    source, _ = open_samples(load("actions"))
    assert source is not None
    middle = source.read(1, lambda count: [count // 2])
    (picture,) = make_thumbnails(source, [Prediction(1, "a", "b", 0.5, "actions 1")])
    found = opened(picture.webp)
    assert abs(found - middle[0].permute(1, 2, 0).numpy()).mean() < 25


def test_thumbnails_leave_out_samples_that_are_others_now():
    source, _ = open_samples(load("parts", {"data.samples": 8}))
    assert source is not None
    assert len(make_thumbnails(source, [Prediction(1, "a", "b", 0.5, "parts 1")])) == 1
    gone = [Prediction(1, "a", "b", 0.5, "parts 7"), Prediction(2, "a", "b", 0.5, "parts 2")]  # there are two
    assert make_thumbnails(source, gone) == []


def test_chosen_examples_are_the_surest_and_the_least_sure():
    predictions = [
        Prediction(i, "a", p, s)
        for i, (p, s) in enumerate([("a", 0.5), ("a", 0.9), ("b", 0.7), ("b", 0.8), ("a", 0.3)])
    ]
    assert [a.sample for a in choose_examples(predictions).values()] == [1, 3, 4]
    assert [a.sample for a in choose_examples(predictions[:1]).values()] == [0]
    assert choose_examples([]) == {}


@pytest.mark.parametrize(("ndim", "size", "grid"), [(2, (32, 48), (4, 6)), (3, (4, 16, 16), (4, 2, 2))])
def test_find_strongest_is_where_theta_is_largest(ndim, size, grid):
    kind = nn.Conv2d if ndim == 2 else nn.Conv3d
    stride = tuple(s // g for s, g in zip(size, grid, strict=True))
    model = nn.Sequential(kind(3, 16, stride, stride), CGNL(16, ndim=ndim, groups=2))
    pixels = torch.randint(0, 256, (3, *size) if ndim == 2 else (size[0], 3, *size[1:]), dtype=torch.uint8)
    seen = whole_input(pixels, () if ndim == 2 else range(3, 3 + size[0]))
    found = explain.attention(model, seen.network_input, seen.place(find_strongest(model, seen)))
    assert found.theta[(slice(None), *found.position)].abs().max() == found.theta.abs().max()


def test_picture_lies_in_the_page():
    assert Figure(b"\x00\x01", "two bytes").url == "data:image/webp;base64,AAE="
