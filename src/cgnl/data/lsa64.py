"""LSA64: clips of 64 signs of Argentinian Sign Language, by ten signers."""

import re
from collections.abc import Sequence
from pathlib import Path

from ..spelling import counted
from .index import Index, Sample

SIGNS = (
    *("Opaque", "Red", "Green", "Yellow", "Bright", "Light-blue", "Colors", "Pink", "Women", "Enemy", "Son", "Man"),
    *("Away", "Drawer", "Born", "Learn", "Call", "Skimmer", "Bitter", "Sweet milk", "Milk", "Water", "Food"),
    *("Argentina", "Uruguay", "Country", "Last name", "Where", "Mock", "Birthday", "Breakfast", "Photo", "Hungry"),
    *("Map", "Coin", "Music", "Ship", "None", "Name", "Patience", "Perfume", "Deaf", "Trap", "Rice", "Barbecue"),
    *("Candy", "Chewing-gum", "Spaghetti", "Yogurt", "Accept", "Thanks", "Shut down", "Appear", "To land", "Catch"),
    *("Help", "Dance", "Bathe", "Buy", "Copy", "Run", "Realize", "Give", "Find"),
)
"""The official names, from class 001 on."""
CLIP = re.compile(r"([0-9]{3})_([0-9]{3})_[0-9]{3}")
"""Name of a clip: class, signer, repetition."""


def lsa64(root: Path | str, test_signers: Sequence[int] = (9, 10)) -> Index:
    """Files called ``001_001_001.mp4`` (class, signer, repetition), in ``root`` or at most two folders below it.

    Args:
        root: the folder.
        test_signers: signers whose clips are the test split. The others' are for training.
    """
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder")
    if not test_signers:
        raise ValueError("test_signers is empty: name the signers to test on, such as 9 and 10")
    clips, others, copies = _clips(root)
    if not clips:
        reason = f": {others[0].name} is not called like one" if others else ""
        raise ValueError(f"{root} is not LSA64: it has no clip such as 001_001_001.mp4{reason}")
    numbers = sorted({number for number, _ in clips.values()})
    labels = {number: label for label, number in enumerate(numbers)}
    splits: dict[str, list[Sample]] = {"train": [], "test": []}
    for path, (number, signer) in clips.items():
        splits["test" if signer in test_signers else "train"].append(Sample(path, labels[number]))
    absent = sorted(set(test_signers) - {signer for _, signer in clips.values()})
    problems = [f"there is no clip of signer {signer}, who is to be tested on" for signer in absent]
    if others:
        what = counted(len(others), "video")
        problems.append(f"{what} not called class_signer_repetition, such as {others[0]}: left out")
    if copies:
        problems.append(f"{counted(len(copies), 'clip')} there twice, such as {copies[0]}: one of them is left out")
    classes = tuple(f"{number:03} {SIGNS[number - 1]}" for number in numbers)
    return Index(classes, {name: tuple(rows) for name, rows in splits.items()}, "videos", tuple(problems))


def _clips(root: Path) -> tuple[dict[Path, tuple[int, int]], list[Path], list[Path]]:
    """Clip -> class and signer, by name; videos called otherwise; and clips whose name another has already."""
    from .video import is_video_file

    found = [path for depth in ("*", "*/*", "*/*/*") for path in root.glob(depth) if is_video_file(path)]
    shown = (path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts))
    clips: dict[Path, tuple[int, int]] = {}
    others: list[Path] = []
    copies: list[Path] = []
    seen: set[str] = set()
    for path in sorted(shown, key=lambda path: (path.stem, path)):
        match = CLIP.fullmatch(path.stem)
        if match is None or not 1 <= int(match[1]) <= len(SIGNS):
            others.append(path)
        elif path.stem in seen:
            copies.append(path)
        else:
            seen.add(path.stem)
            clips[path] = int(match[1]), int(match[2])
    return clips, others, copies
