"""Embedded datasets as files, in class folders, as people have their own."""

from pathlib import Path

from .images import to_image
from .synthetic import SYNTHETIC


def draw(dataset: str, root: Path | str, count: int, seed: int = 0) -> tuple[str, ...]:
    """Write samples as PNG files, or folders of them for clips, and return the classes. The folder must be new."""
    root = Path(root)
    if count < 1:
        raise ValueError(f"count = {count} must be at least 1")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ValueError(f"{root} is there already")
    classes, sample = SYNTHETIC[dataset]
    for index in range(count):
        drawing = sample(seed, index)
        path = root / classes[drawing.label] / f"{index:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if drawing.pixels.ndim == 3:
            to_image(drawing.pixels).save(path.with_suffix(".png"))
            continue
        path.mkdir()
        for number, frame in enumerate(drawing.pixels):
            to_image(frame).save(path / f"{number:03}.png")
    return classes
