"""A filled table as Markdown, CSV and a picture, and within documents."""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..engine.atomic_io import whole_file, write_text
from ..engine.config import SYNTHETIC
from ..engine.datasets import dataset_name
from ..engine.messages import NAMES
from ..extras import need
from ..spelling import counted
from .markdown import grid
from .scales import words
from .statistics import Estimate
from .summary import Line, Pair, Replacement, Summary, summarize
from .tables import TABLES, gain
from .verdict import find, holm, verdict

NOTES = (
    "Measured: mean ± standard deviation of a seed [95 % interval of the mean, Student's t]; the number after the last "
    "epoch. Differences are paired by seed; p of the difference is the paired t test's, and says whether other seeds "
    "would show it; p of the samples is McNemar's, with a sample as a cluster where there are several seeds, and says "
    "whether other test samples would. No p is corrected for how many there are. A network that is asked about its "
    "attention is tested anew, without fused kernels: in half precision a few samples may then fall on the other side."
)


def write(summary: Summary, folder: Path) -> list[Path]:
    """NAME.md, NAME.csv, NAME_pairs.csv and, if anything was measured, NAME.png."""
    name = summary.name
    pages = {f"{name}.md": page(summary), f"{name}.csv": rows_csv(summary), f"{name}_pairs.csv": pairs_csv(summary)}
    for file_name, text in pages.items():
        write_text(folder / file_name, text)
    paths = [folder / file_name for file_name in pages]
    if any(line.seeds for line in summary.lines):
        figure = draw(summary)
        with whole_file(folder / f"{name}.png") as file:
            figure.savefig(file, dpi=160, format="png")
        paths.append(folder / f"{name}.png")
    return paths


def page(summary: Summary) -> str:
    """What came out, and how to read it."""
    return f"# {summary.table.title}\n\n{markdown(summary)}\n{NOTES}\n"


def markdown(summary: Summary, brief: bool = False) -> str:
    """What came out; in brief, without the pairs, and without whether attention matters."""
    table = summary.table
    ours = "Not a table of the paper. " if table.ours else ""
    protocols = {words(line.config): line for line in summary.lines if line.config}
    parts = [f"{ours}{table.note}".strip(), *(f"{protocol}." for protocol in protocols), rows_markdown(summary)]
    if any(_is_drawn_instead(line) for line in summary.lines):
        parts.append("These are drawn pictures and smaller networks: only the way of the experiment is the paper's.")
    if missing := [line for line in summary.lines if line.reason]:
        parts.append("\n".join(f"* {line.row.label}: {_not_run(line)}" for line in missing))
    said = findings(summary) if table.primary else sentences(summary)
    parts.append("\n".join(f"* {sentence}" for sentence in said))
    if not brief:
        parts += [pairs_markdown(summary.pairs), replacements_markdown(summary.replacements)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _is_drawn_instead(line: Line) -> bool:
    """Whether the samples are drawn, and those of the table are not."""
    own, seen = (c and dataset_name(c.data) in SYNTHETIC for c in (line.row.config(), line.config))
    return bool(seen and not own)


def _not_run(line: Line) -> str:
    return f"not run: {line.reason}" if not line.seeds else f"a run failed: {line.reason}"


def rows_markdown(summary: Summary) -> str:
    """A row for each row: the paper's numbers, and ours."""
    metrics = [name for name in NAMES if any(_says(name, line) for line in summary.lines)]
    told = [name for name in metrics if any(name in line.row.reported for line in summary.lines)]
    head = ["", *(f"{NAMES[name]}, paper" for name in told), *(f"{NAMES[name]}, measured" for name in metrics), "seeds"]
    rows = []
    for line in summary.lines:
        paper = [_number(line.row.reported.get(name)) for name in told]
        measured = [_estimate(line.numbers.get(name)) for name in metrics]
        rows.append([line.row.label, *paper, *measured, str(len(line.seeds))])
    return grid(head, rows)


def _says(metric: str, line: Line) -> bool:
    """Whether there is something to say about a row: the fifth best of five classes is always right."""
    measured = line.numbers.get(metric)
    return metric in line.row.reported or (measured is not None and measured.mean < 100)


def pairs_markdown(pairs: Sequence[Pair]) -> str:
    """A row for each pair."""
    rows = [
        [
            f"{pair.after.label} against {pair.before.label}",
            "-" if pair.paper is None else f"{pair.paper:+.2f}",
            f"{pair.difference.mean:+.2f}{_interval(pair.difference, sign='+')}",
            _p(pair.difference.p),
            *((f"+{pair.sides.won:,} / -{pair.sides.lost:,}", _p(pair.sides.p)) if pair.sides else ("-", "-")),
            str(pair.difference.count),
        ]
        for pair in pairs
    ]
    return grid(["pair", "paper", "difference", "p", "samples won / lost", "p", "seeds"], rows) if rows else ""


def replacements_markdown(replacements: Sequence[Replacement]) -> str:
    """Whether the attention matters, for each row that was diagnosed."""
    rows = [
        [
            entry.row.label,
            f"{entry.attention}{_adding(entry)}",
            f"{entry.top1.mean:.2f}",
            f"{entry.change.mean:+.2f}{_interval(entry.change, sign='+')}" if entry.lost or entry.won else "",
            f"+{entry.won:,} / -{entry.lost:,}" if entry.lost or entry.won else "",
            str(entry.top1.count),
        ]
        for entry in replacements
    ]
    return grid(["", "attention", "top-1", "change", "samples won / lost", "seeds"], rows) if rows else ""


def _adding(entry: Replacement) -> str:
    """What a block adds, where that was measured."""
    if entry.added is None:
        return ""
    median = f" ({entry.added_median.mean:.3g} % to that of the median sample)" if entry.added_median else ""
    return f", adding {entry.added.mean:.3g} % to its input{median}"


def sentences(summary: Summary) -> list[str]:
    """What each row gains over the first of its network."""
    said, first = [], {line.group: line.row for line in reversed(summary.lines)}
    for pair in summary.pairs:
        if pair.before in first.values():
            d = pair.difference
            verb = "above" if d.mean >= 0 else "below"
            how = (
                ""
                if d.half_width is None
                else f" (95 % interval {d.mean - d.half_width:+.2f} to {d.mean + d.half_width:+.2f}, p = {_p(d.p)})"
            )
            seeds = counted(d.count, "seed")
            said.append(f"{pair.after.label}: {abs(d.mean):.2f} points {verb} {pair.before.label}{how}, {seeds}.")
    return said


def findings(summary: Summary) -> list[str]:
    """What the comparisons that a table was made for come to, and the others against the same row."""
    pairs = {(pair.before.name, pair.after.name): pair for pair in summary.pairs}
    wanted = {(c.before, c.after): c for c in summary.table.primary}
    said = []
    for names, comparison in wanted.items():
        pair = pairs.get(names)
        found = find(pair.each, comparison.looks, pair.paper) if pair else None
        if pair is None or found is None:
            said.append(f"{names[1]} against {names[0]}: fewer than two seeds")
            continue
        paper = "" if pair.paper is None else f"; the paper {pair.paper:+.2f}"
        until = "" if found.look else ", between looks"
        futile = ". The first look leaves no room for half a point" if found.futile else ""
        said.append(
            f"**{pair.after.label} against {pair.before.label}: {found.word}** ({pair.difference.mean:+.2f} points, "
            f"{100 * found.level:g} % interval {found.low:+.2f} to {found.high:+.2f}, p = {_p(found.p)}{paper}; "
            f"{counted(found.seeds, 'seed')}{until}{_by_sample(pair)}){futile}"
        )
    plain = {before for before, _ in wanted}
    others = [p for n, p in pairs.items() if n[0] in plain and n not in wanted and p.difference.p is not None]
    for pair, p in zip(others, holm([float(pair.difference.p or 0) for pair in others]), strict=True):
        apart = p < 0.05 or verdict(pair.each, 0.05) == "equivalent"
        word = verdict(pair.each, 0.05) if apart else "undecided"
        low, high = (pair.difference.mean + sign * (pair.difference.half_width or 0) for sign in (-1, 1))
        said.append(
            f"{pair.after.label} against {pair.before.label}: {word} ({pair.difference.mean:+.2f} points, 95 % "
            f"interval {low:+.2f} to {high:+.2f}, p = {_p(p)} after Holm{_by_sample(pair)})"
        )
    return said


def _by_sample(pair: Pair) -> str:
    """How well the difference is known where other test samples might have been taken."""
    return "" if pair.over_samples is None else f"; ± {pair.over_samples[1]:.2f} over test samples"


def rows_csv(summary: Summary) -> str:
    """A line for each row and number."""
    lines = []
    for line in summary.lines:
        for metric in dict.fromkeys([*line.row.reported, *line.numbers]):
            e = line.numbers.get(metric)
            measured = (e.mean, e.deviation, e.half_width, e.count) if e else (None, None, None, 0)
            values = [seed.numbers.get(metric) for seed in line.seeds.values()]
            each = " ".join(
                f"{n}:{value:.4f}" for n, value in zip(line.seeds, values, strict=True) if value is not None
            )
            reported = line.row.reported.get(metric)
            lines.append([line.row.name, line.row.label, metric, reported, *map(_round, measured), each, line.reason])
    head = ["row", "label", "number", "paper", "mean", "deviation", "half_interval", "seeds", "by_seed", "reason"]
    return _csv(head, lines)


def pairs_csv(summary: Summary) -> str:
    """A line for each pair."""
    lines = []
    for pair in summary.pairs:
        d, sides = pair.difference, pair.sides
        changed = (sides.won, sides.lost, sides.p) if sides else (None, None, None)
        lines.append(
            [
                pair.before.name,
                pair.after.name,
                *map(_round, (d.mean, d.deviation, d.half_width, d.count, d.p, *changed)),
            ]
        )
    head = ["before", "after", "difference", "deviation", "half_interval", "seeds", "p", "won", "lost", "p_samples"]
    return _csv(head, lines)


def draw(summary: Summary) -> Any:
    """Each seed as a dot, the mean with its interval, and the paper's number; beside it what each row gains."""
    figures = need("matplotlib.figure", "reproduce")
    lines, metric = summary.lines[::-1], summary.metric  # the first on top
    figure = figures.Figure(figsize=(9.6, 1.4 + 0.36 * len(lines)), layout="constrained")
    numbers, gains = figure.subplots(1, 2, sharey=True)
    first = {line.group: line for line in lines}  # the last that is met is the first
    pairs = {(pair.before.name, pair.after.name): pair for pair in summary.pairs}
    for place, line in enumerate(lines):
        values = [seed.numbers[metric] for seed in line.seeds.values()]
        _dots(numbers, place, values, line.numbers.get(metric), line.row.reported.get(metric))
        base = first[line.group].row
        if line.row is not base:
            pair = pairs.get((base.name, line.row.name))
            _dots(gains, place, (), pair and pair.difference, gain(base, line.row, metric))
    styles: dict[str, dict[str, Any]] = {
        "a seed": {"marker": "o", "color": "#8c8c8c", "markersize": 3},
        "mean, 95 % interval": {"marker": "o", "color": "#2b6cb0"},
    }
    if any(metric in line.row.reported for line in lines):
        styles["paper"] = {"marker": "D", "color": "#c44e52", "fillstyle": "none"}
    for label, style in styles.items():
        gains.plot([], [], linestyle="none", label=label, **style)
    gains.axvline(0, color="#dddddd", zorder=0)
    numbers.set_yticks(range(len(lines)), [line.row.label for line in lines])
    numbers.set_ylim(-0.6, len(lines) - 0.4)
    numbers.set_xlabel(f"{NAMES[metric]}, %")
    gains.set_xlabel("points above the first of its network")
    gains.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    for axis in (numbers, gains):
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(summary.table.title, fontsize=9)
    return figure


def _dots(axis: Any, place: int, values: Sequence[float], mean: Estimate | None, paper: float | None) -> None:
    """What is known of a row, in its line of a picture."""
    axis.plot(values, [place] * len(values), "o", color="#8c8c8c", markersize=3, alpha=0.7, zorder=1)
    if mean is not None:
        axis.errorbar(mean.mean, place, xerr=mean.half_width, fmt="o", color="#2b6cb0", capsize=3, zorder=2)
    if paper is not None:
        axis.plot(paper, place, "D", color="#c44e52", fillstyle="none", zorder=3)


MARK = re.compile(
    r"(<!-- cgnl reproduce (?:rows of (\S+)|(\S+) in (\S+?)(, brief)?) -->\n).*?(<!-- end -->)", re.DOTALL
)


def fill(document: Path) -> int:
    """Put tables between a document's marks, ``<!-- cgnl reproduce TABLE in FOLDER -->`` and ``<!-- end -->``.

    ``<!-- cgnl reproduce rows of FILE.csv -->`` is for what other commands have measured. Returns how many there were.
    """

    def filled(mark: re.Match[str]) -> str:
        begin, file, name, folder, brief, end = mark.groups()
        if file:
            return f"{begin}{_rows_of(Path(file))}\n{end}"
        if name not in TABLES:
            raise ValueError(f"{document}: there is no table {name!r}")
        if not Path(folder).is_dir():
            raise ValueError(f"{document}: there is no folder {folder}")
        summary = summarize(name, TABLES[name], Path(folder))
        text = markdown(summary, brief=bool(brief))
        return f"{begin}{text.strip()}\n{end}"

    text, count = MARK.subn(filled, document.read_text())
    write_text(document, text)
    return count


def _rows_of(path: Path) -> str:
    """A CSV file as a table."""
    with path.open(newline="") as file:
        rows = [[cell.replace("|", "\\|") for cell in row] for row in csv.reader(file)]
    if not rows:
        raise ValueError(f"{path} is empty")
    return grid(rows[0], rows[1:])


def _csv(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(lines)
    return text.getvalue()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _estimate(e: Estimate | None) -> str:
    if e is None:
        return "-"
    return f"{e.mean:.2f}" + ("" if e.deviation is None else f" ± {e.deviation:.2f}{_interval(e)}")


def _interval(e: Estimate, sign: str = "") -> str:
    if e.half_width is None:
        return ""
    return f" [{e.mean - e.half_width:{sign}.2f}, {e.mean + e.half_width:{sign}.2f}]"


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _round(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) or not math.isfinite(value) else float(f"{value:.6g}")
