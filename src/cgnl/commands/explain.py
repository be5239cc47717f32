"""``cgnl explain``."""

import math
from pathlib import Path
from typing import Annotated

from ..atomic_io import make_folder, whole_file
from ..data.index import require_outside, require_there
from ..engine.runs import find_checkpoint
from ..engine.values import PositiveInt
from ..extras import need
from ..text import say

IMAGES = (".png", ".jpg", ".jpeg", ".pdf", ".svg", ".webp")


def explain(
    checkpoint: str,
    file: str,
    *,
    at: str | None = None,
    output: str = "attention.png",
    compare: str | None = None,
    block: str | None = None,
    group: int | None = None,
    by_group: bool = False,
    columns: PositiveInt = 5,
    threshold: Annotated[float, "> 0", "<= 1"] = 0.7,
    heat: bool = False,
    grad_cam: bool = False,
    head: bool = False,
    save: str | None = None,
    device: str = "auto",
) -> None:
    """Draw what a network attends to from a reference position, or what its second-order head sees.

    For a head, these are the pairs of channels that contribute most to the predicted class, and where.

    Args:
        checkpoint: a run folder, or the last.ckpt or best.ckpt in it.
        file: an image, a video, or a folder of frames.
        at: reference position x,y or, in a video, x,y,frame in pixels of the file. If not given: the middle. For a
            position that a test does not see, the network gets a view around it.
        output: (-o) an image (png, jpg, pdf, svg) or, for clips, a video (mp4).
        compare: another checkpoint, drawn below the first.
        block: dotted name of the block. If not given: the last one of the network.
        group: only channels of this group.
        by_group: one column for each group, summed over its channels.
        columns: number of channels, those with the largest range; for a head, number of pairs.
        threshold: patches are related where a map, scaled to [0, 1] by its own range, reaches this value.
        heat: draw the maps as colours over the image.
        grad_cam: also draw Grad-CAM of the predicted class.
        head: show the second-order head instead of a block; the default for networks without blocks.
        save: write maps and factors of each network to this file (npz).
        device: cpu, cuda, or auto.
    """
    target, video, position = Path(output), Path(output).suffix.lower() == ".mp4", _parse_position(at)
    if not video and target.suffix.lower() not in IMAGES:
        raise ValueError(f"{output} must end in {', '.join(IMAGES)} or .mp4")
    if save and Path(save).suffix != ".npz":
        raise ValueError(f"{save} must end in .npz")
    paths = [checkpoint, compare] if compare else [checkpoint]
    for path in paths:
        find_checkpoint(path)
    for written in (output, save) if save else (output,):
        require_outside(written, require_there(file))
    need("matplotlib", "explain")
    from ..data.readers import cub_parts
    from ..engine.checkpoint import open_trained
    from ..explain import figure
    from ..explain.inputs import read_input
    from ..explain.maps import shows_head
    from ..explain.verdict import read_verdict
    from ..models.device import find_device

    rows, arrays = [], {}
    for number, path in enumerate(paths, 1):
        trained = open_trained(path)
        if video and not trained.task.has_frames:
            raise ValueError(f"{output} is a video, and the network was trained on images: give a .png")
        network = trained.network.to(find_device(device))
        seen = read_input(trained, file)
        options = {"at": position, "block": block, "group": group, "by_group": by_group}
        of_head = head or shows_head(network)
        if of_head and (position or block or group is not None or by_group):
            raise ValueError(f"at, block, group and by_group select maps of a block, and {path} shows its head")
        options |= {"head": of_head, "columns": columns, "with_grad_cam": grad_cam}
        options["verdict"] = read_verdict(path, network)
        row = figure.explain_input(trained, seen, figure.name_run(path, paths), **options)
        rows.append(row)
        prefix = f"{number}_" if compare else ""
        values = row.attention.arrays() | {"crop": row.seen.box}
        arrays |= {f"{prefix}{name}": value for name, value in values.items()}
    if len({row.seen.frames for row in rows}) > 1:
        counts = " and ".join(f"{len(row.seen.frames)} from {row.seen.frames[0]} on" for row in rows)
        raise ValueError(f"the two networks see other frames, {counts}, and cannot be drawn together")
    figure.write_figure(rows, target, threshold, heat, cub_parts(file))
    if save:
        make_folder(Path(save).parent)
        with whole_file(Path(save)) as content:
            need("numpy", "data").savez_compressed(content, **arrays)
    for row in rows:
        say(f"{row.title}: {row.caption}")
    say(f"{target}{f' and {save}' if save else ''} written")


def _parse_position(at: str | None) -> tuple[float, ...] | None:
    if at is None:
        return None
    try:
        numbers = tuple(float(word) for word in at.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (2, 3) or not all(map(math.isfinite, numbers)):
        raise ValueError(f"at = {at!r} is not a position: give x,y or x,y,frame")
    return numbers
