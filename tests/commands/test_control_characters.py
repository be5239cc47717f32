"""Names of files and classes that would write to a terminal's title, colour or lines reach none, by any command."""

import pytest

from tests.engine.conftest import options, write_pictures

EVIL = "\x1b]0;title\x07\x1b[31m\r\x9b2J\u202e\n"
CLASSES = [f"{name}{EVIL}" for name in "ab"]


def assert_harmless(*texts: str) -> None:
    for text in texts:
        assert all(line.isprintable() for line in text.split("\n")), ascii(text)
        assert not any(line == "/1.png" or line.startswith("/1.png ") for line in text.split("\n")), ascii(text)


@pytest.fixture
def home(tmp_path):
    """A folder with an evil name, and pictures of evil classes in it, one of them broken."""
    home = tmp_path / f"home{EVIL}"
    pictures = write_pictures(home / "data", classes=CLASSES)  # pyright: ignore[reportArgumentType]
    pictures[1].rename(pictures[1].with_name(f"evil{EVIL}.png"))
    pictures[2].write_bytes(b"no picture")
    (home / "data" / f".hidden{EVIL}").touch()
    (home / "data" / f"stray{EVIL}.png").touch()
    return home


def test_data_check_prints_no_control_characters(cgnl, home):
    status, out, err = cgnl("data", "check", home / "data")
    assert status == 2
    assert r"a\x1b]0;title\x07" in out
    assert r".hidden\x1b" in out
    assert_harmless(out, err)


def test_no_command_on_a_run_prints_control_characters(cgnl, home):
    block = {"model__block": "cgnl", "model__options": "{after: [conv1], groups: 2}"}
    settings = options(**block, data__root=home / "data", data__size=32, runs=home, data__test_on="train")
    status, out, err = cgnl("train", *settings)
    assert (status, err) == (0, "")
    assert r"stray\x1b]0;title\x07" in out
    assert_harmless(out, (home / "run" / "log.txt").read_text())
    path, picture, figure = home / "run" / "last.ckpt", home / "data" / CLASSES[0] / "0.png", home / "a.png"
    for command in (
        ("eval", path),
        ("predict", path, home / "data"),
        ("predict", path, home / "data", "--csv"),
        ("predict", path, home / "data", "--json"),
        ("explain", path, picture, "-o", figure),
        ("diagnose", path, "-o", home / "d"),
        ("report", home / "run"),
        ("export", path, home / "a.safetensors"),
    ):
        status, out, err = cgnl(*command)
        assert status in (0, 2)
        assert (r"\x1b" in out + err) or (r"\u001b" in out), command
        assert_harmless(out.replace("\r\n", "\n"), err)
