"""``cgnl diagnose``."""

from pathlib import Path

from ..engine.runs import find_checkpoint
from ..engine.settings import OfTest
from ..extras import need
from ..text import say


def diagnose(
    checkpoint: str,
    folder: str | None = None,
    *,
    block: str | None = None,
    output: str | None = None,
    **settings: OfTest,
) -> None:
    """Test a network with its attention, and with something else in its place; likewise a second-order head.

    The verdict, whether the blocks are used, is kept in diagnosis.json next to the checkpoint.

    Args:
        checkpoint: a run folder, or the last.ckpt or best.ckpt in it.
        folder: the dataset. If not given: the one the network was trained on.
        block: dotted name of the block whose attention is replaced. If not given: all blocks at once.
        output: (-o) a name, to write NAME.csv, NAME_groups.csv and NAME.png.
        settings: settings that differ from those of the training, such as data.samples=200 or accelerator=cpu.
    """
    if output:
        need("matplotlib", "explain")
    found = find_checkpoint(checkpoint)
    from ..engine.evaluate import prepare
    from ..explain.diagnose import run, table, write
    from ..explain.verdict import fingerprint, save_verdict

    test = prepare(checkpoint, {"devices": 1} | settings | ({"data.root": folder} if folder else {}))
    weights = fingerprint(test.trained.network)  # a test in half precision changes them
    result = run(test, block)
    say(*table(result, len(test.dataset.test)), *test.dataset.tested)
    if result.verdict and not block:
        try:
            path = save_verdict(result.verdict, found, weights)
            say(f"{path} written, which cgnl explain, app and report read")
        except OSError as error:
            say(f"the verdict is not kept: {error}")
    if output:
        paths = write(result, Path(output), found.resolve().parent.name)
        say(f"{', '.join(map(str, paths))} written")
