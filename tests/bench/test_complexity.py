import warnings
from dataclasses import replace

import pytest
import torch

from cgnl.bench import complexity as module
from cgnl.bench.complexity import Curve, complexity, factor, from_csv, measure_point, plan, sweep
from cgnl.bench.complexity_report import (
    BLOCK,
    COMPACT,
    EXACT,
    KERNELS,
    MATRIX,
    OPERATIONS,
    fit_power,
    read_points,
    values,
)

CPU = torch.device("cpu")

TINY = [
    *(Curve(name, "N", (4, 8, 16), 1, 8, 0) for name in (EXACT, MATRIX, KERNELS, COMPACT)),
    Curve(BLOCK, "N", (4, 8, 16), 2, 16, 0, groups=8),
    *(Curve(name, "C", (4, 8, 16), 1, 0, 8) for name in (EXACT, COMPACT)),
    Curve(COMPACT, "P + 1", (2, 3, 4), 1, 8, 16),
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "REPEAT_SECONDS", 1e-3)


def test_factors_are_as_square_as_possible():
    assert [factor(n) for n in (1, 7, 49, 96, 98, 12544)] == [(1, 1), (1, 7), (7, 7), (8, 12), (7, 14), (112, 112)]


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_plan_grows_every_operation_with_positions_and_channels(device_type):
    curves = plan(device_type)
    assert {(c.operation, c.axis) for c in curves} == {(name, axis) for name in OPERATIONS for axis in "NC"} | {
        (COMPACT, "P + 1")
    }
    assert all(list(c.sizes) == sorted(set(c.sizes)) and len(c.sizes) > 5 for c in curves)


def test_plan_for_a_cpu_keeps_the_matrix_below_a_gibibyte():
    elements = [max(c.sizes) * (c.channels or c.positions) for c in plan("cpu") if c.operation == EXACT]
    assert all(4 * n**2 < 2**30 for n in elements)


def test_plan_for_a_gpu_goes_on_as_before():
    of = {(c.operation, c.axis): c for c in plan("cuda")}
    assert (of[COMPACT, "N"].sizes[0], of[BLOCK, "N"].sizes[-1]) == (49, 200_704)
    assert of[BLOCK, "C"].sizes == (64, 128, 256, 512, 1024, 2048)


@pytest.mark.parametrize("curve", plan("cuda"), ids=lambda c: f"{c.operation} {c.axis}")
def test_what_a_gpu_would_measure_runs_on_a_cpu(curve, monkeypatch):
    """In the dtype, mode and layout of a GPU, at the smallest size of each curve."""
    setting = Curve.setting
    on_gpu = torch.device("cuda")
    monkeypatch.setattr(Curve, "setting", lambda self, size, _: replace(setting(self, size, on_gpu), device=CPU))
    small = replace(curve, batch=1, channels=curve.channels and 16, positions=curve.positions and 49)
    point = measure_point(small, curve.sizes[0], CPU)
    assert point is not None
    assert (point.mode, point.dtype, point.size) == ("forward", "bfloat16", curve.sizes[0])


@pytest.mark.parametrize("channels", [8, 16])
def test_memory_of_the_exact_operation_is_its_matrices(channels):
    point = measure_point(Curve(EXACT, "N", (64,), 1, channels, 0), 64, CPU)
    assert point is not None
    matrix = 4 * (64 * channels) ** 2 / 2**20
    assert point.peak_mib == pytest.approx(3 * matrix, rel=0.02)  # f and its gradient, and one for theta's or phi's


def test_memory_of_the_compact_operation_does_not_know_the_order():
    curve = Curve(COMPACT, "P + 1", (2, 5, 9), 1, 16, 1024)
    points = list(sweep(curve, CPU))
    assert [p.order for p in points] == [1, 4, 8]
    assert points[0].peak_mib == pytest.approx(points[-1].peak_mib, rel=0.01)


@pytest.mark.parametrize(
    ("operation", "axis", "power"),
    [(EXACT, "N", 2), (EXACT, "C", 2), (MATRIX, "N", 2), (COMPACT, "N", 1), (COMPACT, "C", 1)],
)
def test_memory_grows_as_counted(operation, axis, power):
    curve = Curve(operation, axis, (32, 64, 96, 128), 1, 4, 4)
    found = fit_power(values(sweep(curve, CPU), "peak_mib"))
    assert found is not None
    assert found.power == pytest.approx(power, abs=0.1)


def test_sweep_ends_where_a_step_takes_too_long(monkeypatch, capsys):
    measured = module.measure_point
    monkeypatch.setattr(module, "measure_point", lambda c, n, *rest: measured(c, n, *rest) if n < 16 else None)
    monkeypatch.setattr(module, "MAX_SECONDS", 10.25)
    points = list(sweep(TINY[0], CPU))
    assert [p.positions for p in points] == [4, 8]
    assert capsys.readouterr().out.endswith("GNL, exact: ends before N = 16, a step takes more than 10.25 s\n")


def test_sweep_ends_where_memory_does(monkeypatch, capsys):
    def fail(*_):
        raise torch.OutOfMemoryError("tried to allocate 160 GiB\nand more")

    monkeypatch.setattr(module, "measure_point", fail)
    assert list(sweep(TINY[0], CPU)) == []
    assert capsys.readouterr().out == "GNL, exact: ends before N = 4, out of memory\n"


def test_measure_point_gives_up_on_a_long_step(monkeypatch):
    monkeypatch.setattr(module, "MAX_SECONDS", 1e-9)
    assert measure_point(TINY[0], 4, CPU) is None


def test_complexity_from_start_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "plan", lambda _: TINY)
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = complexity(tmp_path / "new", device="cpu")
    assert [path.name for path in written] == ["complexity.csv", "complexity.md", "complexity.png", "growth.png"]
    assert all(path.stat().st_size for path in written)
    assert torch.get_num_threads() == threads

    points, said = read_points(written[0]), capsys.readouterr().out.splitlines()
    assert len(points) == len(said) == sum(len(curve.sizes) for curve in TINY)
    assert {p.device for p in points} == {"CPU, 1 thread"}
    assert all(p.ms_20 <= p.milliseconds <= p.ms_80 and p.peak_mib for p in points)

    text = written[1].read_text(encoding="utf-8")
    assert "| time | O(2 (NC)²) | O(NC (P + 1)) |" in text
    assert "N = 8, 16; C = 8, batch 1" in text
    assert "## The same input: batch 1, C = 8, N = 16" in text

    for path in written[1:]:
        path.unlink()
    assert from_csv(written[0]) == written[1:]
    assert written[1].read_text(encoding="utf-8") == text
    assert written[2].read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"device": "cuda:99"}, "there is no cuda:99 here"),
    ],
)
def test_complexity_refuses(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        complexity(tmp_path, **options)


def test_complexity_refuses_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(OSError, match="taken cannot be written to"):
        complexity(tmp_path / "taken")


def test_complexity_says_when_nothing_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "plan", lambda _: TINY[:1])
    monkeypatch.setattr(module, "MAX_SECONDS", 1e-9)
    with pytest.raises(ValueError, match=r"complexity\.csv has no points"):
        complexity(tmp_path, device="cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_complexity_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "plan", lambda _: TINY)
    points = read_points(complexity(tmp_path, device="cuda")[0])
    assert {p.dtype for p in points} == {"bfloat16"}
    assert all(p.peak_mib for p in points)
