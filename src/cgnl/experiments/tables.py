"""The tables of the paper, and ours beside them, as data. Settings and the numbers it reports are in the recipes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property
from typing import Any

from ..engine.config import Config, load
from ..spelling import nearest
from .verdict import Comparison


@dataclass(frozen=True)
class Row:
    """A row: a recipe, and what differs from it."""

    label: str
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    called: str = ""
    """Where settings differ from the recipe's."""
    like: str = ""
    """The recipe of the paper's row with the same network, where this is trained in another way."""

    @property
    def name(self) -> str:
        """Rows of one name are the same row, in whichever tables they stand."""
        return self.called or self.recipe

    def config(self, settings: Mapping[str, Any] | None = None) -> Config:
        """The settings of the row, with others laid over them."""
        return load(self.recipe, {**self.settings, **settings}) if settings else self._own

    @cached_property
    def _own(self) -> Config:
        return load(self.recipe, self.settings)

    @cached_property
    def reported(self) -> dict[str, float]:
        """What the paper reports of this network, in per cent; nothing where it has no such row."""
        paper = load(self.like).paper if self.like else None if self.settings else self.config().paper
        numbers = {name: getattr(paper, name) for name in METRICS} if paper else {}
        return {name: value for name, value in numbers.items() if value is not None}


def gain(before: Row, after: Row, metric: str) -> float | None:
    """What the paper reports that one row has more than another."""
    numbers = before.reported, after.reported
    return numbers[1][metric] - numbers[0][metric] if all(metric in n for n in numbers) else None


METRICS = ("top1", "top5", "box_ap", "box_ap50", "box_ap75", "mask_ap", "mask_ap50", "mask_ap75")


@dataclass(frozen=True)
class Table:
    """Rows that are compared. Those of one network are compared in pairs."""

    title: str
    rows: tuple[Row, ...]
    note: str = ""
    ours: bool = False
    """Whether it is not in the paper."""
    splits: tuple[int, ...] = ()
    """Splits of the dataset, over which a result is averaged."""
    diagnose: bool = False
    """Whether the attention of each trained block is diagnosed."""
    shuffled: bool = False
    """Whether all networks, which see clips, are tested with their frames in a random order too."""
    primary: tuple[Comparison, ...] = ()
    """What it was made to find out, and how it is decided."""

    def chosen(self, patterns: str | None) -> tuple[Row, ...]:
        """The rows whose names fit any of some patterns, such as ``cub_r50*,*nl1``."""
        if patterns is None:
            return self.rows
        wanted = [pattern.strip() for pattern in patterns.split(",")]
        for pattern in wanted:
            if not any(fnmatch(row.name, pattern) for row in self.rows):
                raise ValueError(f"there is no row {pattern!r}{nearest(pattern, [row.name for row in self.rows])}")
        return tuple(row for row in self.rows if any(fnmatch(row.name, pattern) for pattern in wanted))


def _blocks(dataset: str, depth: int, *kinds: str) -> tuple[Row, ...]:
    """``R-50`` and, for ``nl1``, ``R-50 + 1 NL``."""
    base = f"{dataset}_r{depth}"
    labels = [f"R-{depth} + {kind[-1]} {LABELS[kind[:-1]]}" for kind in kinds]
    more = (Row(label, f"{base}_{kind}") for label, kind in zip(labels, kinds, strict=True))
    return (Row(f"R-{depth}", base), *more)


LABELS = {"nl": "NL", "cgnl": "CGNL", "cgnlx": "CGNLx", "residual": "residual block"}


def _groups(dataset: str, depth: int, blocks: int, numbers: tuple[int, ...]) -> tuple[Row, ...]:
    """The recipe without a number of groups in its name has 8."""
    base = f"{dataset}_r{depth}_cgnl{blocks}"
    return tuple(
        Row(f"R-{depth} + {blocks} CGNL, groups {n}", base if n == 8 else f"{base}_groups{n}") for n in numbers
    )


def _inner(share: str, channels: int) -> Row:
    base, label = "mini_kinetics_r50_cgnl1", f"R-50 + 1 CGNL, not grouped, inner {share}"
    return Row(label, base, {"model.options": {"groups": 1, "inner_channels": channels}}, f"{base}_inner{channels}")


def _cub(label: str, called: str, **settings: Any) -> Row:
    """A variation of the ResNet-50 with one CGNL block on CUB."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return Row(label, "cub_r50_cgnl1", named, f"cub_r50_{called}")


def _try(label: str, called: str, **settings: Any) -> Row:
    """The same, tested on a part of the training pictures."""
    row = _cub(label, f"{called}_validation", **settings)
    return replace(row, settings={**row.settings, **VALIDATION})


def _gestures(label: str, block: str | None, blocks: int = 1) -> Row:
    settings = {"model.block": block} | ({"model.blocks": blocks} if block else {})
    return Row(label, "base_gestures", settings, f"gestures_c2d_r50_{block}{blocks}" if block else "gestures_c2d_r50")


def _relation(label: str, block: str | None) -> Row:
    return Row(label, "relation", {"model.block": block}, f"relation_r18_{block}1" if block else "relation_r18")


def _heads(dataset: str, head: str = "average", block: str | None = None, **settings: Any) -> Row:
    """A head, and perhaps a block, trained as all rows of its table are."""
    recipe = f"{dataset}_r50_covariance{f'_{block}1' if block == 'cgnl' else ''}"
    told = {name.replace("__", "."): value for name, value in settings.items()}
    if head != "covariance":
        told["model.head"] = head
    if block not in (None, "cgnl"):
        told |= {"model.block": block, "model.options": {} if block == "nl" else {"groups": 8}}
    kind = "" if head == "average" else f", {head} head"
    label = f"R-50{f' + 1 {LABELS[block]}' if block else ''}{kind}"
    called = f"{dataset}_heads_r50{'' if head == 'average' else f'_{head}'}{f'_{block}1' if block else ''}"
    like = f"cub_r50{f'_{block}1' if block else ''}" if (dataset, head) == ("cub", "average") else ""
    return Row(label, recipe, told, called, like)


def _primary(dataset: str) -> tuple[Comparison, ...]:
    """CGNL, with two looks, and the covariance head against the plain network."""
    plain = f"{dataset}_heads_r50"
    return Comparison(plain, f"{plain}_cgnl1"), Comparison(plain, f"{plain}_covariance", {5: 0.01})


def _rate(head: str, lr: float, new_layers: float) -> Row:
    """A learning rate, tried on a part of the training pictures."""
    row = _heads("cub", head, optim__lr=lr, optim__new_layers=new_layers, **{"data.test_on": "validation"})
    label = f"{row.label}, rate {lr / 4:g}, new layers x {new_layers:g}"
    return replace(row, label=label, called=f"{row.called}_rate{lr:g}_new{new_layers:g}_validation", like="")


def _lsa64(form: str, block: str | None = None, head: str = "average") -> Row:
    settings: dict[str, Any] = {"model.name": f"{form}_resnet50"} if form != "c2d" else {}
    settings |= {"model.block": block, "model.blocks": 5} if block else {}
    settings |= {"model.head": head} if head != "average" else {}
    kind = "" if head == "average" else f", {head} head"
    label = f"{form.upper()} R-50{f' + 5 {LABELS[block]}' if block else ''}{kind}"
    name = f"lsa64_{form}_r50{'' if head == 'average' else f'_{head}'}{f'_{block}5' if block else ''}"
    return Row(label, "base_lsa64", settings, name)


def _cityscapes(block: str | None = None) -> Row:
    label = f"Mask R-CNN R-50 FPN{f' + 1 {LABELS[block]}' if block else ''}"
    settings = {"data.size": 256, "data.long_side": 512, **({"model.block": block} if block else {})}
    return Row(label, "base_cityscapes", settings, f"cityscapes_maskrcnn_r50{f'_{block}1' if block else ''}")


VALIDATION = {"data.test_on": "validation"}
EXACT = {"name": "rbf", "beta": "exact"}
GROUP_NORM = _cub("R-50 + 1 CGNL, group norm", "cgnl1_group_norm", model__options={"groups": 8, "norm": "group"})
MAIN = ("nl1", "cgnl1", "nl5", "cgnl5")

TABLES: dict[str, Table] = {
    "cub-kernels": Table(
        "Kernel functions on CUB-200-2011",
        (
            Row("R-50", "cub_r50"),
            Row("dot product", "cub_r50_cgnl1"),
            Row("Gaussian RBF", "cub_r50_cgnlx1"),
            Row("embedded Gaussian", "cub_r50_cgnl1_embedded_gaussian"),
        ),
        "Eight groups; the Taylor series are of order 3, gamma of the RBF is 1e-4.",
    ),
    "cub-groups": Table(
        "Groups on CUB-200-2011",
        (
            Row("R-101", "cub_r101"),
            *_groups("cub", 101, 1, (1, 4, 8, 16, 32)),
            *_groups("cub", 101, 5, (1, 4, 8, 16, 32)),
        ),
    ),
    "mini-kinetics-groups": Table(
        "Groups on Mini-Kinetics",
        (
            Row("R-50", "mini_kinetics_r50"),
            *_groups("mini_kinetics", 50, 1, (1, 4, 8)),
            Row("R-101", "mini_kinetics_r101"),
            *_groups("mini_kinetics", 101, 1, (1, 4, 8)),
        ),
    ),
    "mini-kinetics-reduction": Table(
        "Reduction of channels and grouping on Mini-Kinetics",
        (
            Row("R-50", "mini_kinetics_r50"),
            _inner("C", 1024),
            Row("R-50 + 1 CGNL, not grouped, inner C/2", "mini_kinetics_r50_cgnl1_groups1"),
            _inner("C/4", 256),
            *_groups("mini_kinetics", 50, 1, (4, 8)),
        ),
        "The text says that groups bring more than another reduction ratio does; for C and C/4 it gives no numbers.",
    ),
    "ucf101": Table(
        "UCF101",
        _blocks("ucf101", 50, "nl1", "cgnl1"),
        "Not grouped. The mean of the three splits; the paper does not say which it reports.",
        splits=(1, 2, 3),
    ),
    "mini-kinetics": Table(
        "Main results on Mini-Kinetics",
        (*_blocks("mini_kinetics", 50, *MAIN), *_blocks("mini_kinetics", 101, *MAIN)),
        "Eight groups.",
    ),
    "cub": Table(
        "Main results on CUB-200-2011",
        (*_blocks("cub", 50, *MAIN), *_blocks("cub", 101, *MAIN)),
        "Eight groups.",
    ),
    "residual": Table(
        "CGNL against a simple residual block on CUB-200-2011",
        _blocks("cub", 50, "residual1", "cgnl1"),
        "Eight groups for both blocks.",
    ),
    "coco": Table(
        "Mask R-CNN on COCO",
        (
            Row("Mask R-CNN R-50", "coco_maskrcnn_r50"),
            Row("+ 1 NL", "coco_maskrcnn_r50_nl1"),
            Row("+ 1 CGNL", "coco_maskrcnn_r50_cgnl1"),
        ),
        "The paper does not state the groups: eight.",
    ),
    "imagenet": Table(
        "ImageNet",
        (*_blocks("imagenet", 50, "cgnl1", "cgnlx1"), *_blocks("imagenet", 152, "cgnl1", "cgnlx1")),
        "The paper does not state the groups: eight. CGNLx is the RBF kernel of order 3.",
    ),
    "cub-blocks": Table(
        "One block on CUB-200-2011: is CGNL better, and does its attention matter?",
        (*_blocks("cub", 50, "nl1", "cgnl1", "residual1"), GROUP_NORM),
        "Group norm is what the authors' released code has in place of the paper's batch norm.",
        ours=True,
        diagnose=True,
    ),
    "cub-groups-r50": Table(
        "Groups on CUB-200-2011, R-50",
        (
            Row("R-50", "cub_r50"),
            *(_cub(f"R-50 + 1 CGNL, groups {n}", f"cgnl1_groups{n}", model__options={"groups": n}) for n in (1, 4)),
            Row("R-50 + 1 CGNL, groups 8", "cub_r50_cgnl1"),
            *(_cub(f"R-50 + 1 CGNL, groups {n}", f"cgnl1_groups{n}", model__options={"groups": n}) for n in (16, 32)),
        ),
        ours=True,
    ),
    "cub-tries": Table(
        "What could make CGNL better on CUB-200-2011",
        (
            Row("R-50", "cub_r50", VALIDATION, "cub_r50_validation"),
            _try("R-50 + 1 CGNL", "cgnl1"),
            _try("learning rate of new layers x 10", "cgnl1_new_layers10", optim__new_layers=10.0),
            _try(
                "learning rate of new layers x 10, no block", "new_layers10", optim__new_layers=10.0, model__block=None
            ),
            _try("twice the epochs", "cgnl1_epochs36", optim__epochs=36),
            _try("twice the epochs, no block", "epochs36", optim__epochs=36, model__block=None),
            _try("norm not begun at zero", "cgnl1_not_zero", model__options={"groups": 8, "zero_init": False}),
            _try('scale="sqrt"', "cgnl1_scale_sqrt", model__options={"groups": 8, "scale": "sqrt"}),
            _try('scale="resolution"', "cgnl1_scale_resolution", model__options={"groups": 8, "scale": "resolution"}),
            _try("exact RBF", "cgnl1_exact_rbf", model__options={"groups": 8, "kernel": EXACT}),
            _try(
                "exact RBF, normalised rows",
                "cgnl1_exact_rbf_normalised",
                model__options={"groups": 8, "kernel": EXACT, "normalize": True},
            ),
            _try("five blocks", "cgnl5", model__blocks=5),
            _try("block in res5", "cgnl1_res5", model__after=["layer4.1"]),
        ),
        "Tested on a fifth of the training pictures, never on the test set.",
        ours=True,
        diagnose=True,
    ),
    "cub-heads": Table(
        "Second-order heads on CUB-200-2011",
        (
            *(_heads("cub", "average", block) for block in (None, "cgnl")),
            *(_heads("cub", "covariance", block) for block in (None, "cgnl")),
            *(_heads("cub", "average", block) for block in ("nl", "residual")),
            *(_heads("cub", head) for head in ("bilinear", "compact")),
        ),
        "All rows are trained alike. Heads have 256 channels; eight groups. docs/protocol.md was written before.",
        ours=True,
        diagnose=True,
        primary=_primary("cub"),
    ),
    "cub-heads-rates": Table(
        "Learning rates for heads on CUB-200-2011",
        tuple(
            _rate(head, lr, new)
            for head in ("average", "covariance")
            for lr in (0.04, 0.08, 0.16)
            for new in (1.0, 5.0)
        ),
        "Tested on a fifth of the training pictures, never on the test set.",
        ours=True,
    ),
    "pets-heads": Table(
        "Second-order heads on Oxford-IIIT Pets",
        (
            *(_heads("pets", "average", block) for block in (None, "cgnl")),
            *(_heads("pets", "covariance", block) for block in (None, "cgnl")),
        ),
        "All rows are trained alike. Heads have 256 channels; eight groups. docs/protocol.md was written before.",
        ours=True,
        diagnose=True,
        primary=_primary("pets"),
    ),
    "lsa64": Table(
        "Signs: LSA64, tested on signers that were not learned from",
        (
            _lsa64("c2d"),
            *(_lsa64("c2d", block) for block in ("nl", "cgnl")),
            _lsa64("c2d", head="covariance"),
            _lsa64("i3d"),
            _lsa64("i3d", "cgnl"),
        ),
        "Signers 9 and 10 are the test. C2D, blocks and heads know no order of positions; only I3D's kernels see it.",
        ours=True,
        diagnose=True,
        shuffled=True,
    ),
    "cityscapes": Table(
        "Mask R-CNN on Cityscapes' instances, 512 x 256",
        tuple(_cityscapes(block) for block in (None, "cgnl", "nl")),
        "Pictures of a quarter of the official width and height: not comparable with published numbers.",
        ours=True,
    ),
    "gestures": Table(
        "Hand gestures: clips of 30 frames, five classes",
        (
            _gestures("C2D R-50", None),
            *(_gestures(f"C2D R-50 + {n} {b.upper()}", b, n) for n in (1, 5) for b in ("nl", "cgnl")),
        ),
        ours=True,
        diagnose=True,
    ),
    "relation": Table(
        "Relation: whether the discs at the two ends of a picture have the same colour",
        (
            _relation("R-18", None),
            *(_relation(f"R-18 + 1 {LABELS[block]}", block) for block in ("residual", "nl", "cgnl")),
        ),
        ours=True,
        diagnose=True,
    ),
}
"""By the name that ``cgnl reproduce`` takes. The complexity table is measured, not trained: see complexity.py."""


def is_diagnosed(name: str) -> bool:
    """Whether the attention of this row's runs is diagnosed, for whichever table they are made."""
    rows = {row.name: row for table in TABLES.values() if table.diagnose for row in table.rows}
    if any(row.name == name for table in TABLES.values() if table.shuffled for row in table.rows):
        return True
    model = rows[name].config().model if name in rows else None
    return model is not None and (model.block in ("cgnl", "cgnlx", "nl") or model.head in ("covariance", "bilinear"))
