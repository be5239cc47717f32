"""The page in a real browser, served by the real command."""

import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cgnl.cli import main
from cgnl.data.images import to_image
from cgnl.data.synthetic import PARTS, parts
from cgnl.engine.checkpoint import write
from cgnl.engine.config import load, to_dict
from cgnl.engine.network import build_network
from cgnl.report.app import write_cached
from tests.engine.conftest import read_picture

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE = 60_000
"""Milliseconds that a busy machine is given."""


def write_checkpoint(path: Path, **options: Any) -> str:
    """A network with random weights that was trained on the embedded pictures."""
    config = load("parts", {"data.dataset": "parts", "model.name": "resnet18", "model.options": options})
    torch.manual_seed(0)
    network = build_network(config.model, len(PARTS), load=False)
    for name, module in network.named_modules():
        if "cgnl" in name and isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.3)
    weights = {f"network.{name}": value for name, value in network.state_dict().items()}
    path.parent.mkdir()
    write({"state_dict": weights, "cgnl": {"config": to_dict(config), "classes": list(PARTS), "kind": "images"}}, path)
    return str(path)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def outsider() -> Iterator[socket.socket]:
    """Through whom the page would reach other machines."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        one.settimeout(0)
        yield one


@pytest.fixture(scope="module")
def served(tmp_path_factory, outsider) -> Iterator[str]:
    """The address of the page."""
    folder, port, outside = tmp_path_factory.mktemp("app"), free_port(), outsider.getsockname()[1]
    (folder / "secret.txt").write_text("secret")
    paths = [
        write_checkpoint(folder / "first" / "best.ckpt"),
        write_checkpoint(folder / "second" / "best.ckpt", groups=2),
    ]
    command = [Path(sys.executable).with_name("cgnl"), "app", *paths, f"port={port}", "device=cpu"]
    environment = os.environ | {"http_proxy": f"http://127.0.0.1:{outside}", "no_proxy": "127.0.0.1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == f"http://127.0.0.1:{port}/ is open; Ctrl-C ends it\n"
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        rest = process.stdout.read()
    assert process.returncode == 0
    assert "cgnl/report" not in rest  # Gradio may log what it refuses; nothing of ours has failed


def test_cached_files_are_written_once(tmp_path):
    """Gradio writes a picture that it is given anew where it stands, and who reads it then finds nothing."""
    first = Path(write_cached(tmp_path, "a.txt", lambda path: path.write_text("one")))
    before = first.stat()
    again = write_cached(tmp_path, "a.txt", lambda path: path.write_text("one"))
    other = write_cached(tmp_path, "a.txt", lambda path: path.write_text("two"))
    assert str(first) == again != other
    assert first.stat().st_ino == before.st_ino
    assert {path.read_text() for path in tmp_path.rglob("*.txt")} == {"one", "two"}
    assert len([*tmp_path.rglob("*.txt")]) == 2


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("there is no Chromium here")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        opened = p.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, served) -> Iterator[Any]:
    """The page with its first example open; it may ask nobody but its own server."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(served)
    page.wait_for_function("document.querySelectorAll('.look img').length == 2")
    page.wait_for_function("!document.querySelector('#download').disabled")
    yield page
    page.close()
    assert [url for url in asked if not url.startswith((served, "data:", "blob:"))] == []


def picture(page: Any, number: int = 0) -> bytes:
    """The bytes of the picture of a network."""
    return page.request.get(page.locator(f"#look{number} img").get_attribute("src")).body()


def changed(page: Any, number: int = 0) -> Any:
    """Wait until the picture is another one than it is now."""
    before = page.locator(f"#look{number} img").get_attribute("src")

    def wait() -> None:
        page.wait_for_function(
            "([id, before]) => document.querySelector(id + ' img')?.getAttribute('src') != before",
            arg=[f"#look{number}", before],
        )

    return wait


def choose(page: Any, control: str, option: str) -> None:
    page.click(f"{control} input")
    page.get_by_role("option", name=option, exact=True).click()


def upload(page: Any, name: str, content: bytes) -> None:
    page.set_input_files("#file input[type=file]", files=[{"name": name, "mimeType": "image/png", "buffer": content}])


def drawn_picture() -> bytes:
    file = io.BytesIO()
    to_image(parts(7, 3).pixels).save(file, "png")
    return file.getvalue()


def test_visit(page, tmp_path):
    """Upload, click, choose, compare, download: one visit, because a browser takes its time."""
    assert "Reference at x 32, y 32." in page.inner_text("#caption0")

    wait = changed(page)
    upload(page, "mine.png", drawn_picture())
    wait()
    shown = page.inner_text("#top0")
    assert len(re.findall(r"\d+%", shown)) == 5
    assert sum(name in shown for name in PARTS) == 5

    before, other = picture(page), picture(page, 1)
    wait, also = changed(page), changed(page, 1)
    box = page.locator("#look0 img").bounding_box()
    page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + 0.1 * box["height"])
    wait()
    also()
    for caption in ("#caption0", "#caption1"):  # the reference position is that of both networks
        found = re.search(r"Reference at x (\d+), y (\d+)\.", page.inner_text(caption))
        assert found is not None
        assert abs(int(found[1]) - 0.9 * 64) <= 1
        assert abs(int(found[2]) - 0.1 * 64) <= 1
    assert picture(page) != before
    assert picture(page, 1) != other

    before, other = picture(page), picture(page, 1)
    wait = changed(page)
    assert re.search(r"Shown: group \d, channel \d+\.", page.inner_text("#caption0"))
    choose(page, "#group0", "5")
    wait()
    page.wait_for_function("document.querySelector('#caption0').innerText.includes('Shown: group 5, channel ')")
    assert picture(page) != before
    assert picture(page, 1) == other
    before, wait = picture(page), changed(page)
    choose(page, "#channel0", "sum")
    wait()
    assert picture(page) != before

    before, wait = picture(page), changed(page)
    page.click("#style input[value=heat]")
    wait()
    assert picture(page) != before

    page.wait_for_timeout(500)
    page.wait_for_function("!document.querySelector('#download').disabled")
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename == "attention.png"
    download.value.save_as(tmp_path / "figure.png")
    assert min(read_picture(tmp_path / "figure.png").shape[1:]) > 200


ROOM = """menu => {
    const text = menu.querySelector("input"), pen = document.createElement("canvas").getContext("2d")
    pen.font = getComputedStyle(text).font
    const end = text.getBoundingClientRect().left + pen.measureText(text.value).width
    return menu.querySelector(".icon-wrap svg").getBoundingClientRect().left - end
}"""
"""Pixels between the word that is chosen in a menu and its arrow."""


def test_arrows_of_menus_lie_on_no_letter(page):
    for width in (1300, 1180, 960):
        page.set_viewport_size({"width": width, "height": 900})
        room = [page.locator(f"#{menu}0").evaluate(ROOM) for menu in ("block", "group", "channel")]
        assert min(room) >= 0, width


def test_file_that_is_no_picture_gets_a_sentence(page):
    upload(page, "words.png", b"these are words")
    message = page.locator(".toast-body").inner_text()
    assert "words.png cannot be read: it is not an image" in message
    assert "Traceback" not in page.content()
    assert "/" not in message
    page.wait_for_function(
        "document.querySelector('#caption0').innerText.trim() === ''"
    )  # no prediction of another file
    assert page.locator("#look0 img").count() == 0
    assert page.locator("#download").is_disabled()


def get(address: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(address, timeout=60) as prediction:
            return prediction.status, prediction.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


OUTSIDE = [
    "/gradio_api/file=/etc/passwd",
    "/gradio_api/file=secret.txt",
    "/gradio_api/file=../../../../../../etc/passwd",
    "/gradio_api/file=%2Fetc%2Fpasswd",
    "/gradio_api/file=first/best.ckpt",
    "/file=/etc/passwd",
    "/static/../../../../../../../../etc/passwd",
    "/assets/..%2f..%2f..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
]


def test_server_gives_no_file_but_its_own(served):
    for path in OUTSIDE:
        status, body = get(served + path)
        assert status in (403, 404), path
        assert b"root:" not in body
        assert b"secret" not in body.replace(b"secret.txt", b"")


def upload_by_hand(served: str, file: object, visitor: str, *others: object) -> list[dict[str, Any]]:
    """Send what the page's own script sends after an upload; returns what the server says."""
    config = json.loads(get(f"{served}/config")[1])
    (number,) = [d["id"] for d in config["dependencies"] if any(t[1] == "upload" for t in d["targets"])]
    inputs = [file, *(others or ("all",)), "all", "strongest", "strongest", 0.7, "patches", 0]
    session = {"session_hash": visitor, "fn_index": number, "data": inputs}
    request = urllib.request.Request(
        f"{served}/gradio_api/queue/join", json.dumps(session).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as prediction:
        assert prediction.status == 200
    with urllib.request.urlopen(f"{served}/gradio_api/queue/data?session_hash={visitor}", timeout=60) as events:
        return [json.loads(line[6:]) for line in events.read().decode().splitlines() if line.startswith("data: ")]


def failed(said: list[dict[str, Any]]) -> bool:
    (done,) = [event for event in said if event["msg"] == "process_completed"]
    return done["success"] is False


def test_server_reads_no_file_that_was_not_uploaded(served):
    said = upload_by_hand(served, {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, "reader")
    assert failed(said)
    assert "root:" not in json.dumps(said)


def test_server_fetches_no_address(served, outsider):
    """Not as a file, not in the place of another choice, and not to hand it on."""
    address = "http://hf.co/a.png"  # which Gradio trusts
    file = {"path": address, "url": address, "meta": {"_type": "gradio.FileData"}}
    assert failed(upload_by_hand(served, file, "fetcher"))
    assert failed(upload_by_hand(served, None, "fetcher2", file))
    assert get(f"{served}/gradio_api/file={address}")[0] == 403
    assert get(f"{served}/gradio_api/file=http://1.1.1.1/a.png")[0] == 403
    with pytest.raises(BlockingIOError):  # nobody came
        outsider.accept()


def test_server_refuses_files_that_are_too_large(served):
    mark = "boundary"
    head = f'--{mark}\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'.encode()
    body = head + bytes(65 * 2**20) + f"\r\n--{mark}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={mark}"}
    request = urllib.request.Request(f"{served}/gradio_api/upload", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as prediction:
            status = prediction.status
    except urllib.error.HTTPError as error:
        status = error.code
    except (BrokenPipeError, ConnectionError, urllib.error.URLError):  # it stopped listening before the end
        status = 413
    assert status == 413


def test_server_listens_on_the_loopback_address_alone(served):
    port = int(served.rpartition(":")[2])
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")
    ]
    if not Path("/proc/net/tcp").exists():
        pytest.skip("this system does not say who listens where")
    assert listening == [f"0100007F:{port:04X}"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.ckpt"], "there is no file nowhere.ckpt"),
        ([], "checkpoint is missing"),
        (["a.ckpt", "--port", "abc"], "port = abc must be a whole number or null"),
        (["a.ckpt", "--port", "70000"], "port = 70000 must be at most 65,535"),
        (["a.ckpt", "--prot", "1"], "there is no option 'prot'; did you mean port?"),
    ],
)
def test_app_refuses(capsys, words, message):
    assert main(["app", *words]) == 2
    assert message in capsys.readouterr().err
