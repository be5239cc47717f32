import pytest

from cgnl.commands.data import WORDS


@pytest.mark.parametrize("action", WORDS)
def test_data_says_which_words_an_action_takes(cgnl, action):
    status, out, err = cgnl("data", action, "one", "two", "three", "four")
    assert (status, out) == (2, "")
    assert f"cgnl data {action} {WORDS[action]}" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chek", "folder"], "action = chek must be one of check, draw, shrink, convert"),
        (["check", "folder", "dataset=cubb"], "'cubb' to check; did you mean cub?"),
        (["draw", "folder", "dataset=part"], "'part' to draw; did you mean parts?"),
        (["draw", "folder", "count=many"], "count = many must be int"),
        (["convert", "kitti", "root", "out"], "'kitti' to convert; there is cityscapes"),
    ],
)
def test_data_refuses(cgnl, arguments, message):
    status, out, err = cgnl("data", *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_data_draws_and_checks(cgnl, tmp_path):
    status, out, _ = cgnl("data", "draw", tmp_path / "drawn", "count=32")
    assert (status, out.startswith("32 samples of ")) == (0, True)
    assert cgnl("data", "check", tmp_path / "drawn")[0] == 0
