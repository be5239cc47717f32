"""Visit the page of ``cgnl app`` with many visitors at once, as a browser does, and compare every answer.

    python -m benchmarks.page_load [--requests 500] [--visitors 20] [--output benchmarks/results/page_load.txt]

Half of the requests are for a network of pictures and half for one of clips, each with a server of its own. A visitor
uploads a file, gets its figure, clicks on it, and asks for another style. What each gets (picture, caption, classes) is
compared with what a visitor got who was alone. Measured are the seconds of each request, the memory of the servers, and
the files that are left when they have had their time. A server may grow by ``ROOM`` bytes.
"""

import hashlib
import itertools
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cgnl.data.images import to_image
from cgnl.data.video import write_video
from cgnl.explain.figure import RATE
from tests.engine.conftest import register, write_checkpoint
from tests.explain.conftest import CLASSES, enlarge

from .harness import make_parser, report

ROOM = 256 * 2**20
"""Bytes by which a server may grow after its first dozen visits: what 20 visitors see, and the threads for them."""
CLICKS = ((40, 30), (300, 400))
"""Pixels of the shown picture."""
FILES = 6
"""Different pictures, or clips."""
VISIT = 5
"""Requests of a visit."""
SHOWN = ("look0", "caption0", "top0", "download")
"""What is compared."""
SAME = object()
"""The value of a component that an event leaves as it is."""
ROOT = Path(__file__).parents[1]
SERVER = """
import os, signal, sys
from pathlib import Path
from cgnl.cli import main
from cgnl.report import app
from tests.engine.conftest import register
register()
signal.signal(signal.SIGUSR1, lambda *_: app.remove_old(Path(os.environ["GRADIO_TEMP_DIR"]), 0))
sys.exit(main(["app", *sys.argv[1:]]))
"""
"""The command with small networks known; a signal makes every file one that has had its time."""


class Server(NamedTuple):
    """A server under way."""

    address: str
    pid: int
    folder: Path
    """Where it keeps files."""

    @property
    def memory(self) -> int:
        """Resident, in bytes."""
        return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[0]) * 1024

    @property
    def files(self) -> list[str]:
        """What it has written for visitors, with folders."""
        return [f"{path.relative_to(self.folder)}{'/' * path.is_dir()}" for path in self.folder.rglob("*")]


@dataclass
class Figures:
    """What came of it."""

    seconds: list[float] = field(default_factory=list)
    """Of each request."""
    lost: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    grown: int = 0
    """Bytes by which a server grew, the larger of both."""
    most: int = 0
    """Files at the end of the visits."""
    left: list[str] = field(default_factory=list)
    """Files when they have had their time."""


@contextmanager
def serving(checkpoint: Path, folder: Path) -> Iterator[Server]:
    """The real command in a process of its own, with a small network."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir()
    command = [sys.executable, "-c", SERVER, str(checkpoint), f"port={port}", "device=cpu"]
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if "is open" not in process.stdout.readline():
                raise RuntimeError(f"the server ended with {process.wait()}")
            (place,) = folder.glob("cgnl-app-*")
            yield Server(f"http://127.0.0.1:{port}", process.pid, place)
        finally:
            process.terminate()


class Page:
    """The page as a browser's script knows it: components by their names, and what happens to them."""

    def __init__(self, server: Server):
        self.address = server.address
        config = json.loads(get(f"{self.address}/config"))
        self.names = {c["id"]: c["props"].get("elem_id") or str(c["id"]) for c in config["components"]}
        self.values = {self.names[c["id"]]: c["props"].get("value") for c in config["components"]}
        self.events = config["dependencies"]

    def event(self, name: str, what: str) -> dict[str, Any]:
        """What follows when something happens to a component."""
        (found,) = (e for e in self.events if any(self.names.get(i) == name and w == what for i, w in e["targets"]))
        return found

    def after(self, event: dict[str, Any]) -> dict[str, Any]:
        """What follows when that went well."""
        (found,) = (
            e for e in self.events if e.get("trigger_after") == event["id"] and e.get("trigger_only_on_success")
        )
        return found


class Visitor:
    """One browser with the page open."""

    def __init__(self, page: Page, name: str):
        self.page, self.name, self.values = page, name, dict(page.values)

    def upload(self, path: Path) -> dict[str, Any]:
        """Drop in a file; what is shown then."""
        mark = "a-boundary"
        head = f'--{mark}\r\nContent-Disposition: form-data; name="files"; filename="{path.name}"\r\n\r\n'
        body = head.encode() + path.read_bytes() + f"\r\n--{mark}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={mark}"}
        (stored,) = json.loads(get(f"{self.page.address}/gradio_api/upload", body, headers))
        self.values["file"] = {"path": stored, "orig_name": path.name, "meta": {"_type": "gradio.FileData"}}
        return self.send(self.page.event("file", "upload"))

    def figure(self) -> dict[str, Any]:
        """What can be downloaded after an upload."""
        return self.send(self.page.after(self.page.event("file", "upload")))

    def click(self, at: tuple[int, int]) -> dict[str, Any]:
        return self.send(self.page.event("look0", "select"), {"index": at, "value": None})

    def choose(self, style: str) -> dict[str, Any]:
        self.values["style"] = style
        return self.send(self.page.event("style", "input"))

    def send(self, event: dict[str, Any], data: Any = None) -> dict[str, Any]:
        """Send an event with what is chosen, wait for the answer, and fetch the files that it names."""
        names, api = self.page.names, f"{self.page.address}/gradio_api"
        inputs = [self.values[names[number]] for number in event["inputs"]]
        body = {"session_hash": self.name, "fn_index": event["id"], "data": inputs, "event_data": data}
        asked = json.loads(get(f"{api}/queue/join", json.dumps(body).encode(), {"Content-Type": "application/json"}))
        with opened(f"{api}/queue/data?session_hash={self.name}") as stream:
            for line in stream:
                said = json.loads(line[6:]) if line.startswith(b"data: ") else {}
                if said.get("msg") == "process_completed" and said["event_id"] == asked["event_id"]:
                    break
            else:
                raise ValueError("there was no answer")
        if not said["success"]:
            raise ValueError(f"it was refused: {said['output']}")
        answer = dict(zip((names[number] for number in event["outputs"]), said["output"]["data"], strict=True))
        answer = {name: changed(value) for name, value in answer.items() if changed(value) is not SAME}
        self.values |= answer
        return {name: self.fetched(answer[name]) for name in SHOWN if name in answer}

    def fetched(self, value: Any) -> Any:
        """A file by its content, everything else as it is."""
        if isinstance(value, dict) and "path" in value:
            content = get(f"{self.page.address}/gradio_api/file={urllib.parse.quote(value['path'])}")
            return hashlib.sha256(content).hexdigest()
        return value

    def visit(self, file: Path, at: tuple[int, int]) -> Iterator[tuple[str, Any, float]]:
        """Upload, figure, click, heat: the answers, each with its seconds."""
        requests = {
            "upload": lambda: self.upload(file),
            "figure": self.figure,
            "click": lambda: self.click(at),
            "heat": lambda: self.choose("heat"),
            "patches": lambda: self.choose("patches"),
        }
        for name, ask in requests.items():
            began = time.perf_counter()
            answer = ask()
            yield name, answer, time.perf_counter() - began


def opened(address: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Any:
    return urllib.request.urlopen(urllib.request.Request(address, body, headers or {}), timeout=120)  # noqa: S310


def get(address: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    with opened(address, body, headers) as answer:
        return answer.read()


def changed(value: Any) -> Any:
    """The new value of a component."""
    return value.get("value", SAME) if isinstance(value, dict) and value.get("__type__") == "update" else value


def write_files(folder: Path, clips: bool) -> list[Path]:
    """Pictures, or clips, whose answers differ."""
    folder.mkdir()
    random_pixels = torch.Generator().manual_seed(0)
    paths = [folder / f"{number}.{'mp4' if clips else 'png'}" for number in range(FILES)]
    for path in paths:
        coarse = torch.rand((6, 3, 2, 3) if clips else (1, 3, 4, 6), generator=random_pixels)
        pixels = torch.nn.functional.interpolate(coarse, scale_factor=16 if clips else 8, mode="nearest")
        pixels = (pixels * 255).to(torch.uint8)
        write_video(pixels, RATE, path) if clips else to_image(pixels[0]).save(path)
    return paths


def visit(server: Server, files: list[Path], visits: int, visitors: int, figures: Figures) -> None:
    """Learn the answers from a visitor who is alone, then have many at once."""
    page, keys = Page(server), list(itertools.product(files, CLICKS))
    alone = {}
    for number, (file, at) in enumerate(keys):
        alone[file, at] = [(name, answer) for name, answer, _ in Visitor(page, f"alone{number}").visit(file, at)]
    told_apart = {json.dumps(answers, sort_keys=True) for answers in alone.values()}
    if len(told_apart) < len(keys):
        raise RuntimeError("the answers to different files are the same")
    before, lock = server.memory, threading.Lock()

    def work(name: int) -> None:
        rng, visitor = random.Random(name), Visitor(page, f"visitor{name}")
        for _ in range(visits // visitors + (name < visits % visitors)):
            key = rng.choice(keys)
            visitor.values["style"] = "patches"
            expected = iter(alone[key])
            done = 0
            try:
                for what, answer, seconds in visitor.visit(*key):
                    done += 1
                    with lock:
                        figures.seconds.append(seconds)
                        if (what, answer) != next(expected):
                            figures.mixed.append(f"visitor {name}: {what} of {key[0].name} at {key[1]}")
            except (OSError, ValueError) as error:
                with lock:
                    figures.lost += [f"visitor {name}: {error}"] * (VISIT - done)

    with ThreadPoolExecutor(visitors) as pool:
        list(pool.map(work, range(visitors)))
    figures.grown = max(figures.grown, server.memory - before)
    figures.most = max(figures.most, len(server.files))
    for _ in range(40):  # files first, then the folders that are empty
        if server.files:
            os.kill(server.pid, signal.SIGUSR1)
            time.sleep(0.25)
    figures.left += server.files


def measure(requests: int, visitors: int, folder: Path) -> Figures:
    """Visit a server of pictures and one of clips at once, each by half of the visitors."""
    register()
    figures, each = Figures(), requests // VISIT // 2

    def work(name: str) -> None:
        checkpoint = write_checkpoint(folder / name / "best.ckpt", name, "cgnl", CLASSES, enlarge)
        files = write_files(folder / f"{name}-files", clips=name == "tiny_video")
        with serving(checkpoint, folder / f"{name}-server") as server:
            visit(server, files, each, visitors // 2, figures)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, ("tiny", "tiny_video")))
    return figures


def describe(figures: Figures, visitors: int, seconds: float) -> list[str]:
    asked = len(figures.seconds) + len(figures.lost)
    ordered = sorted(figures.seconds)
    percentile = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return [
        f"{asked} requests of {visitors} visitors at once, half for pictures and half for clips",
        f"{len(figures.lost)} lost, {len(figures.mixed)} other than alone",
        f"{statistics.median(ordered):.2f} seconds for a request (median), {percentile:.2f} (99th percentile)",
        f"{figures.grown / 2**20:.0f} MiB more memory of a server than before the visits",
        f"{figures.most} files and folders at the end of the visits, {len(figures.left)} when they have had their time",
        f"{seconds:.0f} seconds in all, on {os.cpu_count()} cores",
    ]


def main() -> int:
    parser = make_parser(__doc__, "requests", 500, "half of them for pictures and half for clips")
    parser.add_argument("--visitors", type=int, default=20)
    args = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(args.requests, args.visitors, Path(folder))
    faults = [*figures.lost, *figures.mixed, *figures.left][:20]
    status = report(describe(figures, args.visitors, time.perf_counter() - began), faults, args.output)
    return status or int(figures.grown > ROOM)


if __name__ == "__main__":
    sys.exit(main())
