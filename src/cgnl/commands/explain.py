"""``cgnl explain``: what a trained network looks at in a picture or a clip."""

import math
from pathlib import Path

from ..data.readers import cub_parts
from ..engine.atomic_io import make_folder
from ..engine.checkpoint import check_names, open_trained
from ..engine.inputs import read_input
from ..engine.predict import find_device
from ..explain import figure
from ..explain.look import look, look_at_head, title_of
from ..explain.maps import COLUMNS, THRESHOLD, blocks_of
from ..extras import need
from ..heads import second_order_pools

PICTURES = (".png", ".jpg", ".jpeg", ".pdf", ".svg", ".webp")


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
    columns: int = COLUMNS,
    threshold: float = THRESHOLD,
    heat: bool = False,
    grad_cam: bool = False,
    head: bool = False,
    save: str | None = None,
    device: str = "auto",
) -> None:
    """Show what a network attends to from a reference position, or what its second-order head sees.

    Of a head, the pairs of channels are drawn that speak most for the predicted class, and where they do.

    Args:
        checkpoint: last.ckpt or best.ckpt of a run.
        file: a picture, a video, or a folder of frames.
        at: the reference position x,y or, in a video, x,y,frame in pixels of the file; the middle unless given.
        output: (-o) a picture (png, jpg, pdf, svg), or for clips a video (mp4).
        compare: another checkpoint, drawn below.
        block: dotted name of the block; the last one of the network unless given.
        group: only channels of this group.
        by_group: one column for each group, summed over its channels.
        columns: how many channels are shown, those of largest range; of a head, how many pairs.
        threshold: related patches are where a map, scaled to [0, 1] by its own range, reaches this.
        heat: lay the maps over the picture as colours.
        grad_cam: draw Grad-CAM of the predicted class beside them.
        head: show the second-order head, and not a block; so it is where there is no block.
        save: write maps and factors of each network to this file (npz).
        device: cpu, cuda, or auto.
    """
    target, place = Path(output), _numbers(at)
    if columns < 1:
        raise ValueError(f"columns = {columns} must be at least 1")
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold = {threshold} must be above 0 and at most 1")
    if target.suffix.lower() not in (*PICTURES, ".mp4"):
        raise ValueError(f"{output} must end in {', '.join(PICTURES)} or .mp4")
    if save and Path(save).suffix != ".npz":
        raise ValueError(f"{save} must end in .npz")
    need("matplotlib", "explain")
    paths = [checkpoint, compare] if compare else [checkpoint]
    rows, parts, arrays = [], {}, {}
    for path in paths:
        trained = open_trained(path)
        check_names(trained, path)
        if target.suffix.lower() == ".mp4" and trained.kind == "images":
            raise ValueError(f"{output} is a video, and the network was trained on pictures: give a .png")
        seen = read_input(trained, file)
        network = trained.network.to(find_device(device))
        title = title_of(path, paths)
        if head or (second_order_pools(network) and not blocks_of(network)):
            if place or block or group is not None or by_group:
                raise ValueError(f"at, block, group and by_group are of blocks, and {path} shows its head")
            row = look_at_head(network, trained.classes, seen, columns, grad_cam, title)
        else:
            row = look(network, trained.classes, seen, place, block, group, by_group, columns, grad_cam, title)
        rows.append(row)
        parts = parts or {name: seen.inside(*where) for name, where in cub_parts(file).items()}
        prefix = f"{len(rows)}_" if compare else ""
        arrays |= {f"{prefix}{name}": value for name, value in row.attention.arrays().items()}
    if len({row.pixels.shape for row in rows}) > 1:
        sizes = " and ".join(" x ".join(map(str, row.pixels.shape)) for row in rows)
        raise ValueError(f"the two networks see different pixels, {sizes}, and cannot be drawn together")
    make_folder(target.parent)
    if target.suffix.lower() == ".mp4":
        figure.write_video(figure.frames(rows), target)
    else:
        figure.draw(rows, threshold, heat, parts).savefig(target, dpi=110)
    if save:
        make_folder(Path(save).parent)
        need("numpy", "data").savez_compressed(save, **arrays)
    for row in rows:
        print(f"{row.title}: {row.words}{row.attention.caption}")
    print(f"{target}{f' and {save}' if save else ''} written")


def _numbers(at: str | None) -> tuple[float, ...] | None:
    if at is None:
        return None
    try:
        numbers = tuple(float(word) for word in at.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (2, 3) or not all(map(math.isfinite, numbers)):
        raise ValueError(f"at = {at!r} is no position: give x,y or x,y,frame")
    return numbers
