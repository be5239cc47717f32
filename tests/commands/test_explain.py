"""The command draws what the function says, and explains what it cannot draw."""

import numpy as np
import pytest
import torch
from PIL import Image

from cgnl.engine.checkpoint import open_trained
from cgnl.explain import attention
from cgnl.explain.verdict import Verdict, fingerprint, save_verdict
from tests.engine import conftest as engine
from tests.engine.conftest import normalized, read_picture, write_frame_folders, write_pictures, write_video


@pytest.fixture
def picture(tmp_path):
    """40 pixels high and 32 wide, of which the network sees rows 4 to 36."""
    return write_pictures(tmp_path / "pictures", count=1)[0]


def test_explain_draws_and_saves(cgnl, checkpoint, picture, tmp_path):
    path = checkpoint()
    target, saved = tmp_path / "new" / "a.png", tmp_path / "a.npz"
    status, out, err = cgnl("explain", path, picture, "--at", "10,20", "-o", target, "--save", saved)
    assert (status, err) == (0, "")
    result = attention(open_trained(path).network, normalized(read_picture(picture)[:, 4:36])[None], (10, 16))
    assert result.position == (2, 1)
    arrays = np.load(saved)
    assert np.allclose(arrays["maps"], result.maps.numpy(), rtol=1e-5, atol=1e-7)
    assert arrays["maps"].shape == (2, 2, 4, 4)
    assert arrays["at"].tolist() == [10, 16]
    assert str(arrays["block"]) == result.block == "conv1_cgnl"
    probability, label = result.output.softmax(1)[0].max(0)
    assert out.startswith(f"one: {'abc'[int(label)]} ({float(probability):.1%}). The block adds ")
    assert "conv1_cgnl: CGNL, Dot(), 2 groups, rank 1" in out
    assert "share one pattern" in out
    assert arrays["crop"].tolist() == [4, 0, 32, 32]
    assert f"{target} and {saved} written" in out
    with Image.open(target) as image:
        assert image.width > 4 * image.height / 2


def test_explain_draws_names_that_the_font_cannot_write_without_a_word(
    cgnl, checkpoint, picture, tmp_path, monkeypatch, recwarn
):
    monkeypatch.setattr("tests.explain.conftest.CLASSES", ["猫", "猫犬", "猫🐈"])
    status, out, _ = cgnl("explain", checkpoint(), picture, "-o", tmp_path / "a.png")
    assert (status, out[:6]) == (0, "one: 猫")
    assert not list(recwarn)


def test_explain_moves_the_view_to_a_position_that_a_test_does_not_see(cgnl, checkpoint, picture, tmp_path):
    path, saved = checkpoint(), tmp_path / "a.npz"
    status, out, _ = cgnl("explain", path, picture, "--at", "10,2", "-o", tmp_path / "a.png", "--save", saved)
    assert status == 0
    result = attention(open_trained(path).network, normalized(read_picture(picture)[:, :32])[None], (10, 2))
    assert np.allclose(np.load(saved)["maps"], result.maps.numpy(), rtol=1e-5, atol=1e-7)
    assert np.load(saved)["crop"].tolist() == [0, 0, 32, 32]
    assert "The view was moved" in out
    assert "The view was moved" not in cgnl("explain", path, picture, "--at", "10,5", "-o", tmp_path / "a.png")[1]


def test_explain_uses_the_verdict_of_a_test(cgnl, checkpoint, picture, tmp_path):
    path = checkpoint()
    assert "here, and the prediction" in cgnl("explain", path, picture, "-o", tmp_path / "a.png")[1]
    network, verdict = open_trained(path).network, Verdict({"conv1_cgnl": 0.01}, 1, 3000)
    save_verdict(verdict, path, fingerprint(network))
    assert verdict.words() in cgnl("explain", path, picture, "-o", tmp_path / "a.png")[1]


def test_explain_prints_no_control_characters(cgnl, checkpoint, picture, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.explain.conftest.CLASSES", ["\x1b[2Ja", "\x1b[2Jb", "\x1b[2J$c$"])
    status, out, _ = cgnl("explain", checkpoint(), picture, "-o", tmp_path / "a.png")
    assert (status, "\x1b" in out, "\\x1b[2J" in out) == (0, False, True)


def test_explain_draws_networks_of_other_sizes_together(cgnl, checkpoint, picture, tmp_path, monkeypatch):
    other = checkpoint(folder="two")
    monkeypatch.setitem(engine.PICTURES, "data__size", 16)
    assert cgnl("explain", checkpoint(), picture, "--compare", other, "-o", tmp_path / "a.png")[0] == 0


def test_explain_compares_two_networks(cgnl, checkpoint, picture, tmp_path):
    one, other = checkpoint(), checkpoint(block="nl", folder="two")
    saved, options = tmp_path / "a.npz", ["--grad-cam", "--heat", "--threshold", "0.5"]
    status, out, _ = cgnl(
        "explain", one, picture, "--compare", other, "-o", tmp_path / "a.pdf", "--save", saved, *options
    )
    assert status == 0
    assert [line.partition(":")[0] for line in out.splitlines()[:2]] == ["one", "two"]
    arrays = np.load(saved)
    assert arrays["1_maps"].shape == (2, 2, 4, 4)
    assert arrays["2_maps"].shape == (1, 1, 4, 4)


@pytest.mark.parametrize("options", [["--group", "1"], ["--by-group"], ["--columns", "2"], ["--block", "conv1_cgnl"]])
def test_explain_options(cgnl, checkpoint, picture, tmp_path, options):
    assert cgnl("explain", checkpoint(), picture, "-o", tmp_path / "a.png", *options)[0] == 0
    assert (tmp_path / "a.png").stat().st_size > 1000


@pytest.mark.parametrize("suffix", [".png", ".mp4"])
@pytest.mark.parametrize("file", [True, False], ids=["file", "folder"])
def test_explain_clips(cgnl, checkpoint, tmp_path, suffix, file):
    path, target, saved = checkpoint("tiny_video"), tmp_path / f"a{suffix}", tmp_path / "a.npz"
    clip = write_video(tmp_path / "clip.mp4", 6) if file else write_frame_folders(tmp_path / "clips", count=1)[0]
    # Frames 1 to 4 of six, and the middle 16 of 24 columns.
    status, _, err = cgnl("explain", path, clip, "--at", "12,9,3", "-o", target, "--save", saved)
    assert (status, err) == (0, "")
    arrays = np.load(saved)
    assert arrays["maps"].shape == (2, 2, 4, 2, 2)
    assert (arrays["at"].tolist(), arrays["position"].tolist()) == ([8, 9, 2], [2, 1, 1])
    assert target.stat().st_size > 1000


def test_explain_calls_frames_as_at_does(cgnl, checkpoint, tmp_path, monkeypatch):
    from cgnl.explain import figure

    rows, draw = [], figure.draw
    monkeypatch.setattr(figure, "draw", lambda *a, **k: rows.extend(a[0]) or draw(*a, **k))
    clip = write_frame_folders(tmp_path / "clips", count=1)[0]
    assert cgnl("explain", checkpoint("tiny_video"), clip, "-o", tmp_path / "a.png")[0] == 0
    assert rows[0].seen.frames == (1, 2, 3, 4)  # in the middle of six


def test_explain_draws_the_true_parts_of_cub(cgnl, checkpoint, picture, tmp_path, monkeypatch):
    home = tmp_path / "CUB_200_2011"
    (home / "images" / "001.Owl").mkdir(parents=True)
    (home / "parts").mkdir()
    bird = home / "images" / "001.Owl" / "bird.png"
    bird.write_bytes(picture.read_bytes())
    (home / "images.txt").write_text("1 001.Owl/other.png\n2 001.Owl/bird.png\n")
    (home / "parts" / "parts.txt").write_text("1 back\n2 left eye\n3 tail\n")
    (home / "parts" / "part_locs.txt").write_text("1 1 5 5 1\n2 1 10.0 20.0 1\n2 2 12 9 1\n2 3 0.0 0.0 0\n")
    drawn = []
    from cgnl.explain import figure

    draw = figure.draw
    monkeypatch.setattr(figure, "draw", lambda *a, **k: drawn.append(a[3]) or draw(*a, **k))
    assert cgnl("explain", checkpoint(), bird, "-o", tmp_path / "a.png")[0] == 0
    assert drawn == [{"back": (10, 20), "left eye": (12, 9)}]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--at", "40,20"], "at = 40,20 is outside the file, which has 32 x 40 pixels"),
        (["--at", "10"], "at = '10' is not a position: give x,y or x,y,frame"),
        (["--at", "a,b"], "is not a position"),
        (["--at", "1,nan"], "is not a position"),
        (["--at", "10,20,3"], "at = 10,20,3 has 3 numbers: give x,y"),
        (["--threshold", "1.5"], "threshold = 1.5 must be at most 1"),
        (["--columns", "0"], "columns = 0 must be more than 0"),
        (["--group", "7"], "group = 7 is none of the 2 of conv1_cgnl"),
        (["--block", "conv1_cgn"], "there is no block 'conv1_cgn'; did you mean conv1_cgnl?"),
        (["-o", "a.txt"], "a.txt must end in .png"),
        (["-o", "a.mp4"], "a.mp4 is a video, and the network was trained on images"),
        (["--save", "a.csv"], "a.csv must end in .npz"),
        (["--compare", "gone.ckpt"], "there is no file gone.ckpt"),
        (["--treshold", "0.7"], "there is no option 'treshold'; did you mean threshold?"),
        (["-o"], "--output needs a value"),
        (["--device", "tpu"], "there is no device 'tpu' here"),
    ],
)
def test_explain_refuses_in_one_sentence(cgnl, checkpoint, picture, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    status, out, err = cgnl("explain", checkpoint(), picture, *options)
    assert (status, out) == (2, "")
    assert words in err
    assert err.startswith("cgnl explain: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("a.*"))


def test_explain_refuses_files_in_one_sentence(cgnl, checkpoint, picture, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_text("no picture")
    clip = write_video(tmp_path / "clip.mp4", 6)
    images, videos, plain = checkpoint(), checkpoint("tiny_video", folder="v"), checkpoint(block=None, folder="p")
    for path, file, words in [
        (images, broken, "it is not an image"),
        (images, tmp_path / "gone.png", "there is no"),
        (images, clip, "trained on images, not on videos"),
        (images, picture.parent.parent, "holds 3 images: name one"),
        (videos, picture, "trained on videos, not on images"),
        (plain, picture, "the network has no NL or CGNL block"),
        (picture, picture, "is not a whole checkpoint"),
    ]:
        status, _, err = cgnl("explain", path, file, "-o", tmp_path / "a.png")
        assert status == 2
        assert words in err
        assert err.count("\n") == 1
    status, _, err = cgnl("explain", videos, clip, "--at", "12,9,5", "-o", tmp_path / "a.png")
    assert status == 2
    assert "is in frame 5, and the network sees frames 1 to 4" in err
    assert not (tmp_path / "a.png").exists()


def test_explain_does_not_write_over_its_input(cgnl, checkpoint, picture, tmp_path):
    clip, content = write_frame_folders(tmp_path / "clips", count=1)[0], picture.read_bytes()
    for path, file, target, words in [
        (checkpoint(), picture, picture, "is what is read"),
        (checkpoint("tiny_video", folder="v"), clip, clip / "a.png", "is within"),
    ]:
        status, _, err = cgnl("explain", path, file, "-o", target)
        assert (status, words in err, err.count("\n")) == (2, True, 1)
    assert picture.read_bytes() == content
    assert not (clip / "a.png").exists()


def test_explain_without_at_is_the_middle(cgnl, checkpoint, picture, tmp_path):
    assert cgnl("explain", checkpoint(), picture, "-o", tmp_path / "a.png", "--save", tmp_path / "a.npz")[0] == 0
    assert np.load(tmp_path / "a.npz")["at"].tolist() == [16, 16]
    assert torch.get_default_dtype() == torch.float32
