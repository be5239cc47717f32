"""Networks small enough to be trained in a test, and runs that leave nothing behind in the process."""

import csv
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cgnl.models import NETWORKS


class Tiny(nn.Module):
    """[B, 3, H, W] -> [B, K]."""

    def __init__(self, num_classes: int, dropout: float, norm: Callable[[int], nn.Module] = nn.BatchNorm2d):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 8, stride=8)
        self.norm1 = norm(8)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(8 * 16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv1(x)).relu()
        return self.fc(self.dropout(nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)))


class TinyVideo(nn.Module):
    """[B, 3, T, H, W] -> [B, K]."""

    def __init__(self, num_classes: int, dropout: float):
        super().__init__()
        self.conv1 = nn.Conv3d(3, 8, (1, 8, 8), stride=(1, 8, 8))
        self.norm1 = nn.BatchNorm3d(8)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(8 * 8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv1(x)).relu()
        return self.fc(self.dropout(nn.functional.adaptive_avg_pool3d(x, (2, 2, 2)).flatten(1)))


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


class Residual(nn.Module):
    """[B, C, H, W] -> the same."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), group_norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.conv(x)).relu()


def tiny_stage(num_classes: int, dropout: float) -> nn.Module:
    """The tiny network with a stage of two residual blocks, and normed by groups."""
    network = Tiny(num_classes, dropout, group_norm)
    network.norm1 = nn.Sequential(group_norm(8), nn.Sequential(Residual(8), Residual(8)))
    return network


TINY: dict[str, Callable[[int, float], nn.Module]] = {
    "tiny": Tiny,
    "tiny_group": lambda num_classes, dropout: Tiny(num_classes, dropout, group_norm),
    "tiny_stage": tiny_stage,
    "tiny_video": TinyVideo,
}


def register() -> None:
    """Make the small networks known, in a process of its own."""
    NETWORKS.update(TINY)


SETTINGS: dict[str, Any] = {
    "model.name": "tiny",
    "model.block": None,
    "data.samples": 24,
    "data.workers": 0,
    "optim.batch_size": 8,
    "optim.epochs": 2,
    "optim.warmup_epochs": 0,
    "optim.lr": 0.8,
    "accelerator": "cpu",
    "deterministic": True,
    "name": "run",
}
"""A run of two epochs of three steps."""
AUGMENTED: dict[str, Any] = {
    "data__augment": "rand",
    "data__jitter": 0.4,
    "data__erase": 0.5,
    "data__mixup": 0.2,
    "data__cutmix": 1.0,
}
"""Every augmentation."""


@pytest.fixture(autouse=True)
def _networks(monkeypatch):
    for name, function in TINY.items():
        monkeypatch.setitem(NETWORKS, name, function)


@pytest.fixture(autouse=True)
def _reports(monkeypatch):
    """Only the tests of reports wait for them."""
    monkeypatch.setattr("cgnl.report.write.try_to_report", lambda _: None)


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """What a run changes in its process is put back."""
    environment, log = dict(os.environ), logging.getLogger("cgnl")
    before = list(log.handlers), log.propagate, log.level
    os.environ.pop("CGNL_RUN_FOLDER", None)
    yield
    for handler in log.handlers:
        if handler not in before[0]:
            handler.close()
    log.handlers, log.propagate = before[0], before[1]
    log.setLevel(before[2])
    if torch.are_deterministic_algorithms_enabled():  # to say no would import a compiler
        torch.use_deterministic_algorithms(False)
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Forks have no other threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(tmp_path):
    """Train the small network; settings by their names with two lower lines for a dot."""
    from cgnl.engine.config import load
    from cgnl.engine.train import Result, train
    from cgnl.report import write

    def call(
        resume: bool = False, recipe: str | None = "parts", runs: Path = tmp_path, silent: bool = False, **settings: Any
    ) -> Result:
        os.environ.pop("CGNL_RUN_FOLDER", None)
        given = {name.replace("__", "."): value for name, value in settings.items()}
        config = load(recipe, {**SETTINGS, "runs": str(runs), **given})
        return train(config, resume, silent=silent, on_end=lambda folder: write.try_to_report(folder))

    return call


@pytest.fixture
def cgnl(capsys):
    """The command's exit status, and what it printed to stdout and stderr."""
    from cgnl.cli import main

    def call(*arguments: object) -> tuple[int, str, str]:
        os.environ.pop("CGNL_RUN_FOLDER", None)
        capsys.readouterr()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            status = int(stop.code or 0)
        return status, *capsys.readouterr()

    return call


def options(**settings: Any) -> list[str]:
    """The settings of a small run as they are given to the command."""
    given = SETTINGS | {name.replace("__", "."): value for name, value in settings.items()}
    words = {True: "true", False: "false", None: "null"}
    return [f"{n}={words[v] if v is None or isinstance(v, bool) else v}" for n, v in given.items()]


class Death(BaseException):
    """The end of a process."""


def dying(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the process end in a training batch."""
    from cgnl.engine.loop import Loop

    backward = Loop.backward

    def call(self: Loop, batch: Any, batch_number: int, last_part: bool) -> None:
        if batch_number == number:
            raise Death
        backward(self, batch, batch_number, last_part)

    monkeypatch.setattr(Loop, "backward", call)


def refused(call, *arguments) -> str:
    """The sentence with which something is refused."""
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        call(*arguments)
    message = str(raised.value)
    assert "\n" not in message
    return message


def fake_accuracies(monkeypatch: pytest.MonkeyPatch, accuracies: Iterable[float]) -> None:
    """Let the tests of a run have these results, one after the other."""
    from cgnl.engine.tasks import Images

    original, left = Images.end_test, iter(accuracies)

    def end_test(self: Images) -> dict[str, float]:
        original(self)
        self.results["test_top1"] = next(left)
        return self.results

    monkeypatch.setattr(Images, "end_test", end_test)


def table(folder: Path) -> list[dict[str, str]]:
    """``metrics.csv`` without what depends on the clock."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{n: v for n, v in row.items() if n not in ("seconds", "samples_per_second")} for row in rows]


def weights(path: Path) -> dict[str, Tensor]:
    """The network's weights in a checkpoint."""
    state = torch.load(path, weights_only=True)["state_dict"]
    return {name: value for name, value in state.items() if name.startswith("network.")}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two sets of weights are the same to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def normalized(pixels: Tensor) -> Tensor:
    """uint8 [.., 3, H, W] as a network wants it."""
    return (pixels.float() / 255 - MEAN[:, None, None]) / STD[:, None, None]


def write_pictures(
    root: Path, classes: str = "abc", count: int = 8, size: tuple[int, int] = (40, 32), suffix: str = ".png"
) -> list[Path]:
    """A folder of class folders of noise whose colour tells the class; paths in order."""
    from PIL import Image

    draws, paths = torch.Generator().manual_seed(0), []
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = torch.randint(0, 120, (*size, 3), generator=draws, dtype=torch.uint8)
            pixels[..., label % 3] += 100
            paths.append(root / name / f"{number}{suffix}")
            Image.fromarray(pixels.numpy()).save(paths[-1])
    return paths


def read_picture(path: Path) -> Tensor:
    """uint8 [3, H, W]."""
    import numpy as np
    from PIL import Image

    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


PICTURES = {"data__size": 32, "data__test_short_side": 32}
"""Settings for folders of pictures whose short side is 32, which a test leaves as they are."""
VIDEOS = {
    "model__name": "tiny_video",
    "data__size": 16,
    "data__test_short_side": 16,
    "data__frames": 4,
    "data__stride": 1,
    "data__test_clips": 2,
    "data__test_crops": 3,
    "optim__batch_size": 4,
}
"""Settings for videos of 16 x 24 pixels, and of a few frames."""


def write_checkpoint(
    path: Path,
    name: str,
    block: str | None,
    classes: list[str],
    fill: Callable[[nn.Module], object],
    head: str = "average",
    **options: Any,
) -> Path:
    """A checkpoint of a small network with a block behind its stem, and with the weights that ``fill`` gives it."""
    from cgnl.engine.checkpoint import write
    from cgnl.engine.config import load, to_dict
    from cgnl.engine.network import build_network

    video = name.endswith("_video")
    settings = {n.replace("__", "."): v for n, v in (VIDEOS if video else PICTURES).items()}
    settings |= {"data.dataset": "folder", "data.root": "gone", "model.name": name, "model.block": block}
    if head != "average":
        settings |= {"model.head": head, "model.reduced": 8}
    if block:
        settings["model.options"] = {"after": ["conv1"], **({} if block == "nl" else {"groups": 2}), **options}
    config = load(None, settings)
    torch.manual_seed(3)
    network = build_network(config.model, len(classes), load=False)
    fill(network)
    weights = {f"network.{n}": v for n, v in network.state_dict().items()}
    kind = "videos" if video else "images"
    about = {"config": to_dict(config), "classes": classes, "kind": kind, "results": {}, "problems": []}
    path.parent.mkdir(exist_ok=True)
    write({"state_dict": weights, "cgnl": about}, path)
    return path


def write_frame_folders(
    root: Path, classes: str = "abc", count: int = 4, frames: int = 6, contrast: int = 100
) -> list[Path]:
    """A folder of class folders of videos that are folders of frames, 16 high and 24 wide; paths in order."""
    folders = []
    for name in classes:
        for number in range(count):
            folders.append(root / name / f"video{number}")
            folders[-1].mkdir(parents=True)
    draws = torch.Generator().manual_seed(1)
    from PIL import Image

    for folder in folders:
        for frame in range(frames):
            pixels = torch.randint(0, 150, (16, 24, 3), generator=draws, dtype=torch.uint8)
            pixels[:, :, classes.index(folder.parent.name) % 3] += contrast
            Image.fromarray(pixels.numpy()).save(folder / f"{frame}.png")
    return folders


def views_by_hand(folder: Path) -> Tensor:
    """The six views of a video of six frames under ``VIDEOS``, uint8 [6, 4, 3, 16, 16]: clips from 0 and 2 on, left,
    middle and right."""
    frames = torch.stack([read_picture(folder / f"{number}.png") for number in range(6)])
    return torch.stack([frames[s : s + 4, ..., x : x + 16] for x in (0, 4, 8) for s in (0, 2)])


def video_input(views: Tensor) -> Tensor:
    """uint8 [V, T, 3, H, W] -> [V, 3, T, H, W] as a network wants it."""
    return normalized(views).transpose(1, 2)


def write_video(path: Path, frames: int, width: int = 24, height: int = 16) -> Path:
    """A small video file."""
    import av
    import numpy as np

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            picture = np.full((height, width, 3), 20 * number % 256, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return path
