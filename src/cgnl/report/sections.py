"""Compute what the sections of a report show; ``report.html.j2`` says how."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from markupsafe import Markup

from ..engine.classes import Scores, score_classes
from ..engine.config import to_dict, to_yaml
from ..engine.datasets import dataset_name
from ..engine.loggers import flatten
from ..engine.predictions import Prediction
from ..text import counted, format_duration
from .classes import draw_matrix, draw_reliability
from .curves import DETAIL, NOT_DRAWN, draw_curves, is_share, words
from .examples import draw_examples, make_thumbnails, open_samples
from .run import Run

PAIRS, EACH = 8, 6  # most confused pairs, and thumbnails of each
BAR = Markup('<div class="bar"><i style="width:{:.1f}%"></i></div>')

Runs = Sequence[Run]


class Table(NamedTuple):
    """A table whose first column names the rows."""

    head: Sequence[object]
    rows: Sequence[Sequence[object]]


class Confusion(NamedTuple):
    """Samples of one class that were taken for another."""

    label: str
    predicted: str
    predictions: list[Prediction]  # the most confident first
    of: int  # samples of the class


def collect(runs: Runs) -> dict[str, Any]:
    """Everything that the template shows."""
    content = {
        "runs": runs,
        "results": tabulate_results(runs),
        "tested_last": all(run.finished for run in runs),
        "tests_differ": tests_differ(runs),
        "curves": draw_curves(runs),
        "one_epoch": tabulate_one_epoch(runs),
        "classes": tabulate_classes(runs),
        "speed": tabulate_speed(runs),
        "settings": tabulate_settings(runs) if len(runs) > 1 else to_yaml(runs[0].config),
        "software": tabulate_software(runs),
    }
    return content | (collect_one(runs[0]) if len(runs) == 1 else {})


def collect_one(run: Run) -> dict[str, Any]:
    """What only the report of a single run shows."""
    confusions, checkpoint = find_confusions(run.predictions), run.folder / "last.ckpt"
    source, problem = open_samples(run.config) if run.predictions else (None, "")
    attention, verdict = [], None
    if checkpoint.exists() and (source or run.finished):
        attention, verdict = draw_examples(source, run.predictions, checkpoint)
    pairs = [(c, make_thumbnails(source, c.predictions[:EACH]) if source else []) for c in confusions[:PAIRS]]
    return {
        "about": describe_run(run),
        "tiles": make_tiles(run),
        "confusions": pairs,
        "wrong": sum(len(pair.predictions) for pair in confusions),
        "matrix": draw_matrix(run.predictions),
        "reliability": draw_reliability(run.predictions),
        "problem": problem,
        "attention": attention,
        "verdict": verdict,
    }


def describe_run(run: Run) -> str:
    """Name dataset, network, blocks, seed and state."""
    model = run.config.model
    block = f"{model.blocks} x {model.block}" if model.block else "no blocks"
    return f"{dataset_name(run.config.data)}, {model.name}, {block}, seed {run.config.seed}; {describe_state(run)}"


def describe_state(run: Run) -> str:
    """Say how far a run has come."""
    epochs = counted(len(run.rows), "epoch")
    return f"ended after {epochs}" if run.finished else f"not finished: {epochs} so far"


def make_tiles(run: Run) -> dict[str, str]:
    """The main numbers at a glance."""
    numbers = [(words(name), name, value) for name, value in run.results.items()]
    tiles = {title: format_number(n, v) for title, n, v in numbers if is_share(n) and not DETAIL.search(n)}
    if run.seconds is not None:
        tiles["in all"] = format_duration(run.seconds)
    if run.speed is not None:
        tiles["samples a second in training"] = f"{run.speed:,.1f}"
    return tiles


def format_number(name: str, value: float | None) -> str:
    """Format a number by its name."""
    if value is None:
        return ""
    if is_share(name):
        return f"{value:.2%}" if value >= 0 else "-"  # no object of that size
    if name == "seconds":
        return format_duration(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def tabulate_results(runs: Runs) -> Table | None:
    """Final numbers."""
    names = dict.fromkeys(name for run in runs for name in run.results)
    if not names:
        return None
    columns: list[tuple[str, str, dict[str, Any]]] = []
    for run in runs:
        title = run.title if len(runs) > 1 else "this run"
        columns.append((title, describe_state(run), run.results | {"seconds": run.seconds}))
    titles, states, numbers = zip(*columns, strict=True)
    rows = [["state", *states]]
    for name in dict.fromkeys((*names, "seconds")):
        cells = [format_number(name, column.get(name)) for column in numbers]
        rows.append([words(name), *cells])
    return Table(["", *titles], rows)


def tabulate_one_epoch(runs: Runs) -> Table | None:
    """Numbers of runs with a single epoch, which have no curves; those of the test are results."""
    short = [run for run in runs if len(run.rows) == 1]
    names = dict.fromkeys(name for run in short for name in run.rows[0] if name not in (*NOT_DRAWN, *run.results))
    rows = [[words(name), *(format_number(name, run.rows[0].get(name)) for run in short)] for name in names]
    return Table(["", *(run.title for run in short)], rows) if rows else None


def tests_differ(runs: Runs) -> bool:
    """Whether runs were tested on other numbers of samples, or on files of other names in whichever folder."""
    counts = {run.results["test_count"] for run in runs if "test_count" in run.results}
    named = [sorted((str(p.label), PurePath(p.name).name) for p in run.predictions) for run in runs if run.predictions]
    return len(counts) > 1 or any(one != named[0] for one in named)


def find_confusions(predictions: Sequence[Prediction]) -> list[Confusion]:
    """Pairs of classes, the most frequently confused first."""
    counts, pairs = Counter(str(p.label) for p in predictions), defaultdict(list)
    for p in sorted(predictions, key=lambda p: -p.score):
        if not p.right:
            pairs[str(p.label), str(p.predicted)].append(p)
    found = [Confusion(label, predicted, wrong, counts[label]) for (label, predicted), wrong in pairs.items()]
    return sorted(found, key=lambda c: (-len(c.predictions), -len(c.predictions) / c.of, c.label, c.predicted))


def tabulate_classes(runs: Runs) -> Table | None:
    """Precision, recall and F1 of each class, the worst first; for several runs accuracies, the largest difference
    first."""
    known = [run for run in runs if run.predictions]
    if not known:
        return None
    found = [score_classes(run.predictions) for run in known]
    if len(runs) == 1:
        ranked = sorted(found[0].items(), key=lambda item: (item[1].f1, -item[1].support, str(item[0])))
        return Table(["", "", "F1", "precision", "recall", "samples"], [[name, *_cells(s)] for name, s in ranked])
    shares = [{str(name): scores.recall for name, scores in one.items() if scores.support} for one in found]
    spreads = {}
    for name in {name for one in shares for name in one}:
        values = [one[name] for one in shares if name in one]
        spreads[name] = max(values) - min(values) if len(values) > 1 else -1  # -1: nothing to compare
    rows = []
    for name in sorted(spreads, key=lambda name: (-spreads[name], name)):
        cells = [f"{one[name]:.1%}" if name in one else "" for one in shares]
        rows.append([name, *cells, f"{100 * spreads[name]:.1f}" if spreads[name] >= 0 else ""])
    return Table(["", *(run.title for run in known), "spread"], rows)


def _cells(scores: Scores) -> list[object]:
    """One class in a table; a precision of no predictions, or a recall of no samples, is not shown."""
    precision = f"{scores.precision:.1%}" if scores.predicted else ""
    recall = f"{scores.recall:.1%}" if scores.support else ""
    return [BAR.format(100 * scores.f1), f"{scores.f1:.1%}", precision, recall, scores.support]


def tabulate_speed(runs: Runs) -> Table | None:
    """How fast training was, and on what."""
    rows = []
    for run in runs:
        if run.speeds:
            gpus = ", ".join(map(str, run.environment.get("gpus", [])))
            machine = gpus or f"{run.environment.get('cores', '?')} CPU cores"
            spread, config = f"{min(run.speeds):,.1f} to {max(run.speeds):,.1f}", run.config
            rows.append([run.title, f"{run.speed:,.1f}", spread, config.world, config.precision, machine])
    head = ["", "samples a second, median", "over the epochs", "ranks", "precision", "machine"]
    return Table(head, rows) if rows else None


def tabulate_settings(runs: Runs) -> Table | None:
    """The settings in which runs differ."""
    flat = [{n: _spell(value) for n, value in flatten(to_dict(run.config)).items()} for run in runs]
    names = dict.fromkeys(name for one in flat for name in one)
    rows = [[name, *(one.get(name, "") for one in flat)] for name in names if name != "name"]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table(["", *(run.title for run in runs)], rows) if rows else None


def tabulate_software(runs: Runs) -> Table | None:
    """What the runs ran in."""
    rows = []
    for run in runs:
        found = run.environment
        packages = ", ".join(f"{name} {version}" for name, version in found.get("packages", {}).items() if version)
        if found:
            software = f"Python {found.get('python')}, {packages}"
            rows.append([run.title, software, found.get("commit") or "", found.get("system", "")])
    return Table(["", "software", "commit", "system"], rows) if rows else None


def _spell(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return "" if value in (None, {}) else str(value)
