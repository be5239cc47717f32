"""Runs are made once, by whoever comes first, and go on when they were killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import Timeout

from cgnl.experiments import work
from cgnl.experiments.plan import plan
from cgnl.experiments.runs import PlannedRun
from cgnl.experiments.work import Worker, interrupt_at, lock, make_workers

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os
import torch
torch.set_num_threads(1)
from cgnl.cli import main
from cgnl.engine import train
from cgnl.experiments import work  # imported once for all
from tests.engine import conftest as networks
from tests.experiments import conftest as tables
networks.register()
tables.register()
begun = train.setup

def noted(config, *rest):  # a line for each run that is begun
    with open("begun.txt", "a") as file:
        file.write(f"{config.name}\\n")
    return begun(config, *rest)

train.setup = noted

def start(number, *words):  # in a fork, because a process of its own would import for ten seconds
    child = os.fork()
    if not child:
        with open(f"{number}.txt", "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os._exit(main(["reproduce", "toy", "--seeds", "2", "--output", "out", *words]))
    return child

def wait(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
TWO_COPIES = """
import script

if __name__ == "__main__":  # not in the workers
    copies = [script.start(0, "--jobs", "2"), script.start(1)]
    print(*map(script.wait, copies))
"""
ONE_AFTER_ANOTHER = """
import script

for number in range(3):
    child = script.start(number)
    print(child, flush=True)
    print(script.wait(child), flush=True)
"""
NAMES = [f"{name}_seed{n}" for n in (0, 1) for name in ("toy", "toy_cgnl", "toy_r")]


@pytest.fixture
def runs(toy, tmp_path):
    return plan(toy, toy.rows, "paper", 1, tmp_path, {})[0]


@pytest.fixture
def start(tmp_path):
    """Start a script in a process of its own, beside ``script.py``."""
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/src", "OMP_NUM_THREADS": "1"}

    def call(text: str) -> subprocess.Popen:
        (tmp_path / "main.py").write_text(text)
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
        return subprocess.Popen([sys.executable, "main.py"], cwd=tmp_path, env=environment, **options)

    return call


def begun(folder: Path) -> list[str]:
    file = folder / "begun.txt"
    return file.read_text().split() if file.exists() else []


def results(folder: Path) -> dict[str, str]:
    """What was right, of each run."""
    return {path.parent.name: path.read_text() for path in sorted((folder / "out").glob("*/right.txt"))}


def ended(folder: Path) -> set[str]:
    """The runs to which nothing is left to do: those of a block with attention are diagnosed at their end."""
    diagnosed = {path.parent.name for path in (folder / "out").glob("*/diagnosis.csv")}
    return {name for name in results(folder) if "_cgnl_" not in name or name in diagnosed}


def test_worker_makes_every_run_once(runs, monkeypatch, capsys):
    made = []
    monkeypatch.setattr(work, "make_run", lambda run, *_: made.append(run.config.name) or finish(run))
    assert Worker(runs)()
    assert Worker(runs)()
    assert made == NAMES[:3]
    assert "2 of 3: with CGNL, seed 0: top1 50.00, 3 s" in capsys.readouterr().out


def finish(run: PlannedRun) -> None:
    from cgnl.engine.config import to_yaml

    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "config.yaml").write_text(to_yaml(run.config))
    (run.folder / "right.txt").write_text("a\n01\n")
    (run.folder / "diagnosis.csv").write_text("attention,top1\n")
    (run.folder / "results.json").write_text('{"test_top1": 0.5, "seconds": 3}')


def test_worker_leaves_a_run_to_whoever_is_at_it(runs, monkeypatch):
    made = []
    monkeypatch.setattr(work, "make_run", lambda run, *_: made.append(run.row) or finish(run))
    with lock(runs[1].folder):
        assert Worker(runs)()
    assert made == ["toy", "toy_r"]


def test_worker_notes_a_run_that_fails_and_goes_on(runs, monkeypatch, capsys):
    def fail(run, *_):
        if run.row == "toy":
            raise ValueError("the disk is full\nof things")
        finish(run)

    monkeypatch.setattr(work, "make_run", fail)
    assert Worker(runs)()
    assert (runs[0].folder / "failed.txt").read_text() == "the disk is full\n"
    assert "plain, seed 0: the disk is full" in capsys.readouterr().out
    monkeypatch.setattr(work, "make_run", lambda run, *_: finish(run))
    assert Worker(runs)()
    assert not (runs[0].folder / "failed.txt").exists()
    assert all(run.finished for run in runs)


def test_worker_begins_nothing_after_its_time(runs, monkeypatch):
    monkeypatch.setattr(work, "make_run", lambda run, *_: finish(run))
    assert not Worker(runs, time.time() - 1)()
    assert not any(run.finished for run in runs)
    assert Worker(runs, time.time() + 100)()


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN], ids=["in front", "in the background"])
def test_worker_stops_by_the_clock(runs, monkeypatch, before):
    monkeypatch.setattr(work, "make_run", lambda *_: time.sleep(30))
    own = signal.signal(signal.SIGINT, before)
    try:
        began = time.time()
        assert not Worker(runs, began + 1)()
        assert time.time() - began < 20
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, own)
    assert not any(run.finished for run in runs)


def test_interrupt_at_is_over_with_what_it_surrounds():
    with interrupt_at(time.time() + 0.05):
        pass
    time.sleep(0.1)


def test_worker_trains_and_leaves_what_a_table_needs(runs):
    assert Worker(runs)()
    assert all(run.finished for run in runs)
    kept = {path.name for path in runs[1].folder.iterdir()}
    assert {"config.yaml", "metrics.csv", "results.json", "right.txt", "diagnosis.csv", "environment.json"} <= kept
    assert not any(name.endswith(".ckpt") for name in kept)
    digest, right = (runs[0].folder / "right.txt").read_text().split()
    assert len(right) == 6
    assert digest == (runs[1].folder / "right.txt").read_text().split()[0]


def test_worker_keeps_checkpoints_if_told(runs):
    assert Worker(runs[:1], keep=True)()
    assert (runs[0].folder / "last.ckpt").exists()


def test_lock_is_one_at_a_time(tmp_path):
    with lock(tmp_path / "a"), lock(tmp_path / "b"), pytest.raises(Timeout), lock(tmp_path / "a"):
        pass
    with lock(tmp_path / "a"):
        pass


@pytest.mark.long
def test_two_copies_do_not_make_a_run_twice(start, tmp_path):
    """Also where each of them has several workers."""
    statuses, _ = start(TWO_COPIES).communicate(timeout=240)
    assert statuses.split() == ["0", "0"], [(tmp_path / f"{number}.txt").read_text() for number in range(2)]
    assert sorted(begun(tmp_path)) == sorted(NAMES)
    assert sorted(results(tmp_path)) == sorted(NAMES)
    assert (tmp_path / "out" / "toy.md").exists()


@pytest.mark.long
def test_killed_at_any_moment_it_goes_on(start, tmp_path):
    before, done = 0, set()
    copies = start(ONE_AFTER_ANOTHER)
    assert copies.stdout is not None
    for number, moment in enumerate((0.1, 1.5, None)):
        child = int(copies.stdout.readline())
        if moment is not None:
            while copies.poll() is None and len(begun(tmp_path)) == before:
                time.sleep(0.02)
            time.sleep(moment)
            os.kill(child, signal.SIGKILL)
        status, said = int(copies.stdout.readline()), (tmp_path / f"{number}.txt").read_text()
        assert status == (0 if moment is None else -signal.SIGKILL), said
        assert "Traceback" not in said
        assert not done & set(begun(tmp_path)[before:])  # what had ended was not begun again
        before, done = len(begun(tmp_path)), ended(tmp_path)
    copies.communicate()
    assert sorted(ended(tmp_path)) == sorted(NAMES)


ORPHANS = """
import multiprocessing
import os
import time
from pathlib import Path
from cgnl.experiments.work import work

fork = multiprocessing.get_context("fork")  # a spawned worker would import for ten seconds
multiprocessing.get_context = lambda _: fork

class Sleeper:
    def __call__(self):
        Path(f"{os.getpid()}.pid").touch()
        time.sleep(100)
        return True

if __name__ == "__main__":
    work([Sleeper(), Sleeper()])
"""


def test_workers_end_with_the_command(tmp_path):
    (tmp_path / "script.py").write_text(ORPHANS)
    command = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    while len(pids := [int(path.stem) for path in tmp_path.glob("*.pid")]) < 2:
        assert command.poll() is None
        time.sleep(0.05)
    command.kill()
    command.wait()
    until = time.time() + 60
    while any(Path(f"/proc/{pid}/cwd").exists() for pid in pids) and time.time() < until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}/cwd").exists() for pid in pids)


@pytest.mark.parametrize(
    ("gpus", "visible", "jobs", "expected"),
    [(0, None, 1, [None]), (1, None, 1, [None]), (2, None, 2, ["0", "1", "0", "1"]), (2, "3,5", 1, ["3", "5"])],
)
def test_workers_share_the_gpus(monkeypatch, gpus, visible, jobs, expected):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [worker.gpu for worker in make_workers([], None, jobs, False)] == expected
