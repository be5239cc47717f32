"""Loggers: fakes in place of modules that may be missing, and the real ones, offline, where they are installed."""

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cgnl.engine.config import build, load
from cgnl.engine.loggers import IDS, LOGGERS, Loggers, check_installed, flatten, keep_id, read_id
from cgnl.extras import need

from .conftest import Death, dying, options, same, weights

RECIPES = {"one": "logger: wandb", "list": "logger: [tensorboard, mlflow]", "text": "logger: '[wandb]'"}


class FakeRun:
    """A run at the fake W&B."""

    def __init__(self, **given: Any):
        self.given, self.logged, self.exit_code = given, [], None

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.logged.append((step, numbers))

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


@pytest.fixture
def wandb(monkeypatch):
    """The runs of a fake W&B."""
    runs: list[FakeRun] = []
    fake: Any = ModuleType("wandb")
    fake.Settings = lambda **settings: settings
    fake.init = lambda **given: runs.append(FakeRun(**given)) or runs[-1]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return runs


class FakeClient:
    """The fake MLflow, by its address."""

    stores: dict[str, dict[str, Any]] = {}  # noqa: RUF012

    def __init__(self, tracking_uri: str):
        self.runs = self.stores.setdefault(tracking_uri, {})

    def get_experiment_by_name(self, _: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return f"experiment {name}"

    def create_run(self, experiment: str, run_name: str) -> Any:
        number = f"{len(self.runs):032x}"
        self.runs[number] = {"of": (experiment, run_name), "status": "RUNNING", "metrics": [], "params": {}}
        return SimpleNamespace(info=SimpleNamespace(run_id=number))

    def update_run(self, number: str, status: str) -> None:
        self.runs[number]["status"] = status

    def log_batch(self, number: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(params) <= 100
        self.runs[number]["metrics"] += metrics
        self.runs[number]["params"] |= dict(params)

    set_terminated = update_run


@pytest.fixture
def mlflow(monkeypatch):
    """What a fake MLflow holds, by address and run."""
    fake: Any = ModuleType("mlflow")
    fake.MlflowClient = FakeClient
    fake.entities = SimpleNamespace(Metric=lambda *fields: fields, Param=lambda *fields: fields)
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setattr(FakeClient, "stores", {})
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return FakeClient.stores


def test_wandb_gets_name_settings_and_every_row(run, wandb):
    result = run(logger="wandb")
    (logged,) = wandb
    assert (logged.given["name"], logged.given["dir"]) == ("run", str(result.folder))
    assert logged.given["config"]["optim"]["lr"] == 0.8
    assert logged.exit_code == 0
    found: dict[int, dict[str, float]] = {}
    for step, numbers in logged.logged:
        found.setdefault(step, {}).update(numbers)
    assert sorted(found) == [row["step"] for row in result.rows]
    for row in result.rows:
        assert found[row["step"]]["train_loss"] == row["train_loss"]
        assert found[row["step"]]["test_macro_f1"] == row["test_macro_f1"]


def test_wandb_goes_on_with_the_run(run, wandb, monkeypatch):
    with monkeypatch.context() as patch:
        dying(patch, 4)
        with pytest.raises(Death):
            run(logger="wandb")
    assert wandb[0].exit_code == 1
    folder = run(resume=True, logger="wandb").folder
    first, second = (one.given["id"] for one in wandb)
    assert first == second == json.loads((folder / IDS).read_text())["wandb"]
    assert [one.given["resume"] for one in wandb] == ["allow", "allow"]
    assert [step for step, _ in wandb[1].logged] == [6, 6]
    assert run(logger="wandb", name="another")
    assert wandb[2].given["id"] != first


def test_mlflow_writes_into_the_folder(run, mlflow):
    result = run(logger="mlflow")
    assert list(mlflow) == [(result.folder / "mlruns").absolute().as_uri()]
    (logged,) = next(iter(mlflow.values())).values()
    assert (logged["of"], logged["status"]) == (("experiment cgnl", "run"), "FINISHED")
    assert (logged["params"]["optim.lr"], logged["params"]["seed"]) == ("0.8", "0")
    losses = [(step, value) for name, value, _, step in logged["metrics"] if name == "train_loss"]
    assert losses == [(row["step"], row["train_loss"]) for row in result.rows]


def test_mlflow_goes_on_with_the_run_at_the_same_address_alone(run, mlflow, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "fake://one")
    run(logger="mlflow")
    run(resume=True, logger="mlflow", optim__epochs=3)
    assert [len(runs) for runs in mlflow.values()] == [1]
    (logged,) = mlflow["fake://one"].values()
    assert [step for name, _, _, step in logged["metrics"] if name == "lr"] == [3, 6, 9]
    assert logged["params"]["optim.epochs"] == "2"  # params of a run cannot be changed
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "fake://two")
    run(resume=True, logger="mlflow", optim__epochs=4)
    assert [len(runs) for runs in mlflow.values()] == [1, 1]


def test_several_loggers_change_nothing_in_the_training(run, wandb, mlflow, tmp_path):
    plain = run(runs=tmp_path / "plain").folder / "last.ckpt"
    logged = run(runs=tmp_path / "logged", logger=["tensorboard", "wandb", "mlflow", "wandb"]).folder
    assert same(weights(plain), weights(logged / "last.ckpt"))
    assert (len(wandb), len(mlflow)) == (1, 1)
    assert list(logged.rglob("events*"))


@pytest.mark.parametrize("where", ["init", "log", "finish"])
@pytest.mark.usefixtures("wandb")
def test_a_logger_that_fails_is_named_once_and_stops_nothing(run, mlflow, monkeypatch, where):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    if where == "init":
        monkeypatch.setattr(sys.modules["wandb"], "init", fail)
    else:
        monkeypatch.setattr(FakeRun, where, fail)
    result = run(logger=("wandb", "mlflow"))
    log = (result.folder / "log.txt").read_text()
    assert log.count("no route to host") == log.count("logger=wandb") == 1
    assert (result.folder / "results.json").exists()
    (logged,) = next(iter(mlflow.values())).values()
    assert logged["status"] == "FINISHED"


def test_tensorboard_by_either_name():
    assert build({"tensorboard": True}).loggers == build({"logger": "tensorboard"}).loggers == ("tensorboard",)
    assert build({"tensorboard": True, "logger": ["wandb", "tensorboard"]}).loggers == ("tensorboard", "wandb")
    assert build({}).loggers == build({"logger": []}).loggers == build({"logger": "none"}).loggers == ()


@pytest.mark.parametrize("value", ["tensorbord", "[wandb,comet]", "3", "null"])
def test_unknown_loggers_are_refused(value, cgnl):
    status, _, said = cgnl("train", f"logger={value}")
    assert status == 2
    assert f"logger = {value}" in said
    assert "mlflow" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("text", RECIPES.values(), ids=RECIPES)
def test_a_recipe_opens_no_address(tmp_path, text):
    recipe, extending = tmp_path / "strange.yaml", tmp_path / "extending.yaml"
    recipe.write_text(text)
    extending.write_text("extends: strange")
    for file in (recipe, extending):
        with pytest.raises(ValueError, match="logger"):
            load(file)
        assert load(file, {"logger": "none"}).loggers == ()
        assert load(file, {"logger": "wandb"}).loggers == ("wandb",)
    recipe.write_text("logger: tensorboard")
    assert load(recipe).loggers == ("tensorboard",)


def test_a_run_folder_opens_no_address(cgnl, wandb, tmp_path):
    small = [*options(runs=tmp_path, name="x"), "optim.epochs=1"]
    assert cgnl("train", "parts", *small, "logger=[tensorboard,wandb]")[0] == 0
    status, _, said = cgnl("train", "--resume", tmp_path / "x", "optim.epochs=2")
    assert (status, len(wandb)) == (0, 1)
    assert "logger=wandb" in said
    assert cgnl("train", "--resume", tmp_path / "x", "optim.epochs=3", "logger=wandb")[0] == 0
    assert [one.given["id"] for one in wandb] == [wandb[0].given["id"]] * 2


def test_a_missing_logger_is_named_before_anything_is_done(cgnl, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.delitem(sys.modules, "mlflow")
    monkeypatch.setattr("cgnl.engine.loggers.need", lambda name, extra: need(f"{name}_that_is_missing", extra))
    status, _, said = cgnl("train", *options(runs=tmp_path / "runs"), "logger=mlflow")
    assert (status, "cgnl[loggers]" in said) == (2, True)
    assert not (tmp_path / "runs").exists()
    check_installed([])


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"wandb": 3}', '{"wandb": "../../x"}', '{"wandb": "a b"}', "[" * 99999]
)
def test_ids_that_are_none_are_not_used(tmp_path, text):
    (tmp_path / IDS).write_text(text)
    assert read_id(tmp_path, "wandb") is None
    keep_id(tmp_path, "wandb", "abc")
    keep_id(tmp_path, "mlflow", "def")
    assert (read_id(tmp_path, "wandb"), read_id(tmp_path, "mlflow")) == ("abc", "def")


def test_flattened_settings_have_dotted_names():
    assert flatten({"a": {"b": {"c": 1}, "d": {}}, "e": [1]}) == {"a.b.c": 1, "a.d": {}, "e": [1]}


@pytest.mark.parametrize("name", LOGGERS)
def test_the_real_ones_offline(name, tmp_path, monkeypatch):
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    loggers = Loggers()
    for step in (1, 2):
        loggers.start([name], "a name", {"optim": {"lr": 0.1}, "seed": 0}, tmp_path)
        assert list(loggers.running) == [name]
        with loggers:
            loggers.log({"train_loss": 1.5 / step}, step)
            loggers.log({"test_top1": 0.5, "odd": float("nan")}, step)
            assert list(loggers.running) == [name]
    if name == "mlflow":
        client = sys.modules["mlflow"].MlflowClient((tmp_path / "mlruns").as_uri())
        number = read_id(tmp_path, "mlflow")
        assert [(m.step, m.value) for m in client.get_metric_history(number, "train_loss")] == [(1, 1.5), (2, 0.75)]
        assert client.get_run(number).data.params == {"optim.lr": "0.1", "seed": "0"}
        assert client.get_run(number).info.status == "FINISHED"
    if name == "wandb":
        files = list((tmp_path / "wandb").glob(f"offline-run-*-{read_id(tmp_path, 'wandb')}"))
        assert files
        assert all(list(folder.glob("*.wandb")) for folder in files)
