import math

import pytest
import torch
import torch.nn.functional as F

from cgnl import create_model
from cgnl.commands.data import data
from cgnl.data import synthetic
from cgnl.data.images import read_image
from cgnl.data.readers import folder
from cgnl.data.synthetic import ACTIONS, COLOURS, PARTS, PLAYERS, SYNTHETIC, actions, draw, parts
from cgnl.data.transforms import Box
from cgnl.data.video import read_frames

each = pytest.mark.parametrize("name", SYNTHETIC)


def colour_at(pixels: torch.Tensor, box: Box) -> str:
    """The name of the colour in the middle of a box."""
    middle = pixels[:, box.top + box.height // 2, box.left + box.width // 2].tolist()
    return min(COLOURS, key=lambda name: math.dist(COLOURS[name], middle))


@each
def test_samples_depend_on_seed_and_index_alone(name):
    _, draw = SYNTHETIC[name]
    first = draw(0, 5)
    draw(0, 6)
    again = draw(0, 5)
    assert torch.equal(first.pixels, again.pixels)
    assert (first.label, first.parts) == (again.label, again.parts)
    assert not torch.equal(first.pixels, draw(1, 5).pixels)
    assert first.pixels.dtype == torch.uint8


@each
def test_classes_are_even(name):
    classes, draw = SYNTHETIC[name]
    size = {"parts": (24,), "relation": (16, 64), "actions": (2, 24)}[name]  # labels are drawn before pixels
    assert [draw(0, i, *size).label for i in range(9)] == [draw(0, i).label for i in range(9)]
    count = 40 * len(classes)
    seen = torch.bincount(torch.tensor([draw(0, i, *size).label for i in range(count)]), minlength=len(classes))
    assert len(seen) == len(classes)
    assert seen.min() > 15


def test_parts_are_where_and_what_the_label_says():
    for index in range(50):
        drawing = synthetic.parts(0, index)
        left, right = drawing.parts
        assert f"{colour_at(drawing.pixels, left)}-{colour_at(drawing.pixels, right)}" == PARTS[drawing.label]
        assert left.left + left.width <= 64 / 3 + 1 < 2 * 64 / 3 - 1 <= right.left


def test_relation_pairs_are_drawn_evenly():
    drawings = [synthetic.relation(0, index, height=24, width=96) for index in range(1000)]
    colours = [tuple(colour_at(d.pixels, box) for box in d.parts) for d in drawings]
    assert [int(a == b) for a, b in colours] == [d.label for d in drawings]
    for part in (0, 1):  # one part says nothing: half of the pictures of each colour are "same"
        for name in COLOURS:
            labels = [d.label for d, pair in zip(drawings, colours, strict=True) if pair[part] == name]
            assert 0.35 < sum(labels) / len(labels) < 0.65


def test_relation_is_beyond_a_linear_classifier_on_the_true_parts():
    count = len(COLOURS)
    first, second = torch.cartesian_prod(torch.arange(count), torch.arange(count)).unbind(1)
    same = (first == second).double()
    weight = torch.where(same > 0, 0.5 / count, 0.5 / (count * (count - 1))).double()  # how often each pair is drawn
    parts = torch.cat([F.one_hot(first), F.one_hot(second)], 1).double()  # [64, 16]
    linear = torch.nn.Linear(2 * count, 1, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(linear.parameters(), max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-14)

    def loss():
        optimizer.zero_grad()
        value = F.binary_cross_entropy_with_logits(linear(parts).squeeze(1), same, weight, reduction="sum")
        value.backward()
        return value

    optimizer.step(loss)
    assert loss().item() == pytest.approx(math.log(2), abs=1e-6)
    assert (torch.sigmoid(linear(parts)) - 0.5).abs().max() < 1e-4


def test_relation_parts_are_further_apart_than_the_block_sees():
    model = create_model("resnet18", num_classes=2).double().eval()
    features = {}
    model.get_submodule("layer3.0").register_forward_hook(lambda _m, _a, out: features.update(out=out))
    x = torch.randn(1, 3, 32, 512, dtype=torch.float64, requires_grad=True)
    model(x)
    (gradient,) = torch.autograd.grad(features["out"][0, :, :, features["out"].shape[-1] // 2].sum(), x)
    columns = gradient.abs().sum((0, 1, 2)).nonzero()
    sees = int(columns.max() - columns.min()) + 1
    gaps = [b.left - (a.left + a.width) for a, b in (synthetic.relation(0, i).parts for i in range(100))]
    assert min(gaps) > sees


def test_actions_ball_flies_from_giver_to_taker():
    for index in range(20):
        drawing = synthetic.actions(0, index)
        giver, taker = (PLAYERS.index(name) for name in ACTIONS[drawing.label].split(" passes to "))
        first, last = (_ball(drawing.pixels[t]) for t in (0, -1))
        players = [[_player(drawing.pixels[t], name) for name in PLAYERS] for t in (0, -1)]
        assert min(range(3), key=lambda i: math.dist(first, players[0][i])) == giver
        assert min(range(3), key=lambda i: math.dist(last, players[1][i])) == taker


def _ball(frame: torch.Tensor) -> list[float]:
    return (frame.min(0).values > 250).nonzero().double().mean(0).tolist()


def _player(frame: torch.Tensor, name: str) -> list[float]:
    colour = torch.tensor(COLOURS[name]).view(3, 1, 1)
    return (frame == colour).all(0).nonzero().double().mean(0).tolist()


# draw


def test_draw_writes_the_pictures_by_class(tmp_path):
    assert draw("parts", tmp_path / "drawn", 5, seed=3) == PARTS
    for index in range(5):
        drawing = parts(3, index)
        path = tmp_path / "drawn" / PARTS[drawing.label] / f"{index:05}.png"
        assert torch.equal(read_image(path), drawing.pixels)


def test_draw_writes_clips_as_folders_of_frames(tmp_path):
    classes = draw("actions", tmp_path / "drawn", 2)
    drawing = actions(0, 1)
    frames = read_frames(tmp_path / "drawn" / classes[drawing.label] / "00001", range)
    assert torch.equal(frames, drawing.pixels)


def test_draw_gives_a_folder_that_is_read_as_a_dataset(tmp_path):
    draw("relation", tmp_path / "drawn", 8)
    index = folder(tmp_path / "drawn")
    assert (index.kind, index.classes, len(index.splits["train"])) == ("images", ("different", "same"), 8)


def test_draw_writes_nothing_over(tmp_path):
    (tmp_path / "mine.png").write_bytes(b"mine")
    with pytest.raises(ValueError, match="is there already"):
        draw("parts", tmp_path, 1)
    with pytest.raises(ValueError, match="is there already"):
        draw("parts", tmp_path / "mine.png", 1)


def test_draw_refuses_no_samples(tmp_path):
    with pytest.raises(ValueError, match="count = 0 must be at least 1"):
        draw("parts", tmp_path / "drawn", 0)


def test_command_draws_parts_unless_told_otherwise(tmp_path, capsys):
    data("draw", str(tmp_path / "drawn"), count=3)
    assert capsys.readouterr().out == f"3 samples of 12 classes in {tmp_path / 'drawn'}\n"
    with pytest.raises(ValueError, match="there is no dataset 'folder' to draw; there is parts"):
        data("draw", str(tmp_path / "other"), dataset="folder")
