"""The sections of a report. Each is a function of the runs that says what it knows, or ``None`` where that is nothing.

A task with other results than classes adds functions of its own to ``SECTIONS``.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePath

from ..engine.config import plain, to_yaml
from ..engine.datasets import dataset_name
from .classes import confusions, per_class
from .curves import DETAIL, draw_curves, is_share, words
from .examples import chosen
from .html import Markup, bar, join, table, tag
from .run import Run

MATRIX, LISTED, PAIRS, EACH = 20, 25, 8, 6
"""Classes of a whole matrix, lines before the rest is folded, confused pairs, and thumbnails of each."""

Runs = Sequence[Run]


def section(title: str, *content: object) -> Markup:
    return tag("section", tag("h2", title), *content)


def shown(name: str, value: float | None) -> str:
    """A number by what it is called."""
    if value is None:
        return ""
    if is_share(name):
        return f"{value:.2%}" if value >= 0 else "-"  # no object of that size
    if name == "seconds":
        return duration(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def is_main(name: str) -> bool:
    return is_share(name) and not DETAIL.search(name)


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "-"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def state(run: Run) -> str:
    """How far a run has come."""
    epochs = f"{len(run.rows)} epoch{'s' if len(run.rows) != 1 else ''}"
    return f"ended after {epochs}" if run.finished else f"not finished: {epochs} so far"


def heading(runs: Runs) -> Markup:
    """What it is, and its numbers at a glance."""
    if len(runs) > 1:
        return tag("header", tag("h1", f"{len(runs)} runs: {', '.join(run.title for run in runs)}"))
    run, config = runs[0], runs[0].config
    block = f"{config.model.blocks} x {config.model.block}" if config.model.block else "no blocks"
    about = f"{dataset_name(config.data)}, {config.model.name}, {block}, seed {config.seed}; {state(run)}"
    tiles = {words(name): shown(name, value) for name, value in run.results.items() if is_main(name)}
    if run.seconds is not None:
        tiles["in all"] = duration(run.seconds)
    if run.speed is not None:
        tiles["samples a second in training"] = f"{run.speed:,.1f}"
    divs = [tag("div", tag("b", value), tag("span", name)) for name, value in tiles.items()]
    return tag("header", tag("h1", run.title), tag("p", about, class_="faint"), tag("div", divs, class_="tiles"))


def numbers(runs: Runs) -> Markup | None:
    """Final numbers."""
    names = dict.fromkeys(name for run in runs for name in run.results)
    if not names:
        return section("Results", tag("p", "No test has been made yet."))
    names |= dict.fromkeys(["seconds"])
    head = ["", *(run.title if len(runs) > 1 else "this run" for run in runs)]
    lines: list[list[object]] = [["state", *map(state, runs)]]
    for name in names:
        values = (run.seconds if name == "seconds" else run.results.get(name) for run in runs)
        lines.append([words(name), *(shown(name, value) for value in values)])
    other = tag("p", "The runs were tested on different samples.", class_="faint") if tests_differ(runs) else None
    tested = "Tests are of last.ckpt, the network after the last epoch."
    last = tag("p", tested, class_="faint") if all(run.finished for run in runs) else None
    return section("Results", table(head, lines), last, other)


def tests_differ(runs: Runs) -> bool:
    """Whether runs were tested on different samples: on as many, and files of the same names wherever they were."""
    counts = {run.results["test_count"] for run in runs if "test_count" in run.results}
    named = [sorted((str(a.label), PurePath(a.name).name) for a in run.predictions) for run in runs if run.predictions]
    return len(counts) > 1 or any(one != named[0] for one in named)


def curves(runs: Runs) -> Markup | None:
    drawn = draw_curves(runs)
    return section("Curves", tag("figure", drawn)) if drawn else None


def classes(runs: Runs) -> Markup | None:
    """Accuracy of each class, the worst first; of several runs, those first that differ most."""
    known = [run for run in runs if run.predictions]
    if not known:
        return None
    found = [{c.name: c for c in per_class(run.predictions)} for run in known]
    if len(runs) == 1:
        lines = [[c.name, bar(c.share), f"{c.share:.1%}", f"{c.right} of {c.of}"] for c in found[0].values()]
        return section("Accuracy of each class", folded(["", "", "top-1", "samples"], lines))
    names = dict.fromkeys(name for one in found for name in one)
    shares = {name: [one[name].share for one in found if name in one] for name in names}
    spread = {name: max(there) - min(there) for name, there in shares.items() if len(there) > 1}
    lines = [
        [
            name,
            *(f"{one[name].share:.1%}" if name in one else "" for one in found),
            f"{100 * spread[name]:.1f}" if name in spread else "",
        ]
        for name in sorted(names, key=lambda name: (-spread.get(name, -1), name))
    ]
    return section("Accuracy of each class", folded(["", *(run.title for run in known), "spread"], lines))


def folded(head: Sequence[object], lines: Sequence[Sequence[object]]) -> Markup:
    """A table whose later lines are folded away."""
    first, rest = table(head, lines[:LISTED]), lines[LISTED:]
    return join(first, tag("details", tag("summary", f"{len(rest):,} more"), table(head, rest)) if rest else None)


def confused(runs: Runs) -> Markup | None:
    """Which classes are taken for which, with some of the samples."""
    if len(runs) > 1 or not runs[0].predictions:
        return None
    predictions, pairs = runs[0].predictions, confusions(runs[0].predictions)
    if not pairs:
        return section("Confusion", tag("p", f"All of the {len(predictions):,} test samples were named correctly."))
    samples, content = runs[0].samples, []
    for pair in pairs[:PAIRS]:
        count = f"{len(pair.predictions)} of {pair.of}"
        content += [
            tag("h3", f"{pair.label} taken for {pair.predicted}: {count}"),
            samples.thumbnails(pair.predictions[:EACH]),
        ]
    if samples.problem:
        content.append(tag("p", f"The samples cannot be shown: {samples.problem}", class_="faint"))
    wrong = sum(len(pair.predictions) for pair in pairs)
    words = f"{wrong:,} of {len(predictions):,} test samples were taken for another class. The pairs that come up most:"
    return section("Confusion", tag("p", words), content, matrix(runs[0]))


def matrix(run: Run) -> Markup | None:
    """Every class against every other, where there are few."""
    found = per_class(run.predictions)
    names = sorted({c.name for c in found} | {str(a.predicted) for a in run.predictions})
    if len(names) > MATRIX:
        return None
    counts = Counter((str(a.label), str(a.predicted)) for a in run.predictions)
    of = {c.name: c.of for c in found}

    def cell(row: str, column: str) -> Markup:
        count = counts[row, column]
        share = f"--share:{60 * count / of.get(row, 1):.0f}%"  # so that the number stays readable
        return tag("td", count or "", class_="right" if row == column else "wrong", style=share)

    head = tag("thead", tag("tr", tag("th", "class \\ taken for"), [tag("th", name, scope="col") for name in names]))
    body = [tag("tr", tag("th", row, scope="row"), [cell(row, column) for column in names]) for row in names]
    return tag("div", tag("table", head, tag("tbody", body), class_="matrix"), class_="wide")


def throughput(runs: Runs) -> Markup | None:
    """How fast it was, and on what."""
    lines: list[list[object]] = []
    for run in runs:
        machine = (
            ", ".join(map(str, run.environment.get("gpus", []))) or f"{run.environment.get('cores', '?')} CPU cores"
        )
        if run.speeds:
            spread, config = f"{min(run.speeds):,.1f} to {max(run.speeds):,.1f}", run.config
            lines.append([run.title, f"{run.speed:,.1f}", spread, config.world, config.precision, machine])
    head: list[object] = ["", "samples a second, median", "over the epochs", "processes", "precision", "machine"]
    return section("Speed of training", table(head, lines)) if lines else None


def attention(runs: Runs) -> Markup | None:
    """What the network attends to in a few samples."""
    if len(runs) > 1 or not runs[0].predictions:
        return None
    drawn = runs[0].samples.attention(chosen(runs[0].predictions), runs[0].folder / "last.ckpt")
    if drawn is None:
        return None
    if runs[0].config.model.block in (None, "residual"):
        words = "In the second-order head: the pairs of channels that speak most for the prediction, and where."
    else:
        words = "In the last block, from the position where theta is largest."
    return section("What it looks at", tag("p", words, class_="faint"), drawn)


def settings(runs: Runs) -> Markup | None:
    """Of one run all settings; of several those that differ."""
    if len(runs) == 1:
        content = tag("details", tag("summary", "config.yaml"), tag("pre", to_yaml(runs[0].config)))
        return section("Settings", content)
    flat = [_flat(plain(run.config)) for run in runs]
    names = dict.fromkeys(name for one in flat for name in one)
    lines: list[list[object]] = [
        [name, *(given(one.get(name, "")) for one in flat)]
        for name in names
        if name != "name" and len({str(one.get(name)) for one in flat}) > 1
    ]
    words = "Everything else is the same." if lines else "All settings are the same."
    shown = table(["", *(run.title for run in runs)], lines, "words") if lines else None
    return section("Settings that differ", shown, tag("p", words, class_="faint"))


def given(value: object) -> object:
    """A setting as it is given: a list in brackets, for markup lays it flat."""
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else value


def repeat(runs: Runs) -> Markup | None:
    """The commands that do it again, and what they ran in."""
    content = [tag("pre", run.command, class_="command") for run in runs]
    lines: list[list[object]] = []
    for run in runs:
        found = run.environment
        packages = ", ".join(f"{name} {version}" for name, version in found.get("packages", {}).items() if version)
        if found:
            software = f"Python {found.get('python')}, {packages}"
            lines.append([run.title, software, found.get("commit") or "", found.get("system", "")])
    head: list[object] = ["", "software", "commit", "system"]
    return section("To repeat it", content, table(head, lines, "words") if lines else None)


def _flat(tree: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


SECTIONS: tuple[Callable[[Runs], Markup | None], ...] = (
    heading,
    numbers,
    curves,
    classes,
    confused,
    attention,
    throughput,
    settings,
    repeat,
)
"""In their order on the page."""
