"""The tables of the paper and our own: rows, settings and the paper's numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property, partial
from typing import Any

from ..engine.config import Config, load
from ..spelling import nearest
from .verdict import Comparison

METRICS = ("top1", "top5", "box_ap", "box_ap50", "box_ap75", "mask_ap", "mask_ap50", "mask_ap75")

PAPER: dict[str, tuple[float, ...]] = {
    "cub_r50": (84.05, 96.00),
    "cub_r50_nl1": (84.79, 96.76),
    "cub_r50_cgnl1": (85.14, 96.88),
    "cub_r50_nl5": (85.10, 96.18),
    "cub_r50_cgnl5": (85.68, 96.69),
    "cub_r50_cgnlx1": (84.10, 95.78),
    "cub_r50_cgnl1_embedded_gaussian": (84.01, 96.08),
    "cub_r50_residual1": (84.11, 96.23),
    "cub_r101": (85.05, 96.70),
    "cub_r101_nl1": (85.49, 97.04),
    "cub_r101_cgnl1": (86.35, 97.86),
    "cub_r101_nl5": (86.10, 96.35),
    "cub_r101_cgnl5": (86.24, 97.23),
    "cub_r101_cgnl1_groups1": (86.17, 97.82),
    "cub_r101_cgnl1_groups4": (86.24, 97.05),
    "cub_r101_cgnl1_groups16": (86.13, 96.75),
    "cub_r101_cgnl1_groups32": (86.04, 96.69),
    "cub_r101_cgnl5_groups1": (86.01, 95.97),
    "cub_r101_cgnl5_groups4": (86.19, 96.07),
    "cub_r101_cgnl5_groups16": (86.43, 98.89),
    "cub_r101_cgnl5_groups32": (86.10, 97.13),
    "mini_kinetics_r50": (75.54, 92.16),
    "mini_kinetics_r50_nl1": (76.53, 92.90),
    "mini_kinetics_r50_cgnl1": (77.76, 93.18),
    "mini_kinetics_r50_nl5": (77.53, 94.00),
    "mini_kinetics_r50_cgnl5": (78.79, 94.37),
    "mini_kinetics_r50_cgnl1_groups1": (77.16, 93.56),
    "mini_kinetics_r50_cgnl1_groups4": (77.56, 93.00),
    "mini_kinetics_r101": (77.44, 93.18),
    "mini_kinetics_r101_nl1": (78.02, 93.86),
    "mini_kinetics_r101_cgnl1": (79.54, 93.84),
    "mini_kinetics_r101_nl5": (79.21, 93.21),
    "mini_kinetics_r101_cgnl5": (79.88, 93.37),
    "mini_kinetics_r101_cgnl1_groups1": (78.79, 93.64),
    "mini_kinetics_r101_cgnl1_groups4": (79.06, 93.54),
    "ucf101_r50": (81.62, 94.62),
    "ucf101_r50_nl1": (82.88, 95.74),
    "ucf101_r50_cgnl1": (83.38, 95.42),
    "imagenet_r50": (76.15, 92.87),
    "imagenet_r50_cgnl1": (77.69, 93.64),
    "imagenet_r50_cgnlx1": (77.32, 93.46),
    "imagenet_r152": (78.31, 94.06),
    "imagenet_r152_cgnl1": (79.53, 94.59),
    "imagenet_r152_cgnlx1": (79.37, 94.47),
    "coco_maskrcnn_r50": (34.47, 54.87, 36.58, 30.44, 51.55, 31.95),
    "coco_maskrcnn_r50_nl1": (35.02, 55.79, 37.54, 30.23, 52.40, 32.77),
    "coco_maskrcnn_r50_cgnl1": (35.70, 56.07, 38.69, 31.22, 52.44, 32.67),
}
"""Recipe -> top-1 and top-5 in per cent; for COCO the average precision of boxes and masks."""


@dataclass(frozen=True)
class Row:
    """A recipe and how the row differs from it."""

    label: str
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    alias: str = ""
    """Name of a row whose settings differ from the recipe's."""
    counterpart: str = ""
    """Recipe of the paper's row with the same network, if this one is trained differently."""

    @property
    def name(self) -> str:
        """Rows with the same name are the same row, in whichever tables they stand."""
        return self.alias or self.recipe

    def config(self, settings: Mapping[str, Any] | None = None) -> Config:
        """Settings of the row, overridden by others."""
        return load(self.recipe, {**self.settings, **settings}) if settings else self._own

    @cached_property
    def _own(self) -> Config:
        return load(self.recipe, self.settings)

    @property
    def reported(self) -> dict[str, float]:
        """Numbers of the paper in per cent; empty if it has no such row."""
        numbers = PAPER.get(self.counterpart or ("" if self.settings else self.recipe), ())
        names = METRICS[:2] if len(numbers) == 2 else METRICS[2:]
        return dict(zip(names, numbers, strict=False))


def reported_gain(before: Row, after: Row, metric: str) -> float | None:
    """Difference that the paper reports between two rows."""
    old, new = before.reported.get(metric), after.reported.get(metric)
    return None if old is None or new is None else new - old


@dataclass(frozen=True)
class Table:
    """Rows to compare; rows with the same network are compared in pairs."""

    title: str
    rows: tuple[Row, ...]
    note: str = ""
    ours: bool = False
    """Whether the paper has no such table."""
    splits: tuple[int, ...] = ()
    """Splits of the dataset over which results are averaged."""
    diagnose: bool = False
    """Whether to diagnose the attention of trained blocks."""
    shuffled: bool = False
    """Whether to test every network with shuffled frames too."""
    primary: tuple[Comparison, ...] = ()
    """Comparisons the table was made for, and how they are decided."""

    def select(self, patterns: str | None) -> tuple[Row, ...]:
        """Rows whose names match any of the patterns, such as ``cub_r50*,*nl1``."""
        if patterns is None:
            return self.rows
        wanted = [pattern.strip() for pattern in patterns.split(",")]
        for pattern in wanted:
            if not any(fnmatch(row.name, pattern) for row in self.rows):
                raise ValueError(f"there is no row {pattern!r}{nearest(pattern, [row.name for row in self.rows])}")
        return tuple(row for row in self.rows if any(fnmatch(row.name, pattern) for pattern in wanted))

    def diagnoses(self, row: Row) -> bool:
        """Whether the table needs a diagnosis of this row."""
        model = row.config().model
        attends = model.block in ("cgnl", "cgnlx", "nl") or model.head in ("covariance", "bilinear")
        return self.shuffled or (self.diagnose and attends)


LABELS = {"nl": "NL", "cgnl": "CGNL", "cgnlx": "CGNLx", "residual": "residual block"}
VALIDATION = {"data.test_on": "validation"}
NEW_LAYERS = {"optim.new_layers": 10.0}
EXACT_RBF = {"name": "rbf", "beta": "exact"}


def _blocks(dataset: str, depth: int, *kinds: str) -> tuple[Row, ...]:
    """The plain network, then one row for each kind, such as ``nl5`` for ``+ 5 NL``."""
    base = f"{dataset}_r{depth}"
    rows = (Row(f"R-{depth} + {kind[-1]} {LABELS[kind[:-1]]}", f"{base}_{kind}") for kind in kinds)
    return (Row(f"R-{depth}", base), *rows)


def _main(dataset: str) -> tuple[Row, ...]:
    kinds = ("nl1", "cgnl1", "nl5", "cgnl5")
    return (*_blocks(dataset, 50, *kinds), *_blocks(dataset, 101, *kinds))


def _groups(dataset: str, depth: int, blocks: int, numbers: tuple[int, ...]) -> tuple[Row, ...]:
    """Rows by number of groups; the recipe without a number in its name has 8."""
    base, label = f"{dataset}_r{depth}_cgnl{blocks}", f"R-{depth} + {blocks} CGNL, groups"
    return tuple(Row(f"{label} {n}", base if n == 8 else f"{base}_groups{n}") for n in numbers)


def _variant(
    recipe: str,
    alias: str,
    label: str,
    block: str | None = None,
    blocks: int = 1,
    head: str = "average",
    settings: Mapping[str, Any] | None = None,
) -> Row:
    """A recipe with another block and head."""
    changes = {"model.block": block, "model.blocks": blocks, "model.head": head, **(settings or {})}
    alias += "" if head == "average" else f"_{head}"
    alias += f"_{block}{blocks}" if block else ""
    label += f" + {blocks} {LABELS[block]}" if block else ""
    label += "" if head == "average" else f", {head} head"
    return Row(label, recipe, changes, alias)


def _cub(label: str, suffix: str, settings: Mapping[str, Any]) -> Row:
    """ResNet-50 with one CGNL block on CUB, changed."""
    return Row(label, "cub_r50_cgnl1", settings, f"cub_r50_{suffix}")


def _try(label: str, suffix: str, settings: Mapping[str, Any] | None = None) -> Row:
    """The same, tested on held-out training images."""
    return _cub(label, f"{suffix}_validation", {**(settings or {}), **VALIDATION})


def _options(**options: Any) -> dict[str, Any]:
    return {"model.options": {"groups": 8, **options}}


def _heads(dataset: str, head: str, *blocks: str | None) -> tuple[Row, ...]:
    """Rows with the same head, trained by one recipe."""
    recipe = {"cub": "base_cub_heads", "pets": "base_pets"}[dataset]
    rows = []
    for block in blocks:
        settings = {"model.name": "resnet50", "model.options": {"groups": 8} if block in ("cgnl", "residual") else {}}
        row = _variant(recipe, f"{dataset}_heads_r50", "R-50", block, head=head, settings=settings)
        same = f"cub_r50_{block}1" if block else "cub_r50"
        rows.append(replace(row, counterpart=same if (dataset, head) == ("cub", "average") else ""))
    return tuple(rows)


def _primary(dataset: str) -> tuple[Comparison, ...]:
    """CGNL, with two looks, and the covariance head against the plain network."""
    plain = f"{dataset}_heads_r50"
    return Comparison(plain, f"{plain}_cgnl1"), Comparison(plain, f"{plain}_covariance", {5: 0.01})


def _rate(head: str, lr: float, new_layers: float) -> Row:
    """A learning rate, tested on held-out training images."""
    (row,) = _heads("cub", head, None)
    return Row(
        f"{row.label}, rate {lr / 4:g}, new layers x {new_layers:g}",
        row.recipe,
        {**row.settings, "optim.lr": lr, "optim.new_layers": new_layers, **VALIDATION},
        f"{row.alias}_rate{lr:g}_new{new_layers:g}_validation",
    )


def _inner(share: str, channels: int) -> Row:
    base, options = "mini_kinetics_r50_cgnl1", {"groups": 1, "inner_channels": channels}
    label = f"R-50 + 1 CGNL, not grouped, inner {share}"
    return Row(label, base, {"model.options": options}, f"{base}_inner{channels}")


def _lsa64(form: str, block: str | None = None, head: str = "average") -> Row:
    settings, blocks = {"model.name": f"{form}_resnet50"}, 5 if block else 1
    return _variant("base_lsa64", f"lsa64_{form}_r50", f"{form.upper()} R-50", block, blocks, head, settings)


_ours = partial(Table, ours=True)
_gestures = partial(_variant, "base_gestures", "gestures_c2d_r50", "C2D R-50")
_cityscapes = partial(
    _variant,
    "base_cityscapes",
    "cityscapes_maskrcnn_r50",
    "Mask R-CNN R-50 FPN",
    settings={"data.size": 256, "data.long_side": 512},  # at --scale small too
)

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
    "mini-kinetics": Table("Main results on Mini-Kinetics", _main("mini_kinetics"), "Eight groups."),
    "cub": Table("Main results on CUB-200-2011", _main("cub"), "Eight groups."),
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
    "cub-blocks": _ours(
        "One block on CUB-200-2011: is CGNL better, and does its attention matter?",
        (
            *_blocks("cub", 50, "nl1", "cgnl1", "residual1"),
            _cub("R-50 + 1 CGNL, group norm", "cgnl1_group_norm", _options(norm="group")),
        ),
        "Group norm is what the authors' released code has in place of the paper's batch norm.",
        diagnose=True,
    ),
    "cub-groups-r50": _ours(
        "Groups on CUB-200-2011, R-50",
        (
            Row("R-50", "cub_r50"),
            *(_cub(f"R-50 + 1 CGNL, groups {n}", f"cgnl1_groups{n}", _options(groups=n)) for n in (1, 4)),
            Row("R-50 + 1 CGNL, groups 8", "cub_r50_cgnl1"),
            *(_cub(f"R-50 + 1 CGNL, groups {n}", f"cgnl1_groups{n}", _options(groups=n)) for n in (16, 32)),
        ),
    ),
    "cub-tries": _ours(
        "What could make CGNL better on CUB-200-2011",
        (
            Row("R-50", "cub_r50", VALIDATION, "cub_r50_validation"),
            _try("R-50 + 1 CGNL", "cgnl1"),
            _try("learning rate of new layers x 10", "cgnl1_new_layers10", NEW_LAYERS),
            _try("learning rate of new layers x 10, no block", "new_layers10", {**NEW_LAYERS, "model.block": None}),
            _try("twice the epochs", "cgnl1_epochs36", {"optim.epochs": 36}),
            _try("twice the epochs, no block", "epochs36", {"optim.epochs": 36, "model.block": None}),
            _try("norm not begun at zero", "cgnl1_not_zero", _options(zero_init=False)),
            _try('scale="sqrt"', "cgnl1_scale_sqrt", _options(scale="sqrt")),
            _try('scale="resolution"', "cgnl1_scale_resolution", _options(scale="resolution")),
            _try("exact RBF", "cgnl1_exact_rbf", _options(kernel=EXACT_RBF)),
            _try(
                "exact RBF, normalised rows", "cgnl1_exact_rbf_normalised", _options(kernel=EXACT_RBF, normalize=True)
            ),
            _try("five blocks", "cgnl5", {"model.blocks": 5}),
            _try("block in res5", "cgnl1_res5", {"model.after": ["layer4.1"]}),
        ),
        "Tested on a fifth of the training pictures, never on the test set.",
        diagnose=True,
    ),
    "cub-heads": _ours(
        "Second-order heads on CUB-200-2011",
        (
            *_heads("cub", "average", None, "cgnl"),
            *_heads("cub", "covariance", None, "cgnl"),
            *_heads("cub", "average", "nl", "residual"),
            *_heads("cub", "bilinear", None),
            *_heads("cub", "compact", None),
        ),
        "All rows are trained alike. Heads have 256 channels; eight groups. docs/protocol.md was written before.",
        diagnose=True,
        primary=_primary("cub"),
    ),
    "cub-heads-rates": _ours(
        "Learning rates for heads on CUB-200-2011",
        tuple(
            _rate(head, lr, new)
            for head in ("average", "covariance")
            for lr in (0.04, 0.08, 0.16)
            for new in (1.0, 5.0)
        ),
        "Tested on a fifth of the training pictures, never on the test set.",
    ),
    "pets-heads": _ours(
        "Second-order heads on Oxford-IIIT Pets",
        (*_heads("pets", "average", None, "cgnl"), *_heads("pets", "covariance", None, "cgnl")),
        "All rows are trained alike. Heads have 256 channels; eight groups. docs/protocol.md was written before.",
        diagnose=True,
        primary=_primary("pets"),
    ),
    "lsa64": _ours(
        "Signs: LSA64, tested on signers that were not learned from",
        (
            _lsa64("c2d"),
            *(_lsa64("c2d", block) for block in ("nl", "cgnl")),
            _lsa64("c2d", head="covariance"),
            _lsa64("i3d"),
            _lsa64("i3d", "cgnl"),
        ),
        "Signers 9 and 10 are the test. C2D, blocks and heads know no order of positions; only I3D's kernels see it.",
        diagnose=True,
        shuffled=True,
    ),
    "cityscapes": _ours(
        "Mask R-CNN on Cityscapes' instances, 512 x 256",
        tuple(_cityscapes(block) for block in (None, "cgnl", "nl")),
        "Pictures of a quarter of the official width and height: not comparable with published numbers.",
    ),
    "gestures": _ours(
        "Hand gestures: clips of 30 frames, five classes",
        (_gestures(), *(_gestures(block, n) for n in (1, 5) for block in ("nl", "cgnl"))),
        diagnose=True,
    ),
    "relation": _ours(
        "Relation: whether the discs at the two ends of a picture have the same colour",
        tuple(_variant("relation", "relation_r18", "R-18", block) for block in (None, "residual", "nl", "cgnl")),
        diagnose=True,
    ),
}
"""Tables by the name that ``cgnl reproduce`` takes."""
MEASURED = {
    "complexity": "Time and memory of GNL and CGNL against N and C, measured",
    "gated-field": "What one block computes between a linear stem and a linear head, measured (not in the paper)",
}
"""Tables without training runs, and their titles."""


def is_diagnosed(name: str) -> bool:
    """Whether runs of this row are diagnosed, in whichever table it stands."""
    return any(table.diagnoses(row) for table in TABLES.values() for row in table.rows if row.name == name)


def select_rows(table: str, patterns: str | None = None) -> dict[str, tuple[Row, ...]]:
    """Rows to run by table, for the name of a table or ``all``."""
    if table == "all" and patterns is None:
        return {name: t.rows for name, t in TABLES.items()}
    if table not in TABLES:
        raise ValueError(f"there is no table {table!r}{nearest(table, [*TABLES, *MEASURED, 'all'])}")
    return {table: TABLES[table].select(patterns)}
