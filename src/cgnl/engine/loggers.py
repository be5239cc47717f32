"""Where the numbers of a run also go: TensorBoard, Weights & Biases, MLflow. One that fails stops no training."""

import importlib.util
import json
import logging
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..atomic_io import write_text
from ..extras import need
from ..text import first_line

log = logging.getLogger("cgnl")

IDS = "loggers.json"
"""File in the run folder with the ids of the run at W&B and MLflow, which a resumed run continues."""
PROJECT = "cgnl"
"""Project at W&B and experiment at MLflow, unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME is set."""

Numbers = Mapping[str, float]


class Logger(Protocol):
    """A run somewhere else, begun or continued when it is made."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path): ...

    def log(self, numbers: Numbers, step: int) -> None:
        """Add numbers of a step; several calls may have the same step."""

    def end(self, failed: bool) -> None:
        """Say that the run has ended, or stopped before its end."""


class TensorBoard:
    """Event files in ``tensorboard``."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path):  # noqa: ARG002
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        need("tensorboard", "loggers")
        self.writer = need("torch.utils.tensorboard", "loggers").SummaryWriter(str(folder / "tensorboard"))

    def log(self, numbers: Numbers, step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def end(self, failed: bool) -> None:  # noqa: ARG002
        self.writer.close()


class WandB:
    """A run at Weights & Biases; with ``WANDB_MODE=offline`` its files stay in ``wandb``."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb = need("wandb", "loggers")
        run_id = read_id(folder, "wandb") or secrets.token_hex(4)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            config=dict(settings),
            dir=str(folder),
            id=run_id,
            resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",  # files of one id are synced as one
            allow_val_change=True,
            settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )
        keep_id(folder, "wandb", run_id)

    def log(self, numbers: Numbers, step: int) -> None:
        self.run.log(dict(numbers), step=step)

    def end(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class MLflow:
    """A run at MLFLOW_TRACKING_URI, or in ``mlruns``."""

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path):
        usual = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
        usual |= {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}  # a training waits
        for variable, value in usual.items():
            os.environ.setdefault(variable, value)
        mlflow = need("mlflow", "loggers")
        self.metric = mlflow.entities.Metric
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlruns").absolute().as_uri()
        self.client = mlflow.MlflowClient(tracking_uri=uri)
        known = read_id(folder, "mlflow")
        self.id = known if known and self.resume(known) else self.begin(name, settings, mlflow)
        keep_id(folder, "mlflow", self.id)

    def resume(self, run_id: str) -> bool:
        """Continue a run, if it is there: the address may have changed."""
        try:
            self.client.update_run(run_id, status="RUNNING")
        except Exception as error:
            log.warning("mlflow has no run %s and begins another: %s", run_id, first_line(error))
            return False
        return True

    def begin(self, name: str, settings: Mapping[str, Any], mlflow: Any) -> str:
        """A new run; its settings stay those that it was begun with."""
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(title)
        experiment = found.experiment_id if found else self.client.create_experiment(title)
        run_id = self.client.create_run(experiment, run_name=name).info.run_id
        params = [mlflow.entities.Param(key, str(value)[:500]) for key, value in flatten(settings).items()]
        for first in range(0, len(params), 100):  # as many as it takes at once
            self.client.log_batch(run_id, params=params[first : first + 100])
        return run_id

    def log(self, numbers: Numbers, step: int) -> None:
        now = int(time.time() * 1000)
        self.client.log_batch(self.id, [self.metric(name, float(value), now, step) for name, value in numbers.items()])

    def end(self, failed: bool) -> None:
        self.client.set_terminated(self.id, "KILLED" if failed else "FINISHED")


LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


class Loggers:
    """All loggers of a run, ended when it is left; one that fails is named once and left out from then on."""

    def __init__(self):
        self.running: dict[str, Logger] = {}

    def start(self, names: Sequence[str], name: str, settings: Mapping[str, Any], folder: Path) -> None:
        """Start those of these ``names``."""
        for kind in names:
            if logger := self._try(kind, lambda kind=kind: LOGGERS[kind](name, settings, folder)):
                self.running[kind] = logger

    def log(self, numbers: Numbers, step: int) -> None:
        for kind, logger in list(self.running.items()):
            self._try(kind, lambda logger=logger: logger.log(numbers, step))

    def __enter__(self) -> None:
        pass

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for kind, logger in list(self.running.items()):
            self._try(kind, lambda logger=logger: logger.end(failed=error is not None))
        self.running.clear()

    def _try(self, kind: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # no connection, no disk, no account: none of it concerns the training
            self.running.pop(kind, None)
            log.warning("logger=%s fails, and the run continues without it: %s", kind, first_line(error))


def check_installed(names: Sequence[str]) -> None:
    """Raise for a logger that is not installed; nothing is imported."""
    for name in names:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            need(name, "loggers")


def read_id(folder: Path, kind: str) -> str | None:
    """The id that a run has elsewhere, if it is one."""
    found = _read_ids(folder).get(kind)
    return found if isinstance(found, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", found) else None


def keep_id(folder: Path, kind: str, run_id: str) -> None:
    """Keep it for when the run is resumed."""
    write_text(folder / IDS, json.dumps(_read_ids(folder) | {kind: run_id}) + "\n")


def _read_ids(folder: Path) -> dict[str, Any]:
    try:
        ids = json.loads((folder / IDS).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return ids if isinstance(ids, dict) else {}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn ``{"optim": {"lr": 0.02}}`` into ``{"optim.lr": 0.02}``."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        deeper = isinstance(value, Mapping) and value
        flat |= flatten(value, f"{prefix}{name}.") if deeper else {f"{prefix}{name}": value}
    return flat
