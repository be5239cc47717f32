"""What is shown is what is trained on."""

import pytest
import torch

from cgnl.engine.config import load
from cgnl.engine.loop import Loop
from cgnl.engine.preview import load_batch
from tests.engine.conftest import AUGMENTED, SETTINGS, write_pictures


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("epoch", [1, 2])
def test_load_batch_gives_the_batch_of_the_training(run, monkeypatch, epoch, accumulate):
    seen, backward = {}, Loop.backward

    def record(self, batch, number, last_part):
        seen[number] = batch
        backward(self, batch, number, last_part)

    monkeypatch.setattr(Loop, "backward", record)
    run(seed=5, optim__accumulate=accumulate, **AUGMENTED)
    settings = SETTINGS | {name.replace("__", "."): value for name, value in AUGMENTED.items()}
    config = load("parts", settings | {"seed": 5, "optim.accumulate": accumulate, "data.cache": "gpu"})
    batch, dataset = load_batch(config, epoch)
    expected = seen[(epoch - 1) * 3 * accumulate]
    assert torch.equal(batch.pixels, expected.pixels)
    assert torch.equal(batch.labels, expected.labels)
    assert batch.labels.shape == (8 // accumulate, len(dataset.classes))


def test_load_batch_of_unreadable_files_names_one(tmp_path):
    for path in write_pictures(tmp_path / "pictures", count=2):
        path.write_bytes(b"")
    config = load(None, {"data.root": str(tmp_path / "pictures"), "model.name": "tiny", "model.block": None})
    with pytest.raises(ValueError, match=r"nothing of the batch can be read: .*png cannot be read"):
        load_batch(config)
