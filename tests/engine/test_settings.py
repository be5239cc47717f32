"""The settings there are: their names, and those that are known without torch."""

import inspect
from typing import get_args

import pytest

from cgnl import models
from cgnl.engine import settings
from cgnl.engine.settings import Model, setting_names
from cgnl.engine.values import choices
from cgnl.surgery import BLOCKS


def test_keys_are_dotted_names():
    assert {"seed", "name", "optim.lr", "data.root", "model.options"} <= set(setting_names())
    assert not {"data", "model", "optim"} & set(setting_names())
    assert len(setting_names()) == len(set(setting_names()))


def test_keys_of_a_type():
    switches = {"channels_last", "compile", "sync_batchnorm", "deterministic", "tensorboard"}
    assert set(setting_names(bool)) == switches | {"data.flip", "optim.nesterov", "optim.decay_norms"}


def test_networks_are_those_of_models():
    assert set(settings.NETWORKS) == {name for name in models.NETWORKS if not name.startswith("tiny")}


@pytest.mark.parametrize("block", BLOCKS)
def test_options_of_blocks_are_their_arguments(block):
    arguments = set(inspect.signature(BLOCKS[block]).parameters)
    assert set(settings.BLOCK_OPTIONS[block]) - {"after"} == arguments - {"channels", "ndim", "device", "dtype"}
    assert set(get_args(Model.__annotations__["block"])[0].__args__) == set(settings.BLOCK_OPTIONS)


@pytest.mark.parametrize(
    ("block", "option", "value"),
    [
        (block, option, value)
        for block, options in settings.BLOCK_OPTIONS.items()
        for option, kind in options.items()
        for value in choices(kind)
    ],
)
def test_choices_of_options_are_taken_by_the_block(block, option, value):
    kernel = {"kernel": "dot"} if value == "energy" else {}
    module = BLOCKS[block](16, **kernel, **{option: value}, device="meta")
    assert getattr(module, option, value) is not None
