"""Print the test files of the core and of what differs from the last commit, for ``make check``."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ["tests/ops/test_kernels.py", "tests/ops/test_series.py", "tests/test_architecture.py", "tests/test_surgery.py"]


def mirror(file: str) -> str:
    """The test file of a source file, and of a test file itself: src/cgnl/ops/series.py -> tests/ops/test_series.py."""
    path = Path(file)
    if path.parts[:2] != ("src", "cgnl"):
        return file
    return str(Path("tests", *path.parts[2:-1], f"test_{path.name}"))


def changed() -> list[str]:
    """Python files that differ from the last commit, or are new."""
    lines = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [name for line in lines if (name := line[3:].rpartition(" -> ")[2]).endswith(".py")]


def select(files: list[str]) -> list[str]:
    """Test files to run when these files have changed."""
    found = [name for name in map(mirror, files) if Path(name).name.startswith("test_") and (ROOT / name).is_file()]
    return sorted({*CORE, *found})


if __name__ == "__main__":
    print(*select(changed()))
