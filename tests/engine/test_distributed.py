"""Two processes train the network one would, test every sample once, and say it once."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from filelock import FileLock

from cgnl.data.synthetic import SYNTHETIC
from cgnl.engine import distributed
from cgnl.engine.checkpoint import open_trained
from cgnl.engine.config import load
from cgnl.engine.datasets import TRAIN_SEED
from cgnl.engine.distributed import current_rank, explain_lost_ranks, find_accelerator, master_address, watch
from cgnl.engine.network import build_network
from tests.engine.conftest import SETTINGS, normalized, options, table, weights
from tests.engine.kills import fork

ROOT = Path(__file__).parents[2]
SEVERAL = {**SETTINGS, "model.name": "tiny_group", "model.dropout": 0.0, "data.samples": 52, "save_every": 5}
"""Two epochs of six steps, and 13 samples to test on."""
GIVEN = {name.replace(".", "__"): value for name, value in SEVERAL.items()}
"""The same, as ``run`` takes it."""
ONE_STEP = {
    **SEVERAL,
    "data.samples": 8,
    "optim.epochs": 1,
    "optim.momentum": 0.0,
    "optim.weight_decay": 0.0,
    "name": "one_step",
}
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")
TRAIN = """
import json, os, shutil, signal, sys
import torch
torch.set_num_threads(1)
from cgnl.cli import main
from cgnl.engine import loop
from cgnl.engine.config import load
from cgnl.engine.train import train
from tests.engine.conftest import register
register()
write = loop.write

def copying(checkpoint, path):  # keep the checkpoint in the middle of the second epoch
    write(checkpoint, path)
    if checkpoint["global_step"] == 10:
        folder = path.parent.with_name("middle")
        folder.mkdir(exist_ok=True)
        shutil.copy(path, folder / "last.ckpt")

loop.write = copying
for settings, resume in json.loads(sys.argv[1]):
    last = train(load("parts", settings), resume).folder / "last.ckpt"
print("MARK", flush=True)
"""
END = """
import atexit, os
from pathlib import Path

@atexit.register
def none_is_left():  # a thread that talks to other processes would abort Python at its end, now and then
    for file in Path("/proc/self/task").glob("*/comm"):
        if "gloo" in file.read_text():
            os._exit(3)
"""
EVAL = 'main(["eval", str(last), "--json", "devices=2", "accelerator=cpu"])'
DEADLY = """
from cgnl.data.transforms import generator
from cgnl.engine.distributed import is_rank_zero
from cgnl.engine.loop import Loop
from cgnl.engine.tasks import Images
backward, compute_loss = Loop.backward, Images.loss

def deadly(self, *batch):
    if self.config.name == "killed" and not is_rank_zero() and self.step == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    backward(self, *batch)

def faulty(self, model, batch):
    loss = compute_loss(self, model, batch)
    bad = self.config.name == "nan" and torch.initial_seed() == generator(0, 3, 1).initial_seed()
    return loss * float("nan") if bad else loss

Loop.backward, Images.loss = deadly, faulty
if "TORCHELASTIC_RUN_ID" in os.environ:
    assert main(["train", "parts", "name=nan", *sys.argv[2:]]) == 2
sys.exit(main(["train", "parts", "name=killed", *sys.argv[2:]]))
"""
FRAGILE = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from cgnl.cli import main
from cgnl.engine.loop import Loop
from tests.engine.conftest import register
register()
backward = Loop.backward

def fragile(self, *batch):
    if os.environ["MACHINE"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and self.step == 7:
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    backward(self, *batch)

Loop.backward = fragile
sys.exit(main(["train", "parts", "name=fragile", *sys.argv[1:]]))
"""
LOST = (
    "cgnl train: another rank of the run has ended or does not respond: the same command with --resume continues it\n"
)


def call(
    folder: Path, script: str, *arguments: str, launcher: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    """Run a script in a process of its own."""
    file = folder / "script.py"
    file.write_text(script)
    command = [sys.executable, *launcher, str(file), *arguments]
    environment = environment_of_ranks()
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=400)


def environment_of_ranks() -> dict[str, str]:
    """Without what a launcher of the tests themselves has set."""
    environment = {n: v for n, v in os.environ.items() if n not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK")}
    return environment | {"PYTHONPATH": f"{ROOT}:{ROOT}/src", "OMP_NUM_THREADS": "1"}


def make_settings(folder: Path, base: dict, **changes) -> dict:
    return {**base, "devices": 2, "runs": str(folder), **changes}


def several(folder: Path) -> list[str]:
    """The run of ``launched``, for the command."""
    return [word for word in options(**GIVEN, devices=2, runs=folder) if not word.startswith("name=")]


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], str]) -> tuple[Path, str]:
    """A folder that is filled once, whichever processes test in parallel, and what was printed meanwhile."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    printed = folder / "printed"
    with FileLock(f"{folder}.lock"):
        if not printed.exists():
            folder.mkdir(exist_ok=True)
            printed.write_text(make(folder))
    return folder, printed.read_text()


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """A run whose second process is started by the first: its folder, what it said, and what its test printed."""

    def make(folder: Path) -> str:
        done = call(folder, END + TRAIN + EVAL, json.dumps([[make_settings(folder, SEVERAL), False]]))
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    folder, out = once(tmp_path_factory, "launched", make)
    *said, printed = out.split("MARK\n")  # each process says so
    return folder / "run", "".join(said), printed


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory):
    """A folder of runs in processes that torchrun has started, and how these ended.

    A run is whole, one of a single step, one goes on from the middle, one has a NaN on rank 1, and one loses rank 1.
    """

    def make(folder: Path) -> str:
        runs = [
            [make_settings(folder, SEVERAL), False],
            [make_settings(folder, ONE_STEP), False],
            [make_settings(folder, SEVERAL, name="middle"), True],
        ]
        done = call(folder, TRAIN + DEADLY, json.dumps(runs), *several(folder), launcher=TORCHRUN)
        return json.dumps([done.returncode, done.stdout, done.stderr])

    folder, ended = once(tmp_path_factory, "torchrun", make)
    return folder, *json.loads(ended)


@pytest.fixture
def alone(run):
    """The same run in one process."""
    return run(**GIVEN).folder


def assert_near(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-5, atol=1e-6)


def assert_same_table(folder: Path, other: Path):
    for row, expected in zip(table(folder), table(other), strict=True):
        assert row.keys() == expected.keys()
        for name, value in expected.items():
            tolerance = 1e-5 if name.endswith(("loss", "ece")) else 0.0  # of scores, which round by the batch
            assert float(row[name]) == pytest.approx(float(value), rel=tolerance, abs=0), name


@pytest.mark.long
def test_train_in_processes_it_starts_equals_one(launched, alone):
    assert_near(weights(alone / "last.ckpt"), weights(launched[0] / "last.ckpt"))
    assert_same_table(launched[0], alone)


@pytest.mark.long
def test_train_in_processes_of_torchrun_equals_one(torchrun, alone):
    assert_near(weights(alone / "last.ckpt"), weights(torchrun[0] / "run" / "last.ckpt"))
    assert_same_table(torchrun[0] / "run", alone)


def test_train_in_processes_tests_every_sample_once(launched, torchrun):
    for folder in (launched[0], torchrun[0] / "run"):
        assert [row["test_count"] for row in table(folder)] == ["13", "13"]
        assert json.loads((folder / "results.json").read_text())["test_count"] == 13


def test_train_in_processes_speaks_once(launched):
    folder, said, _ = launched
    assert said.count("epoch 1 of 2") == 1
    assert (folder / "log.txt").read_text().count("epoch 1 of 2") == 1
    assert sorted(path.name for path in folder.parent.iterdir() if path.is_dir()) == ["middle", "run"]


def test_train_in_processes_sums_the_gradients_of_all_samples(torchrun):
    config = load("parts", ONE_STEP)
    torch.manual_seed(config.seed)
    network = build_network(config.model, 12)
    samples = [SYNTHETIC["parts"][1](TRAIN_SEED, index) for index in range(8)]
    labels = torch.tensor([sample.label for sample in samples])
    loss = F.cross_entropy(network(normalized(torch.stack([sample.pixels for sample in samples]))), labels)
    loss.backward()
    end = open_trained(torchrun[0] / "one_step" / "last.ckpt").network.state_dict()
    for name, value in network.named_parameters():
        assert value.grad is not None
        moved = (value.detach() - end[name]) / (0.8 * 8 / 256)
        torch.testing.assert_close(moved, value.grad, rtol=1e-4, atol=2e-6)


def test_train_in_processes_goes_on_from_the_middle_of_an_epoch(torchrun):
    assert torch.load(torchrun[0] / "middle" / "last.ckpt", weights_only=True)["global_step"] == 12
    assert_near(weights(torchrun[0] / "run" / "last.ckpt"), weights(torchrun[0] / "middle" / "last.ckpt"))
    assert_same_table(torchrun[0] / "middle", torchrun[0] / "run")


def test_eval_command_in_processes_prints_once(launched):
    folder, _, printed = launched
    (tested,) = json.loads(printed)["tests"]
    expected = json.loads((folder / "results.json").read_text())
    assert tested["test_count"] == 13
    assert tested["test_top1"] == expected["test_top1"]
    assert tested["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-5)


@pytest.mark.long
def test_train_that_lost_a_process_it_started_says_so_and_goes_on(alone, run, tmp_path):
    ended = call(tmp_path, TRAIN + DEADLY, "[]", *several(tmp_path))
    assert (ended.returncode, ended.stderr) == (2, LOST)
    folder = tmp_path / "killed"
    assert torch.load(folder / "last.ckpt", weights_only=True)["global_step"] == 6
    assert run(resume=True, **GIVEN | {"name": "killed"}).folder == folder  # in one process: another two would import
    assert_near(weights(alone / "last.ckpt"), weights(folder / "last.ckpt"))
    assert_same_table(folder, alone)


def test_train_that_lost_a_process_of_torchrun_ends(torchrun):
    folder, status, out, err = torchrun
    assert status == 1
    assert LOST in err or "stopped: the same command with --resume" in out
    assert "Signal 9 (SIGKILL) received" in err
    assert torch.load(folder / "killed" / "last.ckpt", weights_only=True)["global_step"] == 6
    said = "cgnl train: step 4: the loss is nan, though the output of every module is finite: lower optim.lr"
    assert err.count(said) == 2  # each process, though only one of them has seen it


@pytest.mark.long
def test_torchrun_that_lost_a_machine_goes_on_by_itself(alone, tmp_path):
    """Of two, with all its processes; with the other one the run ends the same."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "script.py").write_text(FRAGILE)
    words = [word for word in options(**GIVEN, devices=1, nodes=2, runs=tmp_path) if not word.startswith("name=")]
    machines = []
    for number in range(2):
        meeting = f"is_host={1 - number},last_call_timeout=8,keep_alive_interval=1"
        launcher = ["-m", "torch.distributed.run", "--nnodes=1:2", "--nproc_per_node=1", "--max_restarts=2"]
        launcher += ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=7"]
        launcher += [f"--rdzv_conf={meeting}", "--local_addr=127.0.0.1"]
        environment = environment_of_ranks() | {"MACHINE": str(number)}
        command = [sys.executable, *launcher, str(tmp_path / "script.py"), *words]
        machines.append(subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True))
    try:
        said = [machine.communicate(timeout=300)[1] for machine in machines]
    finally:
        for machine in machines:
            machine.kill()
    assert [machine.returncode for machine in machines] == [0, -9], said
    folder = tmp_path / "fragile"
    assert "resumed at step 6" in (folder / "log.txt").read_text()
    assert_near(weights(alone / "last.ckpt"), weights(folder / "last.ckpt"))
    assert_same_table(folder, alone)


def test_find_accelerator_refuses_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert find_accelerator(load()) == "cpu"
    with pytest.raises(ValueError, match="1 GPU asked for, but there are 0"):
        find_accelerator(load(None, {"accelerator": "gpu"}))


def test_find_accelerator_refuses_more_gpus_than_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_accelerator(load(None, {"devices": 2})) == "cuda"
    with pytest.raises(ValueError, match="3 GPUs asked for, but there are 2"):
        find_accelerator(load(None, {"accelerator": "gpu", "devices": 3}))


def test_find_accelerator_refuses_to_train_in_every_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    find_accelerator(load(None, {"devices": 2, "nodes": 2, "accelerator": "cpu"}))
    with pytest.raises(ValueError, match=r"4 processes were started, but devices x nodes = 1$"):
        find_accelerator(load())


def test_several_machines_are_started_by_others(run):
    with pytest.raises(ValueError, match="nodes = 2"):
        run(nodes=2)


SLURM = {"NTASKS": "4", "JOB_NAME": "cgnl", "PROCID": "3", "LOCALID": "1", "JOB_ID": "1234567"}


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("gpu7", "gpu7"), ("gpu[03-08]", "gpu03"), ("gpu[2,5-8],cpu1", "gpu2"), ("a1,b2", "a1"), ("n-[12]", "n-12")],
)
def test_current_rank_under_slurm(monkeypatch, hosts, first):
    for name, value in {**SLURM, "NODELIST": hosts}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert current_rank() == (3, 1, 4)
    assert master_address() == f"{first}:19567"
    monkeypatch.setenv("SLURM_JOB_NAME", "bash")  # a shell on one of the machines
    assert current_rank() == (0, 0, 1)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer"),
        dist.DistBackendError("NCCL communicator was aborted"),
        dist.DistStoreError("Timed out after 9 seconds waiting for clients"),
    ],
)
def test_a_lost_rank_becomes_a_sentence(monkeypatch, error):
    monkeypatch.setattr(distributed, "_noticed", distributed.threading.Event())
    with pytest.raises(ConnectionError, match="another rank of the run has ended"), explain_lost_ranks():
        raise error


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), ValueError("gloo")])
def test_other_errors_stay_as_they_are(error):
    with pytest.raises(type(error), match=str(error)), explain_lost_ranks():
        raise error


def lose(noticed: bool) -> None:
    """Lose another process after a moment, while this one waits for something."""
    distributed.GRACE = 0.0
    if noticed:
        distributed._noticed.set()
    moments = iter([False, True])
    watch(lambda: next(moments))
    time.sleep(60)


@pytest.mark.parametrize("noticed", [True, False])
def test_watch_ends_a_process_that_waits(capfd, noticed):
    assert fork(lambda: lose(noticed)) == 2
    assert capfd.readouterr().err == ("" if noticed else f"cgnl: {distributed.LOST}\n")


@pytest.mark.parametrize("timeout", [0, -1])
def test_timeout_must_be_more_than_nothing(run, timeout):
    with pytest.raises(ValueError, match=f"timeout = {float(timeout)} must be more than 0"):
        run(timeout=timeout)
