"""What a network said of each test sample, against what it says when it is asked by hand."""

import csv
import json

import pytest
import torch

from cgnl.engine.checkpoint import open_trained
from cgnl.engine.datasets import open_dataset
from cgnl.engine.predictions import Prediction, ranked, read_predictions
from cgnl.engine.tasks import Images

from .conftest import PICTURES, VIDEOS, normalized, video_input, views_by_hand, write_frame_folders, write_pictures


def test_predictions_are_those_of_the_network_that_was_saved(run):
    folder = run().folder
    trained, predictions = open_trained(folder / "last.ckpt"), read_predictions(folder)
    test = open_dataset(trained.config.data).test
    assert [a.sample for a in predictions] == list(range(len(test)))
    for a in predictions:
        scores = trained.network(normalized(test.read(a.sample, range))[None]).softmax(1)[0].detach()
        assert (a.predicted, a.score) == (
            trained.classes[int(scores.argmax())],
            pytest.approx(float(scores.max()), abs=1e-5),
        )
        assert a.label == trained.classes[test.label(a.sample)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ranked_puts_the_lower_class_first_among_equals(dtype):
    scores = torch.randint(4, (200, 12)).to(dtype) / 4
    values, classes = ranked(scores, 5)
    by_hand = [sorted(range(12), key=lambda k, row=row: (-row[k], k))[:5] for row in scores.tolist()]
    assert classes.tolist() == by_hand
    assert classes[:, 0].tolist() == scores.float().argmax(1).tolist()
    assert torch.equal(values, scores.float().gather(1, classes))
    assert values.dtype == torch.float32


def test_ranked_of_fewer_classes_than_asked_for():
    assert ranked(torch.tensor([0.25, 0.75]), 5)[1].tolist() == [1, 0]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["images", "videos"])
def test_predictions_agree_with_the_result(run, tmp_path, monkeypatch, kind, tied):
    original = Images.logits
    if tied:
        monkeypatch.setattr(Images, "logits", lambda *given: original(*given).round())
    settings: dict = {"data__samples": 400, "optim__lr": 0.1}
    if kind == "videos":
        write_frame_folders(tmp_path / "videos", count=20)
        settings = {"recipe": None, "data__root": str(tmp_path / "videos"), "optim__lr": 0.1, **VIDEOS}
    result = run(**settings)
    right = [a.right for a in read_predictions(result.folder)]
    written = json.loads((result.folder / "results.json").read_text())
    assert written["test_top1"] == sum(right) / len(right)
    assert written["test_top5"] >= written["test_top1"]


def test_predictions_of_videos_are_averaged_over_views(run, tmp_path):
    folders = write_frame_folders(tmp_path / "videos")
    result = run(recipe=None, data__root=str(tmp_path / "videos"), **VIDEOS)
    network = open_trained(result.folder / "last.ckpt").network
    predictions = read_predictions(result.folder)
    assert {a.name for a in predictions} < set(map(str, folders))
    for a in predictions:
        scores = (
            network(video_input(views_by_hand(next(f for f in folders if str(f) == a.name))))
            .softmax(1)
            .mean(0)
            .detach()
        )
        assert a.score == pytest.approx(float(scores.max()), abs=1e-5)


def test_predictions_leave_out_what_cannot_be_read(run, tmp_path):
    paths = write_pictures(tmp_path / "pictures")
    whole = run(recipe=None, data__root=str(tmp_path / "pictures"), **PICTURES)
    name = read_predictions(whole.folder)[0].name
    next(p for p in paths if str(p) == name).write_bytes(b"no picture")
    predictions = read_predictions(run(recipe=None, data__root=str(tmp_path / "pictures"), **PICTURES).folder)
    assert len(predictions) == len(read_predictions(whole.folder)) - 1
    assert name not in {a.name for a in predictions}


def test_read_answers_of_a_folder_without_them(tmp_path):
    assert read_predictions(tmp_path) == ()


@pytest.mark.parametrize(
    "text", ["sample,label\n0,a\n", "sample,label,predicted,score,name\nx,a,b,1,n\n"], ids=["columns", "no number"]
)
def test_read_answers_refuses_a_damaged_file(tmp_path, text):
    (tmp_path / "predictions.csv").write_text(text)
    with pytest.raises(ValueError, match=r"predictions\.csv is damaged"):
        read_predictions(tmp_path)


def test_read_answers_keeps_odd_names(run, tmp_path):
    write_pictures(tmp_path / "pictures", classes="ab")
    (tmp_path / "pictures" / "a").rename(tmp_path / "pictures" / 'c, "d"\n')
    folder = run(recipe=None, data__root=str(tmp_path / "pictures"), **PICTURES).folder
    assert {a.label for a in read_predictions(folder)} == {"b", 'c, "d"\n'}
    with (folder / "predictions.csv").open(newline="") as file:
        assert next(csv.reader(file)) == list(Prediction._fields)


def test_a_test_forgets_the_one_before(run):
    result = run(optim__epochs=3)
    assert len(read_predictions(result.folder)) == torch.tensor(result.test["test_count"]).item() == 6
