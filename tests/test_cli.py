import importlib.abc
import importlib.metadata
import json
import subprocess
import sys

import pytest

import cgnl
from cgnl.cli import COMMANDS, main
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


@pytest.mark.parametrize("command", ["model", "--models", "resnet50"])
def test_main_refuses_an_unknown_command(run, command):
    assert run(command) == (2, "", f"cgnl: there is no command {command!r}; there is {', '.join(COMMANDS)}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_main_command_explains_itself(run, command):
    status, out, err = run(command, "--help")
    assert (status, err) == (0, "")
    assert f"usage: cgnl {command}" in out
    assert COMMANDS[command][1].split()[0].capitalize() in out


@pytest.mark.parametrize("flag", [["json=true"], ["--json", "true"], ["--json=true"], ["--json"]], ids=" ".join)
@pytest.mark.parametrize(
    "options",
    [
        ["name=resnet18", "block=cgnl", "size=32"],
        ["--name", "resnet18", "--block", "cgnl", "--size", "32"],
        ["--name=resnet18", "--block", "cgnl", "size=32"],
    ],
    ids=" ".join,
)
def test_main_models_takes_options_either_way(run, options, flag):
    status, out, err = run("models", *options, *flag)
    assert (status, err) == (0, "")
    (row,) = json.loads(out)
    assert (row["network"], row["blocks"], row["input"]) == ("resnet18", "1 cgnl", "32 x 32")


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


@pytest.mark.parametrize("option", ["--nonsense=1", "nonsense=1", "size=large", "block=gcnl", "resnet18"])
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


@pytest.mark.parametrize(("package", "extra"), [("jsonargparse", "cli"), ("torchvision", "vision")])
def test_main_names_the_missing_extra(run, hide, package, extra):
    hide(package)
    assert run("models", "size=32") == (2, "", f'cgnl models: this needs {package}: pip install "cgnl[{extra}]"\n')


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


def test_need_does_not_hide_a_fault_inside_a_package():
    with pytest.raises(ModuleNotFoundError, match=r"json\.nothing"):
        need("json.nothing", "vision")


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


def test_main_models_needs_no_options(run):
    status, out, err = run("models")
    assert (status, err) == (0, "")
    assert "resnet152" in out


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
