"""Embedded datasets as files, in class folders, as people have their own."""

from pathlib import Path

from torch import Tensor

from ..extras import need
from .embedded import EMBEDDED


def draw(dataset: str, root: Path | str, count: int, seed: int = 0) -> tuple[str, ...]:
    """Write samples as PNG files, or folders of them for clips, and return the classes. The folder must be new."""
    root = Path(root)
    if count < 1:
        raise ValueError(f"count = {count} must be at least 1")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ValueError(f"{root} is there already")
    classes, sample = EMBEDDED[dataset]
    for index in range(count):
        drawing = sample(seed, index)
        path = root / classes[drawing.label] / f"{index:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if drawing.pixels.ndim == 3:
            _write(drawing.pixels, path.with_suffix(".png"))
            continue
        path.mkdir()
        for number, frame in enumerate(drawing.pixels):
            _write(frame, path / f"{number:03}.png")
    return classes


def _write(pixels: Tensor, path: Path) -> None:
    need("PIL.Image", "data").fromarray(pixels.permute(1, 2, 0).numpy()).save(path)
