import errno
import importlib.abc
import importlib.metadata
import inspect
import json
import re
import subprocess
import sys
import types
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cgnl
from cgnl.cli import COMMANDS, main
from cgnl.engine.settings import setting_names
from cgnl.extras import need

HEAVY = ["torch", "numpy", "torchvision", "jsonargparse", "timm", "lightning", "triton", "safetensors"]


@pytest.fixture
def run(capsys):
    """The command's exit status, and what it printed to stdout and stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(list(arguments))
        except SystemExit as stop:
            status = int(stop.code or 0)
        return status, *capsys.readouterr()

    return call


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"], []], ids=str)
def test_main_help_lists_every_command(run, arguments):
    status, out, err = run(*arguments)
    assert (status, err) == (0, "")
    assert out.startswith(f"cgnl {cgnl.__version__}")
    for name, (_, text) in COMMANDS.items():
        assert f"  {name:10} {text}" in out


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_main_version(run, flag):
    assert run(flag) == (0, f"{cgnl.__version__}\n", "")


def test_main_is_the_installed_command():
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="cgnl")
    assert command.load() is main


def test_main_reads_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cgnl", "--version"])
    assert main() == 0
    assert capsys.readouterr().out == f"{cgnl.__version__}\n"


@pytest.mark.parametrize(
    ("command", "hint"),
    [("model", "did you mean models?"), ("tarin", "did you mean train?"), ("zzz", f"there is {', '.join(COMMANDS)}")],
)
def test_main_refuses_an_unknown_command(run, command, hint):
    assert run(command) == (2, "", f"cgnl: there is no command {command!r}; {hint}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_main_command_explains_itself(run, command):
    status, out, err = run(command, "--help")
    assert (status, err) == (0, "")
    assert f"usage: cgnl {command}" in out
    assert "options:" in out
    parameters = inspect.signature(getattr(importlib.import_module(f"cgnl.commands.{command}"), command)).parameters
    options = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    assert [name for name in options if f"--{name}" not in out] == []


@pytest.mark.parametrize("flag", [["json=true"], ["--json", "true"], ["--json=true"], ["--json"]], ids=" ".join)
@pytest.mark.parametrize(
    "options",
    [
        ["name=c2d_resnet18", "block=cgnl", "size=32"],
        ["--name", "c2d_resnet18", "--block", "cgnl", "--size", "32"],
        ["--name=c2d_resnet18", "--block", "cgnl", "size=32"],
        ["c2d_resnet18", "cgnl", "size=32"],
    ],
    ids=" ".join,
)
def test_main_models_takes_options_either_way(run, options, flag):
    status, out, err = run("models", *options, *flag)
    assert (status, err) == (0, "")
    (row,) = json.loads(out)
    assert (row["network"], row["blocks"], row["input"]) == ("c2d_resnet18", "1 cgnl", "32 x 32 x 32")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["size=0"], "size = 0"),
        (["size=-32"], "size = -32"),
        (["frames=7"], "frames = 7"),
        (["name=vgg16"], "no network has 'vgg16' in its name: there is resnet18, "),
        (["name=resnet18", "num_classes=0"], "num_classes = 0"),
        (["name=resnet18", "block=cgnl", "blocks=4"], "blocks = 4"),
        (["name=resnet18", "block=cgnl", "groups=7"], "groups = 7"),
        (["name=resnet18", "block=cgnl", "groups=0"], "groups = 0"),
        (["name=resnet18", "groups=4"], "no block is asked for"),
        (["name=resnet18", "block=nl", "groups=4"], "groups"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_main_models_explains_an_error_in_one_line(run, options, message):
    status, out, err = run("models", *options)
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("cgnl models: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["--nonsense=1", "nonsense=1", "size=large", "block=gcnl", "vgg16"])
def test_main_models_refuses_what_it_cannot_read(run, option):
    status, out, err = run("models", option)
    assert (status, out) == (2, "")
    assert option.lstrip("-").partition("=")[0] in err
    assert "Traceback" not in err


@pytest.fixture
def hide(monkeypatch):
    """Make ``import package`` fail as if it were not installed."""

    def call(package: str) -> None:
        class Missing(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):  # noqa: ARG002
                if name == package:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        for module in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])

    return call


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("torchvision", ["models", "size=32"], "vision"),
        ("matplotlib", ["app", "best.ckpt"], "app"),
        ("jsonargparse", ["models"], "cli"),
        ("jsonargparse", ["predict"], "train"),
        ("jsonargparse", ["reproduce"], "reproduce"),
    ],
    ids=str,
)
def test_main_names_the_missing_extra(run, hide, package, arguments, extra):
    hide(package)
    assert run(*arguments) == (2, "", f'cgnl {arguments[0]}: this needs {package}: pip install "cgnl[{extra}]"\n')


def test_main_names_the_extra_of_a_command_that_imports_what_is_missing(run, hide, monkeypatch):
    hide("lightning")
    module: Any = types.ModuleType("recorder")
    module.eval = lambda: importlib.import_module("lightning")
    monkeypatch.setitem(sys.modules, "cgnl.commands.eval", module)
    assert run("eval") == (2, "", 'cgnl eval: this needs lightning: pip install "cgnl[train]"\n')


def test_main_names_the_file_that_the_system_refuses(run, monkeypatch):
    def refuse() -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", "ro/a.png")

    monkeypatch.setattr("cgnl.commands.models.models", refuse)
    assert run("models") == (2, "", "cgnl models: ro/a.png cannot be read or written: Operation not permitted\n")


def test_main_tells_a_full_disk_without_its_number(run, monkeypatch):
    def refuse() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cgnl.commands.models.models", refuse)
    status, _, err = run("models")
    assert (status, err.count("\n")) == (2, 1)
    assert "No space left on device" in err
    assert "Errno" not in err


def test_every_command_has_an_extra():
    extras = importlib.metadata.metadata("cgnl").get_all("Provides-Extra")
    assert {extra for extra, _ in COMMANDS.values()} <= set(extras or ())


@pytest.mark.parametrize("arguments", [[], ["--version"]], ids=str)
def test_main_ends_quietly_when_nobody_reads_on(monkeypatch, tmp_path, arguments):
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr("builtins.print", lambda *_, **__: (_ for _ in ()).throw(BrokenPipeError))
        monkeypatch.setattr(sys, "stdout", out)
        assert main(arguments) == 1


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("torchvision", lambda _: cgnl.create_model("resnet18")),
        ("safetensors", lambda path: cgnl.models.load_weights(cgnl.CGNL(16), path)),
    ],
    ids=["torchvision", "safetensors"],
)
def test_need_names_the_missing_extra(hide, tmp_path, package, call):
    hide(package)
    path = tmp_path / "weights.safetensors"
    path.touch()
    with pytest.raises(ModuleNotFoundError, match=rf'this needs {package}: pip install "cgnl\[vision\]"') as error:
        call(path)
    assert error.value.name == package


@pytest.mark.parametrize(
    "statement", ["import cgnl", "from cgnl.cli import main; main(['--help'])"], ids=["import", "help"]
)
def test_main_help_and_import_load_nothing_heavy(statement):
    script = f"import sys; {statement}; print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_core_needs_torch_alone():
    script = f"""
import sys
for name in {HEAVY[2:]}:
    sys.modules[name] = None
import cgnl, torch
for name in cgnl.__all__:
    getattr(cgnl, name)
print(list(cgnl.insert(torch.nn.Sequential(torch.nn.Conv2d(3, 16, 1)), "cgnl", "0")._modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "['0', '0_cgnl']\n"


@pytest.fixture
def recorded(monkeypatch):
    """What the functions of ``cgnl train``, ``predict`` and ``copy`` are called with."""
    calls: list[dict[str, Any]] = []

    def train(recipe: str | None = None, *, resume: bool = False, **settings: Any) -> None:
        calls.append({"recipe": recipe, "resume": resume, **settings})

    def predict(checkpoint: str, *files: str, top: int = 5, json: bool = False) -> None:
        calls.append({"checkpoint": checkpoint, "files": files, "top": top, "json": json})

    def copy(source: str, target: str, size: int = 1) -> None:
        calls.append({"source": source, "target": target, "size": size})

    monkeypatch.setitem(COMMANDS, "copy", ("cli", "copy something"))
    for function in (train, predict, copy):
        module = types.ModuleType(function.__name__)
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, f"cgnl.commands.{function.__name__}", module)
    return calls


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a", "b"], {"source": "a", "target": "b", "size": 1}),
        (["a", "b", "3"], {"source": "a", "target": "b", "size": 3}),
        (["source=a", "b"], {"source": "a", "target": "b", "size": 1}),
        (["b", "--source", "a", "size=3"], {"source": "a", "target": "b", "size": 3}),
        (["--target=b", "a", "3"], {"source": "a", "target": "b", "size": 3}),
        (["./a=b", "-"], {"source": "./a=b", "target": "-", "size": 1}),
        (["source=a=b", "target="], {"source": "a=b", "target": "", "size": 1}),
    ],
    ids=str,
)
def test_main_words_fill_parameters_in_order(run, recorded, arguments, expected):
    assert run("copy", *arguments) == (0, "", "")
    assert recorded == [expected]


@pytest.mark.parametrize(
    "arguments",
    [
        ["best.ckpt", "1.png", "2.png", "--top", "3", "--json"],
        ["--json", "best.ckpt", "1.png", "top=3", "2.png"],
        ["1.png", "2.png", "--checkpoint=best.ckpt", "--top=3", "json=true"],
    ],
    ids=" ".join,
)
def test_main_words_left_over_are_the_files(run, recorded, arguments):
    assert run("predict", *arguments) == (0, "", "")
    assert recorded == [{"checkpoint": "best.ckpt", "files": ("1.png", "2.png"), "top": 3, "json": True}]


@pytest.mark.parametrize(
    ("arguments", "resume"),
    [([], False), (["--resume"], True), (["--resume", "true"], True), (["--resume", "false"], False),
     (["resume=true"], True), (["--resume=false"], False)],
    ids=str,
)  # fmt: skip
def test_main_switch_needs_no_value(run, recorded, arguments, resume):
    assert run("train", *arguments, "parts") == (0, "", "")
    assert recorded == [{"recipe": "parts", "resume": resume}]


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (["optim.lr=0.02"], {"optim.lr": "0.02"}),
        (["--optim.lr", "0.02"], {"optim.lr": "0.02"}),
        (["--optim.batch-size=8"], {"optim.batch_size": "8"}),
        (["--optim.momentum", "-1"], {"optim.momentum": "-1"}),
        (["--deterministic"], {"deterministic": "true"}),
        (["--deterministic", "false"], {"deterministic": "false"}),
        (["--data.flip", "--compile"], {"data.flip": "true", "compile": "true"}),
        (["model.options.groups=4"], {"model.options.groups": "4"}),
        (["data.root=a=b"], {"data.root": "a=b"}),
        (["seed=1", "--seed=2"], {"seed": "2"}),
    ],
    ids=str,
)
def test_main_train_passes_settings_by_their_dotted_names(run, recorded, arguments, settings):
    assert run("train", *arguments, "parts") == (0, "", "")
    assert recorded == [{"recipe": "parts", "resume": False, **settings}]


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("train", ["optim.lrr=1"], "there is no option 'optim.lrr'; did you mean optim.lr?"),
        ("train", ["lr=1"], "there is no option 'lr'; did you mean optim.lr?"),
        ("train", ["--batch-size", "8"], "there is no option 'batch_size'; did you mean optim.batch_size?"),
        ("train", ["--resum"], "there is no option 'resum'; did you mean resume?"),
        ("predict", ["--jsn"], "there is no option 'jsn'; did you mean json?"),
        ("predict", ["zzzz=1"], "there is no option 'zzzz'; there is checkpoint, top, json"),
        ("train", ["--optim.lr"], "--optim.lr needs a value"),
        ("predict", ["best.ckpt", "--top"], "--top needs a value"),
        ("predict", ["best.ckpt", "top=abc"], "top = abc must be a whole number"),
        ("predict", [], "checkpoint is missing; see cgnl predict --help"),
        ("copy", ["a"], "target is missing; see cgnl copy --help"),
        ("copy", ["a", "b", "3", "d"], "there is no place for 'd'; see cgnl copy --help"),
        ("train", ["parts", "resume"], "there is no place for 'resume'; see cgnl train --help"),
    ],
    ids=str,
)
def test_main_says_what_is_wrong_with_the_arguments(run, recorded, command, arguments, message):
    assert run(command, *arguments) == (2, "", f"cgnl {command}: {message}\n")
    assert recorded == []


@pytest.mark.parametrize("flag", [["--help"], ["-h"], ["parts", "seed=1", "--help"]], ids=" ".join)
def test_main_train_help_explains_the_settings(run, recorded, flag):
    status, out, err = run("train", *flag)
    assert (status, err, recorded) == (0, "", [])
    text = " ".join(out.split())
    for name in setting_names():
        assert f"--{name} " in text
    assert re.search(r"--optim.batch_size INT [^-]*\(default: 64\)", text)
    assert re.search(r"--optim.schedule cosine\|step [^-]*\(default: cosine\)", text)
    assert re.search(r"--data.flip true\|false [^-]*\(default: true\)", text)
    assert "[9, 10]" in text


def test_main_train_help_names_only_options_it_takes(run, recorded):
    _, out, _ = run("train", "--help")
    listed = {line.split()[0].removeprefix("--") for line in out.splitlines() if line.startswith("  --")}
    assert listed - {"recipe", "resume", *setting_names()} == set()
    assert (len(listed) > 50, recorded) == (True, [])


WITHOUT_TORCH = [
    *([command, "--help"] for command in COMMANDS),
    *([command, "--hlep"] for command in COMMANDS),
    ["train", "optim.lrr=1"],
    ["train", "optim.optimizer=adam"],
    ["train", "optim.lr=fast"],
    ["train", "data.size=0"],
    ["train", "prts"],
    ["train", "model.name=resnet5"],
    ["train", "model.block=cgnll"],
    ["train", "model.options.group=4"],
    ["train", "model.options.groups=many"],
    ["train", "data.dataset=cubb"],
    ["train", "data.augment=auto"],
    ["train", "data.dataset=coco", "data.mixup=0.2"],
    ["eval", "last.ckpt", "data.test_clips=many"],
    ["predict", "last.ckpt", "a.png", "top=0"],
    ["export", "last.ckpt", "model.onx"],
    ["data", "check", "folder", "dataset=cubb"],
    ["data", "draw", "folder", "dataset=part"],
    ["data", "show", "folder", "data.erase=2"],
    ["data", "show", "folder", "-o", "batch.txt"],
    ["models", "vgg"],
    ["models", "block=gcnl"],
    ["new"],
    ["train", "data.root=nowhere"],
    ["train", "data.root=https://example.org/birds"],
    ["train", "data.labels=nowhere.csv"],
    ["train", "model.weights=nowhere.pth"],
    ["train", "model.weights=IMAGNET1K_V1"],
    ["train", "--resume", "nowhere"],
    ["data", "show", "nowhere"],
    *([command, "nowhere.ckpt"] for command in ("eval", "diagnose", "report")),
    ["predict", "nowhere.ckpt", "."],
    ["predict", "nowhere.onnx", "."],
    ["explain", "nowhere.ckpt", "."],
    ["export", "nowhere.ckpt", "model.onnx"],
    ["new", "nowhere"],
    ["new", "folder", "-o", "recipe.txt"],
    ["explain", "a.ckpt", "a.png", "--at", "1"],
    ["explain", "a.ckpt", "a.png", "columns=0"],
    ["report", "run", "-o", "a.pdf"],
    ["app", "a.ckpt", "--port", "70000"],
    ["bench", "blok"],
    ["bench", "ops", "norm=batch"],
    ["bench", "block", "dtype=bfloat"],
    ["bench", "block", "size=x"],
]


def test_main_explains_and_refuses_without_torch():
    script = f"""
import sys
from cgnl.cli import main
for arguments in {WITHOUT_TORCH}:
    status = main(arguments)
    assert status == (0 if "--help" in arguments else 2), arguments
    assert not {{"torch", "numpy", "lightning"}} & set(sys.modules), arguments
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: cgnl") == len(COMMANDS)
    assert len(done.stderr.splitlines()) == len(WITHOUT_TORCH) - len(COMMANDS)


def test_main_data_checks_a_folder(run, tmp_path):
    image = need("PIL.Image", "data")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        image.new("RGB", (8, 6)).save(tmp_path / name / "1.png")
    status, out, err = run("data", "check", str(tmp_path))
    assert (status, err) == (0, "")
    assert "2 classes of images" in out
    (tmp_path / "dog" / "1.png").write_bytes(b"")
    status, out, err = run("data", "check", str(tmp_path))
    assert status == 2
    assert "no readable training sample for class dog" in err


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["predict", "eval", "data", "report", "explain"]), st.lists(st.text(max_size=12), max_size=4))
def test_any_words_are_answered_in_one_line(run, command, words):
    status, _, err = run(command, "nowhere.ckpt", *(word.replace("\0", "") for word in words if "help" not in word))
    assert status in (0, 2)
    assert err.count("\n") == (status == 2)
    assert err[:-1].isprintable()
