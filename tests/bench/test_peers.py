import re

import pytest

from cgnl.bench import peers
from cgnl.commands.bench import read_setting

NUMBERS = {"C": 16, "inner": 8, "groups": 4}


def build(spelling: str):
    _, constructor = peers.parse(spelling, NUMBERS)
    return constructor()


@pytest.fixture
def path(tmp_path):
    (tmp_path / "neighbour.py").write_text("WORD = 'near'\n")
    file = tmp_path / "theirs.py"
    file.write_text(
        "from neighbour import WORD\n"
        "class Block:\n"
        "    def __init__(self, *args, **kwargs):\n"
        "        self.seen = (args, kwargs)\n"
        "def make(channels):\n"
        "    return WORD, channels\n"
        "NUMBER = 3\n"
    )
    return file


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        ("Block", ((16,), {})),
        ("Block()", ((16,), {})),
        ("Block(C, inner, use_scale=False, groups=groups)", ((16, 8), {"use_scale": False, "groups": 4})),
        ("Block(inner, 'x', -1, [1, 2])", ((8, "x", -1, [1, 2]), {})),
    ],
)
def test_peer_is_built(path, call, seen):
    assert build(f"{path}:{call}").seen == seen


def test_peer_may_be_a_function(path):
    assert build(f"{path}:make") == ("near", 16)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("Blok", "has no 'Blok'; did you mean Block?"),
        ("NUMBER", "has no 'NUMBER'"),
        ("Block(D)", "'D' has no value here; there is C, inner, groups"),
        ("Block(C + 1)", "'C + 1' must be a number, a text or one of C, inner, groups"),
        ("Block(", "'Block(' is not the name of a class, or a call of one"),
        ("a.Block", "'a.Block' is not the name of a class, or a call of one"),
    ],
)
def test_parse_refuses(path, call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        peers.parse(f"{path}:{call}", NUMBERS)


@pytest.mark.parametrize("text", ["Block", "theirs.txt:Block", "theirs.py"])
def test_parse_refuses_another_spelling(text):
    with pytest.raises(ValueError, match=r"a peer is spelt path/to/file\.py:Class"):
        peers.parse(text, NUMBERS)


def test_parse_refuses_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.py to take a peer from"):
        peers.parse(f"{tmp_path / 'none.py'}:Block", NUMBERS)


def test_parse_says_why_a_file_cannot_be_imported(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ImportError, match=r"broken\.py cannot be imported: .*nothing_of_that_name"):
        peers.parse(f"{tmp_path / 'broken.py'}:Block", NUMBERS)


def test_peer_subjects_are_named_by_class_while_that_is_enough(tmp_path):
    (tmp_path / "a.py").write_text("import torch\nclass A(torch.nn.Identity):\n    pass\n")
    setting = read_setting("block", {}, "cpu")
    assert [s.name for s in peers.peer_subjects(f"{tmp_path}/a.py:A", setting)] == ["A"]
    twice = f"{tmp_path}/a.py:A,{tmp_path}/a.py:A(C, groups=2)"
    assert [s.name for s in peers.peer_subjects(twice, setting)] == twice.split(",", 1)


def test_peer_subjects_keep_brackets_together(tmp_path):
    (tmp_path / "a.py").write_text("def A(*args):\n    return args\ndef B(*args):\n    return args\n")
    setting = read_setting("block", {"channels": 16, "size": "3x4"}, "cpu")
    found = peers.peer_subjects(f"{tmp_path}/a.py:A(C, inner), {tmp_path}/a.py:B(N, ndim)", setting)
    assert [(s.name, s.build(setting)) for s in found] == [("A", (16, 8)), ("B", (12, 2))]
