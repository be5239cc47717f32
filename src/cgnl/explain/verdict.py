"""Whether a block is used, in a sentence that is shown with its maps.

A block whose output hardly differs from its input still has attention maps, because theta and phi can be computed
whether or not anything depends on them. So the maps come with what the block adds, and what changes without it.
"""

import hashlib
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..atomic_io import write_text
from ..data.index import UnreadableError
from ..data.sources import FileSource
from ..engine.checkpoint import open_trained
from ..engine.datasets import open_dataset
from ..engine.predictions import ranked
from ..engine.progress import Lines
from ..engine.runs import find_checkpoint
from ..engine.tasks.detection import coco_results, same_objects
from ..models.device import find_device
from ..surgery import in_eval_mode
from .inputs import DetectorInput, read_sample
from .maps import eager, entered, find_blocks, find_module

ADDED, CHANGED = 1.0, 0.5
"""A block is not used if it adds less than this to its input in the median sample and fewer predictions than this
change without it, both in percent."""
JUDGED = {"images": 500, "videos": 500, "objects": 100}
"""Most test samples by which a finished run is judged; cgnl diagnose takes all."""
FILE = "diagnosis.json"
ADVICE = (
    "Try longer training, a larger optim.new_layers, model.options.zero_init=false, another model.options.norm, "
    "or another place (model.after)."
)


@dataclass(frozen=True)
class Verdict:
    """What the blocks of a network add to their inputs, and how many predictions change without them."""

    added: Mapping[str, float]
    """For each block, the size of what it adds in percent of the size of its input, in the median sample."""
    changed: int
    """Predictions that change if all blocks are switched off."""
    samples: int
    """1: a single image or clip, about which the verdict is."""

    def unused(self, block: str | None = None) -> bool:
        """Whether a block is not used; all of them unless given."""
        return max(self._of(block)) < ADDED and 100 * self.changed < CHANGED * self.samples

    def sentence(self, block: str | None = None) -> str:
        """Say what a block adds, how many predictions change without the blocks, and whether it is used."""
        shares, count = self._of(block), len(self.added)
        one = len(shares) == 1
        least, most = (f"{share:.2g}" if share < 100 else f"{share:,.0f}" for share in (min(shares), max(shares)))
        amount = least if least == most else f"{least} to {most}"
        name = f"The {count} blocks" if not one else f"The block {block}" if block and count > 1 else "The block"
        without = "it" if count == 1 else f"the {count} blocks" if one else "them"
        does = f"adds {amount} % to its input" if one else f"add {amount} % to their inputs"
        if self.samples == 1:
            where, then = "here", f"the prediction {'changes' if self.changed else 'stays the same'}"
        else:
            where, then = "in the median sample", f"{self.changed:,} of {self.samples:,} test predictions change"
        return f"{name} {does} {where}, and {then} without {without}{self._conclusion(block)}."

    def _conclusion(self, block: str | None) -> str:
        which = "this block is" if len(self._of(block)) == 1 else "these blocks are"
        if self.unused(block):
            return f": {which} not used{' here' if self.samples == 1 else ''}"
        if self.samples > 1 and 100 * self.changed < CHANGED * self.samples:
            return f": the predictions do not depend on {'it' if len(self.added) == 1 else 'them'}"
        return ""

    def advice(self, block: str | None = None) -> str:
        """What one may try if a block is not used, and how to learn more from a single sample; may be empty."""
        test = "cgnl diagnose tests it on all samples." if self.samples == 1 else ""
        return " ".join(filter(None, [test, ADVICE if self.unused(block) else ""]))

    def words(self, block: str | None = None) -> str:
        """The sentence and the advice."""
        return f"{self.sentence(block)} {self.advice(block)}".strip()

    def _of(self, block: str | None) -> list[float]:
        return [self.added[block]] if block else list(self.added.values())


def classify(network: nn.Module, batch: Tensor) -> list[int]:
    """The predicted class of each sample."""
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    logits = eager(network)(batch.to(device))
    if not logits.isfinite().all():
        raise ValueError("the network's outputs are not finite")
    return ranked(logits.softmax(1), 1)[1].flatten().tolist()


def detect(network: nn.Module, images: list[Tensor], ids: tuple[int, ...]) -> list[list[dict[str, Any]]]:
    """What a detector finds in each image, in COCO's result format."""
    return [coco_results(found, 0, ids) for found in network(images)]


def quick_verdict(
    network: nn.Module,
    batches: Iterable[Any],
    predict: Callable[[nn.Module, Any], Sequence[Any]] = classify,
    same: Callable[[Any, Any], bool] = operator.eq,
) -> Verdict:
    """Compare the predictions of a network with those without its blocks; raise if it has none.

    Args:
        network: a classifier, unless ``predict`` is given.
        batches: inputs [B, 3, *positions], or what ``predict`` takes.
        predict: the predictions of a network for a batch; classes unless given.
        same: whether two predictions are the same.
    """
    from .diagnosis import BranchSize, off  # which has a verdict

    blocks = find_blocks(network)
    find_module(blocks, None)  # raises if there is none
    branches = {name: BranchSize() for name in blocks}
    before: list[Any] = []
    after: list[Any] = []
    with torch.no_grad(), in_eval_mode(network):
        for batch in batches:
            with entered(block.register_forward_hook(branches[name]) for name, block in blocks.items()):
                before += predict(network, batch)
            with entered(map(off, blocks.values())):
                after += predict(network, batch)
    changed = count_changed(before, after, same)
    return Verdict({name: b.share.median for name, b in branches.items()}, changed, len(before))


def judge_run(folder: Path) -> Verdict | None:
    """Judge the blocks of a finished run by some of its test samples, and note it in ``diagnosis.json``.

    None if the network has no blocks.
    """
    checkpoint = folder / "last.ckpt"
    trained = open_trained(checkpoint)
    if not find_blocks(trained.network):
        return None
    weights, samples = fingerprint(trained.network), open_dataset(trained.config.data).test
    source: Any = samples if trained.kind != "objects" else FileSource.of_files([s.path for s in samples], "objects")
    network, progress = trained.network.to(find_device("auto")), Lines(1, 1, f"{trained.task.sample}s")
    numbers = range(0, len(source), math.ceil(len(source) / JUDGED[trained.kind]))

    def inputs() -> Iterator[Any]:
        for number in numbers:
            with suppress(UnreadableError):
                seen = read_sample(trained, source, number)
                yield [seen.image] if isinstance(seen, DetectorInput) else seen.network_input
            progress.update_test(1)

    how = {"predict": partial(detect, ids=trained.ids), "same": same_objects} if trained.kind == "objects" else {}
    with progress.testing(len(numbers)):
        verdict = quick_verdict(network, inputs(), **how)
    save_verdict(verdict, checkpoint, weights)
    return verdict


def count_changed(before: Sequence[Any], after: Sequence[Any], same: Callable[[Any, Any], bool] = operator.eq) -> int:
    """The number of predictions that differ."""
    return sum(not same(a, b) for a, b in zip(before, after, strict=True))


def fingerprint(network: nn.Module) -> str:
    """A hash of all weights, by which a verdict is recognised as that of a network."""
    digest = hashlib.sha256()
    for name, value in network.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def save_verdict(verdict: Verdict, checkpoint: Path, weights: str) -> Path:
    """Note a verdict in ``diagnosis.json`` next to a checkpoint whose weights have this fingerprint."""
    path = checkpoint.parent / FILE
    known = {name: entry for name, entry in _read(path).items() if (checkpoint.parent / name).exists()}
    known[checkpoint.name] = {"weights": weights} | asdict(verdict)
    write_text(path, json.dumps(known, indent=2) + "\n")
    return path


def read_verdict(checkpoint: Path | str, network: nn.Module) -> Verdict | None:
    """The verdict on a network that was noted next to its checkpoint, or export, if there is one."""
    checkpoint = Path(checkpoint)
    file = checkpoint if checkpoint.is_file() else find_checkpoint(checkpoint)  # which may be an export
    entries = _read(file.parent / FILE).values()
    weights = fingerprint(network) if entries else None
    for entry in entries:
        try:
            if entry["weights"] == weights and set(entry["added"]) == set(find_blocks(network)):
                added = {str(name): float(share) for name, share in entry["added"].items()}
                return Verdict(added, int(entry["changed"]), max(int(entry["samples"]), 1)) if added else None
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            continue  # damaged: cgnl diagnose writes it again
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
