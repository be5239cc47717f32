"""``cgnl bench``: blocks, networks or operators, side by side."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..bench import report, serving
from ..bench.roofline import measure_ceilings, precision
from ..bench.runner import measure_rows
from ..bench.settings import Setting, read
from ..bench.subjects import BENCHMARKS, choose, peer_subjects
from ..extras import need
from ..spelling import first_line


def bench(
    benchmark: str,
    *,
    batch: int | None = None,
    channels: int | None = None,
    size: str | None = None,
    groups: int | None = None,
    inner: int | None = None,
    kernel: str | None = None,
    norm: str | None = None,
    dtype: str | None = None,
    tf32: bool = False,
    channels_last: bool = True,
    mode: str | None = None,
    network: str | None = None,
    blocks: int | None = None,
    head: str | None = None,
    reduced: int | None = None,
    device: str = "auto",
    rows: str | None = None,
    peer: str | None = None,
    csv: str | None = None,
    plot: str | None = None,
    seconds: float | None = None,
) -> Sequence[Any]:
    """Measure time, memory and error of blocks, networks or operators, side by side.

    What is not given has a default for the device: small on a CPU.

    Args:
        benchmark: block; network: a whole training step against the plain network; ops: the operator alone; serve: how
            soon a network answers, and how many samples a second.
        batch: samples; serve takes 1, 8 and 64 unless it is given.
        channels: channels of the input (block, ops).
        size: positions, of a network's input pixels: 28 or 28x28 for images, 16x28x28 for clips, 1000x for sequences.
        groups: channel groups.
        inner: channels of theta, phi and g; half of channels unless given (block).
        kernel: dot, embedded_gaussian, rbf, or with options: rbf:order=3,gamma=1e-4,beta=exact.
        norm: batch, group or none.
        dtype: bfloat16, float16, float32 or tf32. In half precision, train keeps parameters in float32 under autocast,
            forward casts the module.
        tf32: multiply float32 as TF32, like dtype=tf32.
        channels_last: memory layout of the input.
        mode: train: forward and backward in train mode; forward: in eval mode, without gradients.
        network: one of those that cgnl models lists (network, serve).
        blocks: 1 or 5 (network, serve); as many as the network has places for, unless given.
        head: average, covariance, bilinear or compact (serve); network has rows for a covariance head.
        reduced: channels whose products a head takes, 256 unless given (network, serve).
        device: auto, cpu, cuda or cuda:1.
        rows: only these, with commas between them.
        peer: other blocks to measure: path/to/file.py:Class, built as Class(channels), or
            "path/to/file.py:Class(C, inner, groups=8)", where C, inner, groups, ndim and N have the values of this run.
            With commas between them (block).
        csv: add the rows to this file.
        plot: draw the rows into this picture.
        seconds: spent on repetitions of each row.
    """
    switches = {"tf32": tf32 or None, "channels_last": None if channels_last else False}
    numbers = {"batch": batch, "channels": channels, "groups": groups, "inner": inner, "blocks": blocks}
    heads = {"head": head, "reduced": reduced}
    words = {"size": size, "kernel": kernel, "norm": norm, "dtype": dtype, "mode": mode, "network": network}
    setting = read(benchmark, {**numbers, **heads, **words, **switches, "seconds": seconds}, device)
    if benchmark == "serve":
        if plot or peer:
            raise ValueError("cgnl bench serve has neither a plot nor peers")
        return _serve([setting] if batch else [replace(setting, batch=b) for b in serving.BATCHES], rows, csv)
    if peer and benchmark != "block":
        raise ValueError(f"a peer stands beside a block: cgnl bench {benchmark} has no place for one")
    known = BENCHMARKS[benchmark]
    subjects = choose(rows.split(","), known.subjects) if rows else list(known.subjects)
    subjects += peer_subjects(peer, setting) if peer else []
    try:
        choose(["reference"], known.subjects)[0].build(setting)  # what cannot be built says why
    except RuntimeError as error:
        raise ValueError(f"there is no memory for this: {first_line(error)}") from None
    if csv:
        report.check_csv(Path(csv))
    if plot:
        need("matplotlib", "bench")

    measured = []
    width = max(len(subject.name) for subject in subjects)
    with precision(setting.tf32):
        ceilings = measure_ceilings(setting)
        print(report.header(setting, ceilings), report.title_line(benchmark, width), sep="\n\n", flush=True)
        for row in measure_rows(setting, subjects, ceilings):
            print(report.line(row, width), flush=True)
            measured.append(row)
    print(f"\n{report.legend(known.baseline)}")
    if csv:
        report.write_csv(measured, Path(csv))
    if plot:
        report.draw(measured, report.header(setting, ceilings).partition(";")[0], Path(plot))
    if not any(row.ms is not None for row in measured):
        raise ValueError("no row could be measured")
    return measured


def _serve(settings: Sequence[Setting], rows: str | None, csv: str | None) -> list[serving.Served]:
    ways, first = choose(rows.split(","), serving.WAYS) if rows else list(serving.WAYS), settings[0]
    serving.check(first)
    if csv:
        report.check_csv(Path(csv), serving.Served)
    width, measured = max(len(way.name) for way in ways), []
    with precision(first.tf32):
        print(serving.header(first), serving.title_line(width), sep="\n\n", flush=True)
        for setting in settings:
            for row in serving.serve(setting, ways):
                print(serving.line(row, width), flush=True)
                measured.append(row)
    print(f"\n{serving.LEGEND}")
    if csv:
        report.write_csv(measured, Path(csv), serving.Served)
    if not any(row.ms is not None for row in measured):
        raise ValueError("no row could be measured")
    return measured
