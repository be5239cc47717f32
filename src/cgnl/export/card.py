"""The card of an exported network: what it is, what input it takes, and what its outputs mean."""

import dataclasses
from typing import Any

from .. import __version__
from ..data.transforms import MEAN, STD
from ..engine.checkpoint import Trained
from ..engine.config import to_dict
from ..engine.datasets import dataset_name, short_side_in_test

LARGEST_CHECK = 448, 32
"""Largest height and number of frames that an export is checked with: more would take minutes."""


def make_card(trained: Trained) -> dict[str, Any]:
    """Everything that is needed to use the network, without where its data was."""
    data = dataclasses.replace(
        trained.config.data,
        dataset=dataset_name(trained.config.data),
        **dict.fromkeys(("root", "lists", "annotations", "images", "test_annotations", "test_images")),
    )
    model = dataclasses.replace(trained.config.model, weights=None)
    card = {
        "library": f"cgnl {__version__}",
        "kind": trained.kind,
        "classes": list(trained.classes),
        "ids": list(trained.ids),
        "preprocessing": preprocessing(trained),
        "settings": {"data": to_dict(data), "model": to_dict(model)},
    }
    return {name: value for name, value in card.items() if value != []}


def preprocessing(trained: Trained) -> dict[str, Any]:
    """How an image or clip becomes the network's input."""
    data, task = trained.config.data, trained.task
    if not task.classifies:
        size = {"short_side": short_side_in_test(data), "long_side": data.long_side}
    else:
        view = task.view_in_test(data)
        size = {"short_side": view.short_side, "crop": view.size} if view.size else {}
        if task.has_frames:
            size |= {"frames": view.frames, "stride": view.stride, "clips": view.clips, "crops": view.crops}
    axes = "batch, 3, frames, height, width" if task.has_frames else "batch, 3, height, width"
    return {
        "input": f"RGB from 0 to 1, less mean, by std: [{axes}]",
        "mean": data.mean or MEAN,
        "std": data.std or STD,
        **size,
    }


def get_input_size(trained: Trained) -> tuple[int, ...]:
    """[frames,] height and width that the network was made for, or () if a check would take too long."""
    task, (height, frames) = trained.task, LARGEST_CHECK
    view = task.view_in_test(trained.config.data, full=False)
    too_long = task.has_frames and view.frames > frames
    if not task.classifies or view.size is None or view.size > height or too_long:
        return ()
    return (*([view.frames] if task.has_frames else []), view.size, view.size)
