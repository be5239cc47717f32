"""Write a summary as Markdown, CSV and a figure, and fill tables into documents."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..atomic_io import save_figure, write_text
from ..engine.datasets import dataset_name
from ..engine.messages import NAMES
from ..engine.settings import SYNTHETIC, Config
from ..extras import need
from ..text import counted, markdown_table
from .plan import describe
from .statistics import Discordance, Estimate, find, holm, verdict
from .summary import NOT_YET, Line, Pair, Replacement, Summary, summarize
from .tables import TABLES, reported_gain

NOTES = (
    "Measured: mean ± standard deviation of a seed [95 % interval of the mean, Student's t]; the number after the last "
    "epoch. Differences are paired by seed; p of the difference is the paired t test's, and says whether other seeds "
    "would show it; p of the samples is McNemar's, with a sample as a cluster where there are several seeds, and says "
    "whether other test samples would. No p is corrected for how many there are. A network that is asked about its "
    "attention is tested anew, without fused kernels: in half precision a few samples may then fall on the other side."
)
GREY, BLUE, RED = "#8c8c8c", "#2b6cb0", "#c44e52"


def write(summary: Summary, folder: Path) -> list[Path]:
    """Write NAME.md, NAME.csv, NAME_pairs.csv and, if there are results, NAME.png."""
    name = summary.name
    files = {f"{name}.md": page(summary), f"{name}.csv": rows_csv(summary), f"{name}_pairs.csv": pairs_csv(summary)}
    for file_name, text in files.items():
        write_text(folder / file_name, text)
    paths = [folder / file_name for file_name in files]
    if any(line.seeds for line in summary.lines):
        paths.append(folder / f"{name}.png")
        save_figure(draw(summary), paths[-1], dpi=160)
    return paths


def page(summary: Summary) -> str:
    """The table with its title and notes."""
    return f"# {summary.table.title}\n\n{markdown(summary)}\n{NOTES}\n"


def markdown(summary: Summary, brief: bool = False) -> str:
    """Protocol, rows and findings; unless ``brief``, also pairs, diagnoses, and rows that wait for their runs."""
    table, lines = summary.table, summary.lines
    protocols = dict.fromkeys(f"{describe(line.config)}." for line in lines if line.config)
    note = f"{'Not a table of the paper. ' if table.ours else ''}{table.note}".strip()
    parts = [note, *protocols, rows_markdown(summary, brief)]
    if any(_is_synthetic(line.config) and not _is_synthetic(line.row.config()) for line in lines):
        parts.append("These are synthetic images and smaller networks: only the way of the experiment is the paper's.")
    parts.append(_bullets(_list_missing(lines)))
    parts.append(_bullets(findings(summary) if table.primary else sentences(summary)))
    if not brief:
        parts += [pairs_markdown(summary.pairs), replacements_markdown(summary.replacements)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _is_synthetic(config: Config | None) -> bool:
    return config is not None and dataset_name(config.data) in SYNTHETIC


def _list_missing(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        if line.reason not in ("", NOT_YET):
            yield f"{line.row.label}: {'a run failed' if line.seeds else 'not run'}: {line.reason}"
    if waiting := [line.row.label for line in lines if line.reason == NOT_YET]:
        yield f"not run yet: {'; '.join(waiting)}"


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"* {sentence}" for sentence in sentences)


def rows_markdown(summary: Summary, brief: bool = False) -> str:
    """The paper's numbers and ours, row by row; if ``brief``, of rows that have been run."""
    lines = [line for line in summary.lines if line.seeds or not brief] or summary.lines
    reported = [name for name in NAMES if any(name in line.row.reported for line in lines)]
    metrics = [name for name in NAMES if name in reported or any(_is_informative(line, name) for line in lines)]
    head = ["", *(f"{NAMES[n]}, paper" for n in reported), *(f"{NAMES[n]}, measured" for n in metrics), "seeds"]
    rows = []
    for line in lines:
        paper = (f"{line.row.reported[n]:.2f}" if n in line.row.reported else "-" for n in reported)
        measured = (_mean(line.numbers[n]) if n in line.numbers else "-" for n in metrics)
        rows.append([line.row.label, *paper, *measured, str(len(line.seeds))])
    return markdown_table(head, rows)


def _is_informative(line: Line, metric: str) -> bool:
    """The top-5 of five classes is always right."""
    return metric in line.numbers and line.numbers[metric].mean < 100


def pairs_markdown(pairs: Sequence[Pair]) -> str:
    """Differences with their tests, pair by pair."""
    rows = []
    for pair in pairs:
        paper = "-" if pair.paper is None else f"{pair.paper:+.2f}"
        samples = [_flips(pair.samples), _p(pair.samples.p)] if pair.samples else ["-", "-"]
        d = pair.difference
        rows.append([pair.label, paper, _change(d), _p(d.p), *samples, str(d.count)])
    return (
        markdown_table(["pair", "paper", "difference", "p", "samples won / lost", "p", "seeds"], rows) if rows else ""
    )


def replacements_markdown(replacements: Sequence[Replacement]) -> str:
    """Accuracy with the attention replaced, for each diagnosed row."""
    rows = []
    for entry in replacements:
        numbers, attention = entry.numbers, entry.attention
        if "added" in numbers:
            attention += f", adding {numbers['added'].mean:.3g} % to its input"
        if "added_median" in numbers:
            attention += f" ({numbers['added_median'].mean:.3g} % to that of the median sample)"
        change = [_change(numbers["change"]), _flips(entry)] if entry.lost or entry.won else ["", ""]
        top1 = numbers["top1"]
        rows.append([entry.row.label, attention, f"{top1.mean:.2f}", *change, str(top1.count)])
    return markdown_table(["", "attention", "top-1", "change", "samples won / lost", "seeds"], rows) if rows else ""


def sentences(summary: Summary) -> list[str]:
    """What each row gains over the first one with its network."""
    lines = []
    for pair in summary.pairs:
        if pair.before not in summary.first.values():
            continue
        d = pair.difference
        side = "above" if d.mean >= 0 else "below"
        known = "" if d.half_width is None else f" (95 % interval {d.low:+.2f} to {d.high:+.2f}, {_p_is(d.p)})"
        gain = f"{abs(d.mean):.2f} points {side} {pair.before.label}"
        lines.append(f"{pair.after.label}: {gain}{known}, {counted(d.count, 'seed')}.")
    return lines


def findings(summary: Summary) -> list[str]:
    """Verdicts on the primary comparisons, then on others against the same rows."""
    pairs = {pair.names: pair for pair in summary.pairs}
    waiting = {line.row.name for line in summary.lines if line.reason == NOT_YET}
    labels = {row.name: row.label for row in summary.table.rows}
    lines = []
    primary = summary.table.primary
    for names, looks in primary.items():
        if waiting.intersection(names):  # listed as such already
            continue
        pair = pairs.get(names)
        found = find(pair.differences, looks, pair.paper) if pair else None
        if pair is None or found is None:
            lines.append(f"{labels[names[1]]} against {labels[names[0]]}: fewer than two seeds")
            continue
        paper = "" if pair.paper is None else f"; the paper {pair.paper:+.2f}"
        until = "" if found.look else ", between looks"
        futile = ". The first look leaves no room for half a point" if found.futile else ""
        lines.append(
            f"**{pair.label}: {found.word}** ({pair.difference.mean:+.2f} points, {100 * found.level:g} % interval "
            f"{found.low:+.2f} to {found.high:+.2f}, {_p_is(pair.difference.p)}{paper}; "
            f"{counted(pair.difference.count, 'seed')}{until}{_over_samples(pair)}){futile}"
        )
    plain = {before for before, _ in primary}
    others = [p for n, p in pairs.items() if n[0] in plain and n not in primary and p.difference.count > 1]
    for pair, p in zip(others, holm([pair.difference.p or 0.0 for pair in others]), strict=True):
        d, word = pair.difference, verdict(pair.differences, 0.05)
        if p >= 0.05 and word != "equivalent":
            word = "undecided"
        lines.append(
            f"{pair.label}: {word} ({d.mean:+.2f} points, 95 % interval {d.low:+.2f} to {d.high:+.2f}, "
            f"{_p_is(p)} after Holm{_over_samples(pair)})"
        )
    return lines


def _over_samples(pair: Pair) -> str:
    return f"; ± {pair.samples.half_width:.2f} over test samples" if pair.samples else ""


def rows_csv(summary: Summary) -> str:
    """A line for each row and metric."""
    head = ["row", "label", "number", "paper", "mean", "deviation", "half_interval", "seeds", "by_seed", "reason"]
    rows = []
    for line in summary.lines:
        row, reported = line.row, line.row.reported
        for metric in dict.fromkeys([*reported, *line.numbers]):
            e = line.numbers.get(metric)
            measured = (e.mean, e.deviation, e.half_width, e.count) if e else (None, None, None, 0)
            by_seed = " ".join(f"{n}:{seed.numbers[metric]:.4f}" for n, seed in line.seeds.items())
            rows.append([row.name, row.label, metric, reported.get(metric), *_round(*measured), by_seed, line.reason])
    return _csv(head, rows)


def pairs_csv(summary: Summary) -> str:
    """A line for each pair."""
    head = ["before", "after", "difference", "deviation", "half_interval", "seeds", "p", "won", "lost", "p_samples"]
    rows = []
    for pair in summary.pairs:
        d, s = pair.difference, pair.samples
        numbers = _round(d.mean, d.deviation, d.half_width, d.count, d.p, *((s.won, s.lost, s.p) if s else (None,) * 3))
        rows.append([*pair.names, *numbers])
    return _csv(head, rows)


def draw(summary: Summary) -> Any:
    """Draw seeds, means with intervals and the paper's numbers; beside them the gains over the first row."""
    lines, metric = summary.lines[::-1], summary.metric  # the first on top
    figure = need("matplotlib.figure", "reproduce").Figure(figsize=(9.6, 1.4 + 0.36 * len(lines)), layout="constrained")
    numbers, gains = figure.subplots(1, 2, sharey=True)
    pairs = {pair.names: pair.difference for pair in summary.pairs}
    for y, line in enumerate(lines):
        values = [seed.numbers[metric] for seed in line.seeds.values()]
        numbers.plot(values, [y] * len(values), "o", color=GREY, markersize=3, alpha=0.7, zorder=1)
        _draw_mean(numbers, y, line.numbers.get(metric), line.row.reported.get(metric))
        first = summary.first[line.network]
        if line.row is not first:
            _draw_mean(gains, y, pairs.get((first.name, line.row.name)), reported_gain(first, line.row, metric))
    gains.plot([], [], "o", color=GREY, markersize=3, label="a seed")
    gains.plot([], [], "o", color=BLUE, label="mean, 95 % interval")
    if any(metric in line.row.reported for line in lines):
        gains.plot([], [], "D", color=RED, fillstyle="none", label="paper")
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


def _draw_mean(axis: Any, y: int, mean: Estimate | None, paper: float | None) -> None:
    if mean is not None:
        axis.errorbar(mean.mean, y, xerr=mean.half_width, fmt="o", color=BLUE, capsize=3, zorder=2)
    if paper is not None:
        axis.plot(paper, y, "D", color=RED, fillstyle="none", zorder=3)


MARK = re.compile(
    r"(<!-- cgnl reproduce (?:rows of (\S+)|(\S+) in (\S+?)(, brief)?) -->\n).*?(<!-- end -->)", re.DOTALL
)


def fill(document: Path) -> int:
    """Write tables between a document's marks, ``<!-- cgnl reproduce TABLE in FOLDER -->`` and ``<!-- end -->``.

    ``<!-- cgnl reproduce rows of FILE.csv -->`` takes what other commands measured. Returns the number of tables.
    """

    def table(mark: re.Match[str]) -> str:
        begin, file, name, folder, brief, end = mark.groups()
        if file:
            return f"{begin}{_read_rows(Path(file))}\n{end}"
        if name not in TABLES:
            raise ValueError(f"{document}: there is no table {name!r}")
        if not Path(folder).is_dir():
            raise ValueError(f"{document}: there is no folder {folder}")
        text = markdown(summarize(name, TABLES[name], Path(folder)), brief=bool(brief))
        return f"{begin}{text.strip()}\n{end}"

    text, count = MARK.subn(table, document.read_text())
    write_text(document, text)
    return count


def _read_rows(path: Path) -> str:
    """A CSV file as a Markdown table."""
    with path.open(newline="") as file:
        rows = [[cell.replace("|", "\\|") for cell in row] for row in csv.reader(file)]
    if not rows:
        raise ValueError(f"{path} is empty")
    return markdown_table(rows[0], rows[1:])


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def _mean(e: Estimate) -> str:
    return f"{e.mean:.2f}" if e.half_width is None else f"{e.mean:.2f} ± {e.deviation:.2f} [{e.low:.2f}, {e.high:.2f}]"


def _change(e: Estimate) -> str:
    return f"{e.mean:+.2f}" if e.half_width is None else f"{e.mean:+.2f} [{e.low:+.2f}, {e.high:+.2f}]"


def _flips(samples: Discordance | Replacement) -> str:
    return f"+{samples.won:,} / -{samples.lost:,}"


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _p_is(value: float | None) -> str:
    return f"p {_p(value)}" if _p(value).startswith("<") else f"p = {_p(value)}"


def _round(*values: float | None) -> list[float | None]:
    """Six significant digits."""
    return [float(f"{value:.6g}") if isinstance(value, float) else value for value in values]
