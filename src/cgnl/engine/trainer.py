"""Lightning's trainer for the machine that is there."""

import atexit
import gc
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.callbacks import EarlyStopping, WeightAveraging
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..extras import need
from ..spelling import counted
from .callbacks import WholeFiles
from .config import Config
from .ddp import Together

PRECISIONS: dict[str, Any] = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def is_rank_zero() -> bool:
    """Whether this is the process that speaks and writes."""
    return getattr(rank_zero_only, "rank", 0) == 0


def seed_everything(seed: int) -> None:
    """Seed what draws the first weights."""
    pl.seed_everything(seed, verbose=False)


def check_machine(config: Config) -> str:
    """``gpu`` or ``cpu``, if there are as many as the settings say.

    Where torchrun or SLURM has started several processes, each of them would otherwise train by itself.
    """
    tasks = os.environ.get("SLURM_NTASKS") if SLURMEnvironment.detect() else None
    started = int(os.environ.get("WORLD_SIZE") or tasks or 1)
    if started not in (1, config.world):
        raise ValueError(f"{started} processes were started, but devices x nodes = {config.world}")
    gpus = torch.cuda.device_count()
    accelerator = ("gpu" if gpus else "cpu") if config.accelerator == "auto" else config.accelerator
    if accelerator == "gpu" and (config.devices or 1) > gpus:
        raise ValueError(f"{counted(config.devices or 1, 'GPU')} asked for, but there are {gpus}")
    return accelerator


def shares_norms(config: Config) -> bool:
    """Whether the norms of all processes see the samples of all."""
    return config.sync_batchnorm and config.world > 1 and check_machine(config) == "gpu"


def make_trainer(config: Config, folder: Path | None = None, **options: Any) -> pl.Trainer:
    """Lightning's trainer for the machine that is there."""
    quiet()
    accelerator = check_machine(config)
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if accelerator == "gpu" else "32"
    strategy: Any = "auto"
    if config.world > 1:
        strategy = Together(config.timeout)
        atexit.register(part)
    if accelerator == "gpu":
        torch.set_float32_matmul_precision("high")
    return pl.Trainer(
        accelerator=accelerator,
        devices=config.devices or 1,
        num_nodes=config.nodes,
        strategy=strategy,
        precision=PRECISIONS[precision],
        sync_batchnorm=shares_norms(config),
        deterministic=config.deterministic,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        plugins=[WholeFiles(), *([SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else [])],
        **{"benchmark": not config.deterministic, **options},
    )


def part() -> None:
    """End the threads that talk to other processes: one that still frees a tensor when Python ends would abort it."""
    gc.collect()  # finished trainers hold the group
    if dist.is_initialized():
        dist.destroy_process_group()


class Average(WeightAveraging):
    """An average of the weights that lives where they do."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._device = trainer.strategy.root_device  # Lightning's own choice is where the weights were before
        super().setup(trainer, pl_module, stage)


def averaging(config: Config) -> list[Any]:
    """The average of the weights, if it is asked for."""
    return [Average(multi_avg_fn=get_ema_multi_avg_fn(config.optim.ema))] if config.optim.ema else []


def stopping(config: Config, metric: str) -> list[Any]:
    """Stopping when tests do not get better, if it is asked for."""
    return [] if config.patience is None else [EarlyStopping(metric, mode="max", patience=config.patience)]


def tensorboard(config: Config, folder: Path) -> Any:
    """A TensorBoard logger, if it is asked for."""
    if not config.tensorboard:
        return False
    need("tensorboard", "all")
    return TensorBoardLogger(str(folder), name=None, version="tensorboard")


def quiet() -> None:
    """Let Lightning speak only when something is wrong."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", category=UserWarning, message=".*lr_scheduler.step.*")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
