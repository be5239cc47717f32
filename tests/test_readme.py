"""Every command and snippet in the README runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_snippets_run_in_order():
    script = "\n".join(snippets("python"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "(norm): BatchNorm2d(1024" in done.stdout


def test_commands_run_in_order(tmp_path):
    commands = [line.split("#")[0].strip() for block in snippets("bash") for line in block.splitlines()]
    for command in commands:
        program, *arguments = shlex.split(command)
        if program == "make":  # not for real: make test runs this test
            call, place = ["make", "--dry-run", *arguments], ROOT
        else:
            call, place = [Path(sys.executable).with_name(Path(program).name), *arguments], tmp_path
        done = subprocess.run(call, cwd=place, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_files_it_links_to_exist():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_scripts_it_names_exist():
    names = re.findall(r"python (\S+\.py)", README)
    assert names
    assert all((ROOT / name).exists() for name in names)
