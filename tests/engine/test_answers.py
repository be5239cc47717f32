"""What a network said of each test sample, against what it says when it is asked by hand."""

import csv

import pytest
import torch

from cgnl.engine.answers import Answer, read_answers
from cgnl.engine.checkpoint import open_trained
from cgnl.engine.datasets import open_dataset

from .conftest import PICTURES, VIDEOS, normalized, video_input, views_by_hand, write_frame_folders, write_pictures


def test_predictions_are_those_of_the_network_that_was_saved(run):
    folder = run().folder
    trained, answers = open_trained(folder / "last.ckpt"), read_answers(folder)
    test = open_dataset(trained.config.data).test
    assert [a.sample for a in answers] == list(range(len(test)))
    for a in answers:
        scores = trained.network(normalized(test.read(a.sample, range))[None]).softmax(1)[0].detach()
        assert (a.predicted, a.score) == (
            trained.classes[int(scores.argmax())],
            pytest.approx(float(scores.max()), abs=1e-5),
        )
        assert a.label == trained.classes[test.label(a.sample)]


def test_predictions_agree_with_the_result(run):
    result = run(optim__lr=0.1)
    answers = read_answers(result.folder)
    assert sum(a.right for a in answers) / len(answers) == pytest.approx(result.test["test_top1"])


def test_predictions_of_videos_are_averaged_over_views(run, tmp_path):
    folders = write_frame_folders(tmp_path / "videos")
    result = run(recipe=None, data__root=str(tmp_path / "videos"), **VIDEOS)
    network = open_trained(result.folder / "last.ckpt").network
    answers = read_answers(result.folder)
    assert {a.name for a in answers} < set(map(str, folders))
    for a in answers:
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
    name = read_answers(whole.folder)[0].name
    next(p for p in paths if str(p) == name).write_bytes(b"no picture")
    answers = read_answers(run(recipe=None, data__root=str(tmp_path / "pictures"), **PICTURES).folder)
    assert len(answers) == len(read_answers(whole.folder)) - 1
    assert name not in {a.name for a in answers}


def test_read_answers_of_a_folder_without_them(tmp_path):
    assert read_answers(tmp_path) == ()


@pytest.mark.parametrize(
    "text", ["sample,label\n0,a\n", "sample,label,predicted,score,name\nx,a,b,1,n\n"], ids=["columns", "no number"]
)
def test_read_answers_refuses_a_damaged_file(tmp_path, text):
    (tmp_path / "predictions.csv").write_text(text)
    with pytest.raises(ValueError, match=r"predictions\.csv is damaged"):
        read_answers(tmp_path)


def test_read_answers_keeps_odd_names(run, tmp_path):
    write_pictures(tmp_path / "pictures", classes="ab")
    (tmp_path / "pictures" / "a").rename(tmp_path / "pictures" / 'c, "d"\n')
    folder = run(recipe=None, data__root=str(tmp_path / "pictures"), **PICTURES).folder
    assert {a.label for a in read_answers(folder)} == {"b", 'c, "d"\n'}
    with (folder / "predictions.csv").open(newline="") as file:
        assert next(csv.reader(file)) == list(Answer._fields)


def test_a_test_forgets_the_one_before(run):
    result = run(optim__epochs=3)
    assert len(read_answers(result.folder)) == torch.tensor(result.test["test_count"]).item() == 6
