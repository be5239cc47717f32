"""Every command and snippet in the README runs."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from benchmarks import summary, tables
from cgnl.cli import main
from cgnl.data.synthetic import PARTS
from cgnl.engine.config import default_recipe, load

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TRIED = ["README.md", "docs/getting-started.md", "docs/choosing-a-block.md", "docs/second-order.md"]
"""Documents whose every command and snippet is run."""
RUNS = 'cgnl.load("runs/'
"""In snippets that need what the commands leave."""
PRINTED = {"README.md": "(norm): BatchNorm2d(1024", "docs/second-order.md": "reduced=64, kind='covariance'"}
"""What a snippet prints, among other things."""


def snippets(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


@pytest.mark.parametrize("document", TRIED)
def test_python_snippets_run_in_order(document, capsys):
    script = "\n".join(snippet for snippet in snippets(document, "python") if RUNS not in snippet)
    exec(compile(script, document, "exec"), {"__name__": "__main__"})  # in this process, as below
    assert PRINTED.get(document, "") in capsys.readouterr().out


@pytest.mark.long
def test_commands_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [
        line for document in reversed(TRIED) for block in snippets(document, "bash") for line in block.splitlines()
    ]
    for command in dict.fromkeys(line.split("#")[0].strip() for line in lines):  # some stand in several documents
        fewer = "optim.epochs=2 optim.warmup_epochs=1 data.limit=64"  # all the same steps
        shorter = command.replace("optim.epochs=8", fewer)
        program, *arguments = shlex.split(shorter)
        if program == "make":  # not for real: make test runs this test
            subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, capture_output=True, check=True)
        else:  # in this process: each of its own would import for ten seconds
            assert program == ".venv/bin/cgnl"
            assert main(arguments) == 0, f"{command}: {capsys.readouterr().err}"
    (script,) = [snippet for snippet in snippets("README.md", "python") if RUNS in snippet]
    capsys.readouterr()
    exec(compile(f"import cgnl\n{script}", "README.md", "exec"), {})
    assert capsys.readouterr().out.strip() in PARTS
    assert Path("why.png").stat().st_size > 1000


@pytest.mark.long
def test_lines_of_training_run(tmp_path, monkeypatch, capsys):
    """Those of docs/training.md, on a folder with a CSV file, and a table of Hugging Face."""
    import datasets

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cgnl.report.write.try_to_report", lambda _: None)  # which other tests run
    assert main(["data", "draw", "my_pictures", "count=60"]) == 0
    files = sorted(Path("my_pictures").glob("*/*.png"))
    colours = [file.parent.name.partition("-")[0] for file in files]
    rows = [f"{file.relative_to('my_pictures')},{colour}" for file, colour in zip(files, colours, strict=True)]
    Path("my_pictures/labels.csv").write_text("\n".join(["file,label", *rows]))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=sorted(set(colours)))})
    table = datasets.Dataset.from_dict({"image": list(map(str, files)), "label": colours}, features=features)
    datasets.DatasetDict({"train": table}).save_to_disk("my_table")
    small = ["data.size=64", "data.limit=12", "data.workers=0"]
    small += ["optim.batch_size=4", "optim.epochs=1", "optim.warmup_epochs=0"]
    lines = [line for block in snippets("docs/training.md", "bash") for line in block.splitlines()]
    for line in lines:
        program, *arguments = shlex.split(line)
        trains = arguments[0] == "train" or arguments[:2] == ["data", "show"]
        plain = [] if "model.block" in line else ["model.block=null"]
        shorter = [*arguments, *small, *plain] if trains else arguments
        assert (program, main(shorter)) == ("cgnl", 0), f"{line}: {capsys.readouterr().err}"
    drawn = [Path(line.split(" -o ")[1]) for line in lines if " -o " in line]
    assert drawn
    assert len({path.read_bytes() for path in drawn}) == len(drawn)


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks" / "trainer").glob("*.sh")), ids=lambda path: path.stem)
def test_protocol_has_the_commands_of_each_script(script):
    lines = [line for line in script.read_text().splitlines() if not line.startswith(("#", "set "))]
    commands = "\n".join(line.removesuffix(' "$@"') for line in lines)
    assert f"```\n{commands}\n```" in (ROOT / "docs" / "protocol.md").read_text()
    trainings = [shlex.split(line)[2:-1] for line in lines if line.startswith("cgnl train")]
    assert trainings
    for words in trainings:
        settings = dict(word.split("=", 1) for word in words if "=" in word)
        recipe = next((word for word in words if "=" not in word), default_recipe(settings))
        assert load(recipe, settings).name == settings["name"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_it_links_to_exist(document):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text())
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_scripts_it_names_exist(document):
    names = re.findall(r"python (benchmarks/\S+\.py)", document.read_text())
    assert all((ROOT / name).exists() for name in names)


def test_every_document_is_listed():
    listed = (ROOT / "docs" / "README.md").read_text()
    assert [path.name for path in DOCUMENTS[1:] if path.name != "README.md" and path.name not in listed] == []


@pytest.mark.parametrize("name", tables.TABLES)
def test_tables_are_of_the_files_that_are_kept(name, tmp_path):
    tables.write(tmp_path)
    assert (tmp_path / name).read_text() == (tables.RESULTS / name).read_text()


def test_safety_says_what_came_of_the_last_kills():
    figures = (ROOT / "benchmarks" / "results" / "faults.txt").read_text()
    assert f"```\n{figures}```" in (ROOT / "docs" / "safety.md").read_text()
    assert "300 of 300 endings identical" in figures
    assert re.search(r"^0 of \d+ checkpoints unreadable", figures, re.MULTILINE)


def test_summary_figure_shows_what_the_tables_say():
    found = {title: summary.differences(*where) for title, where in summary.MEASURED.items()}
    pair = found["CUB, 224 px"]["cub_r50_cgnl1"]
    assert (pair.difference.count, pair.paper) == (10, pytest.approx(1.09))
    said = f"R-50 + 1 CGNL: {abs(pair.difference.mean):.2f} points below R-50"
    assert said in (ROOT / "docs" / "results.md").read_text()
    assert found["CUB, 448 px, original files"]["cub_heads_r50_covariance"].difference.mean == pytest.approx(
        2.934, abs=1e-3
    )
    assert found["Pets, 448 px"]["pets_heads_r50_covariance"].difference.mean == pytest.approx(1.161, abs=1e-3)
    assert len(summary.draw().axes) == len(found) == 6
