"""``cgnl data``."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from ..atomic_io import make_folder, whole_file
from ..data.index import DatasetIndex, require_outside
from ..data.readers import READERS
from ..engine.checks import check_files
from ..engine.config import default_recipe, load_typed
from ..engine.settings import SYNTHETIC
from ..text import counted, nearest, say

Action = Literal["check", "show", "draw", "shrink", "pack", "convert"]
WORDS = {"check": "FOLDER", "show": "ROOT", "draw": "FOLDER", "shrink": "ROOT OUT", "pack": "ROOT OUT"}
WORDS |= {"convert": "cityscapes ROOT OUT"}
"""Action -> the words that follow it."""
IMAGES = (".png", ".jpg", ".jpeg", ".webp")
IMPLIED = {"labels": "csv", "shard_cache": "shards"}
"""Option -> the layout that it is for; others are for COCO."""


def data(
    action: Action,
    *words: str,
    dataset: str | None = None,
    labels: str | None = None,
    annotations: str | None = None,
    images: str | None = None,
    test_annotations: str | None = None,
    test_images: str | None = None,
    min_frames: int = 64,
    count: int = 100,
    seed: int | None = None,
    short_side: int = 128,
    frames: int = 32,
    frame_folders: bool = False,
    workers: int | None = None,
    shard_mib: float = 64.0,
    shard_cache: str | None = None,
    recipe: str | None = None,
    epoch: Annotated[int, ">= 1"] = 1,
    output: str = "batch.png",
    **settings: Any,
) -> None:
    """Check a dataset, show a training batch, draw a synthetic dataset, shrink clips, pack into shards, or convert.

    Args:
        action: check, show, draw, shrink, pack or convert.
        words: check, draw: FOLDER. show: ROOT, a dataset, or the name of a synthetic one. shrink, pack: ROOT OUT, the
            dataset and its copy. convert: cityscapes ROOT OUT, to COCO's format.
        dataset: check, show, pack: the layout: folder (the default), images, clips, csv, cub, pets, imagenet, ucf101,
            kinetics400, mini_kinetics200, lsa64, shards, hf or, to check, coco. draw: parts (the default), relation or
            actions.
        labels: check, pack: CSV file with the columns file, label and perhaps split, relative to the folder.
        annotations: check: annotation file in COCO's format, relative to the folder. If not given: COCO's own names.
        images: check: folder of its images, relative to the folder.
        test_annotations: check: annotation file to test on.
        test_images: check: folder of its images. If not given: images.
        min_frames: check: report videos with fewer frames as too short.
        count: draw: number of samples.
        seed: show: seed of the training. draw: seed of the samples. If not given: 0, or that of the recipe.
        short_side: shrink: pixels of the shorter side; smaller frames keep their size.
        frames: shrink: frames to keep of each clip, spread evenly over its length.
        frame_folders: shrink: folders of images are clips too.
        workers: check: number of threads. shrink: of processes. If not given: one for each core.
        shard_mib: pack: most MiB in a shard.
        shard_cache: check, pack: folder for the shards of an address or command.
        recipe: show: recipe of the training, by name or file. If not given: as for cgnl train.
        epoch: show: the epoch whose first batch is drawn, from 1 on.
        output: (-o) show: an image (png, jpg, webp).
        settings: show: those of the training, as in: cgnl data show my_birds data.augment=rand data.mixup=0.2
    """
    if len(words) != len(WORDS[action].split()):
        raise ValueError(f"usage: cgnl data {action} {WORDS[action]} [option=value ...]")
    if settings and action != "show":
        raise ValueError(f"{next(iter(settings))} is for cgnl data show, not for {action}")
    options = {"labels": labels, "annotations": annotations, "images": images, "shard_cache": shard_cache}
    options |= {"test_annotations": test_annotations, "test_images": test_images}
    given = {name: value for name, value in options.items() if value is not None}
    if action == "show":
        _show(words[0], dataset, recipe, settings if seed is None else {"seed": seed, **settings}, epoch, Path(output))
    elif action == "check":
        _check(words[0], dataset, given, min_frames, workers)
    elif action == "draw":
        _draw(dataset or SYNTHETIC[0], words[0], count, seed or 0)
    elif action == "shrink":
        _shrink(words[0], words[1], short_side, frames, workers, frame_folders)
    elif action == "pack":
        _pack(words[0], words[1], dataset, given, shard_mib)
    else:
        _check_dataset(words[0], ("cityscapes",), action)
        _convert(words[1], words[2])


def _check_dataset(name: str, known: Iterable[str], action: str) -> None:
    if name not in known:
        raise ValueError(f"there is no dataset {name!r} to {action}{nearest(name, known)}")


def _check(root: str, dataset: str | None, options: dict[str, str], min_frames: int, workers: int | None) -> None:
    """Print what a dataset holds and what is wrong with it."""
    index = _read(root, dataset, options, "check")
    from ..data.check import check, table
    from ..data.loading import count_cores

    report = check(index, min_frames, count_cores() if workers is None else workers)
    say(*table(index, report, min_frames))
    if report.faults:
        raise ValueError(f"{root} is not usable: {'; '.join(report.faults)}")
    if bad := len(report.unreadable):
        files = len({sample.path for samples in index.splits.values() for sample in samples})
        raise ValueError(f"{root} is usable, but {bad:,} of {files:,} files cannot be read: training skips them")


def _show(
    root: str, dataset: str | None, recipe: str | None, settings: dict[str, Any], epoch: int, target: Path
) -> None:
    """Draw a training batch as the network sees it."""
    if target.suffix.lower() not in IMAGES:
        raise ValueError(f"{target} must end in {', '.join(IMAGES)}")
    if root in SYNTHETIC and dataset is None and not Path(root).exists():
        where = {"data.dataset": root}
    else:
        where = {"data.root": root} | ({} if dataset is None else {"data.dataset": dataset})
    given = settings | where
    config = load_typed(recipe or default_recipe(given), given)
    check_files(config)
    if "data.root" in where:
        require_outside(target, root)
    from ..data.sheet import SAMPLES, draw_batch
    from ..engine.preview import load_batch

    batch, samples = load_batch(config, epoch)
    for problem in batch.problems:
        say(f"skipped: {problem}", error=True)
    sheet = draw_batch(batch, samples.classes)
    make_folder(target.parent)
    with whole_file(target) as file:
        sheet.save(file, {".jpg": "jpeg"}.get(target.suffix.lower(), target.suffix.lower()[1:]))
    shown = min(SAMPLES, len(batch.samples))
    say(f"{shown} of the {counted(len(batch.samples), 'sample')} in the first batch of epoch {epoch}: {target} written")


def _read(root: str, dataset: str | None, options: dict[str, str], action: str) -> DatasetIndex:
    """Read a dataset by its layout, which some options imply."""
    implied = {option: IMPLIED.get(option, "coco") for option in options}
    name = dataset or next(iter(implied.values()), "folder")
    _check_dataset(name, READERS, action)
    for option, layout in implied.items():
        if layout != name:
            raise ValueError(f"{option} is for dataset={layout}, not for {name}")
    return READERS[name](root, **options)


def _draw(name: str, folder: str, count: int, seed: int) -> None:
    """Write samples of a synthetic dataset."""
    _check_dataset(name, SYNTHETIC, "draw")
    from ..data.synthetic import draw

    classes = draw(name, folder, count, seed)
    say(f"{counted(count, 'sample')} of {counted(len(classes), 'class')} in {folder}")


def _shrink(root: str, out: str, short_side: int, frames: int, workers: int | None, frame_folders: bool) -> None:
    """Write a small copy of a dataset of clips."""
    from ..data.shrink import shrink

    done = shrink(root, out, short_side, frames, workers, frame_folders, say=say)
    there = f" ({done.skipped:,} were there already)" if done.skipped else ""
    say(f"{counted(done.written, 'clip')} written{there}, {counted(done.copied, 'other file')} copied to {out}")
    if bad := len(done.failed):
        raise ValueError(f"{bad:,} of {bad + done.written + done.skipped:,} clips cannot be read")


def _pack(root: str, out: str, dataset: str | None, options: dict[str, str], shard_mib: float) -> None:
    """Write a dataset as tar shards."""
    index = _read(root, dataset, options, "pack")
    from ..data.pack import pack

    for problem in index.problems:
        say(problem)
    done = pack(index, root, out, shard_mib, say)
    shards, samples = counted(done.shards, "shard"), counted(done.samples, "sample")
    say(f"{samples} in {shards}, {done.bytes / 2**20:,.1f} MiB: cgnl train data.dataset=shards data.root={out}")


def _convert(root: str, out: str) -> None:
    """Write Cityscapes in COCO's format."""
    from ..data.cityscapes import SMALLEST, convert

    splits = convert(root, out, say=say)
    say("", f"{'split':8} {'images':>10} {'objects':>10} {'crowds':>10} {f'below {SMALLEST} pixels':>16}")
    for name, split in splits.items():
        say(f"{name:8} {split.images:10,} {split.objects:10,} {split.crowds:10,} {split.too_small:16,}")
    if bad := sum(len(split.problems) for split in splits.values()):
        raise ValueError(f"{counted(bad, 'image')} left out")
