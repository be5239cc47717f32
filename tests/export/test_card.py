"""What an exported file says about its network."""

import json

import pytest

from cgnl.engine.checkpoint import open_trained
from cgnl.export import card
from cgnl.export.card import get_input_size, make_card
from tests.export.conftest import CLASSES


def test_card_names_the_input_and_the_classes_but_no_folder(checkpoint):
    found = make_card(open_trained(checkpoint()))
    assert (found["kind"], found["classes"]) == ("images", CLASSES)
    assert found["preprocessing"]["input"].endswith("[batch, 3, height, width]")
    assert found["preprocessing"]["crop"] == 32
    assert "ids" not in found  # those of COCO
    assert "gone" not in json.dumps(found)  # the folder of the data


def test_card_of_clips_names_frames(checkpoint):
    found = make_card(open_trained(checkpoint("small_video", "nl")))
    assert found["preprocessing"]["input"].endswith("[batch, 3, frames, height, width]")
    assert {"frames", "stride", "clips", "crops"} < found["preprocessing"].keys()


@pytest.mark.parametrize(("name", "size"), [("small", (32, 32)), ("small_video", (4, 16, 16))])
def test_own_size_is_that_of_a_test_view_up_to_a_limit(checkpoint, monkeypatch, name, size):
    trained = open_trained(checkpoint(name))
    assert get_input_size(trained) == size
    monkeypatch.setattr(card, "LARGEST_CHECK", (size[-1] - 1, 32))
    assert get_input_size(trained) == ()
