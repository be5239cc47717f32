import csv
import json
import math

import pytest
import torch
from torchmetrics.functional import classification as judge

from cgnl.engine.classes import calibrate, calibration_error, count_confusions, save_classes, score_classes, summarize
from cgnl.engine.predictions import Prediction, read_predictions

from .conftest import Death, dying


def some(count: int = 300, classes: int = 6) -> tuple[list[Prediction], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Predictions of classes, the last of which has neither a sample nor a prediction."""
    labels, wrong = torch.randint(0, classes - 1, (2, count))
    predicted = torch.where(torch.rand(count) < 0.6, labels, wrong)
    scores = torch.rand(count)
    rows = zip(labels.tolist(), predicted.tolist(), scores.tolist(), strict=True)
    return [Prediction(i, *row) for i, row in enumerate(rows)], labels, predicted, scores


@pytest.mark.parametrize("name", ["precision", "recall", "f1_score"])
def test_scores_agree_with_torchmetrics(name):
    predictions, labels, predicted, _ = some()
    found = score_classes(predictions)
    expected = getattr(judge, f"multiclass_{name}")(predicted, labels, 6, average="none")
    values = [getattr(found[c], name.removesuffix("_score")) for c in range(5)]
    assert values == pytest.approx(expected[:5].tolist(), rel=1e-6)
    assert [found[c].support for c in range(5)] == torch.bincount(labels).tolist()
    assert 5 not in found


def test_scores_by_hand():
    pairs = ["aa", "aa", "ab", "bb", "ba", "bc"]  # c is predicted once and never right
    found = score_classes(Prediction(i, label, said, 0.5) for i, (label, said) in enumerate(pairs))
    assert found["a"] == (2 / 3, 2 / 3, 2 / 3, 3, 3)
    assert found["b"] == (1 / 2, 1 / 3, pytest.approx(2 / 5), 3, 2)
    assert found["c"] == (0, 0, 0, 0, 1)


def test_summary_agrees_with_torchmetrics():
    predictions, labels, predicted, scores = some()
    macro = judge.multiclass_f1_score(predicted, labels, 6, average="macro")  # leaves out what does not occur, too
    error = judge.binary_calibration_error(scores, (labels == predicted).int(), n_bins=15)
    assert summarize(predictions) == pytest.approx({"macro_f1": float(macro), "ece": float(error)}, rel=1e-5)


def test_calibration_by_hand():
    scores = {0.95: [True, True, True, False], 0.5: [True, False], 1.0: [True], 0.0: [False]}
    predictions = [Prediction(0, 1, int(right), score) for score, each in scores.items() for right in each]
    bins = calibrate(predictions)
    assert [(i, b.samples) for i, b in enumerate(bins) if b.samples] == [(0, 1), (7, 2), (14, 5)]
    assert calibration_error(bins) == pytest.approx((5 * abs(4 / 5 - (4 * 0.95 + 1) / 5) + 2 * 0 + 0) / 8)


def test_calibration_of_a_score_that_is_not_a_number_is_none():
    assert math.isnan(calibration_error(calibrate([Prediction(0, 1, 1, 0.5), Prediction(1, 1, 1, math.nan)])))


def test_files_name_every_class_and_every_pair(tmp_path):
    names = ["a", "b,\udcff", "c"]
    save_classes(tmp_path, names, [Prediction(0, 0, 1, 0.5), Prediction(1, 0, 0, 0.5), Prediction(2, 0, 1, 0.5)])
    read = {}
    for name in ("classes.csv", "confusion.csv"):
        with (tmp_path / name).open(newline="", errors="surrogateescape") as file:
            read[name] = list(csv.DictReader(file))
    assert [row["class"] for row in read["classes.csv"]] == names
    assert [row["support"] for row in read["classes.csv"]] == ["3", "0", "0"]
    assert float(read["classes.csv"][0]["f1"]) == pytest.approx(2 * 1 * (1 / 3) / (1 + 1 / 3))
    assert [tuple(row.values()) for row in read["confusion.csv"]] == [("a", "a", "1"), ("a", names[1], "2")]


def test_a_run_writes_them_and_eval_repeats_them(run, cgnl):
    folder = run().folder
    results, predictions = json.loads((folder / "results.json").read_text()), read_predictions(folder)
    assert summarize(predictions) == pytest.approx(
        {"macro_f1": results["test_macro_f1"], "ece": results["test_ece"]}, abs=1e-5
    )
    with (folder / "confusion.csv").open(newline="") as file:
        counts = {(row["label"], row["predicted"]): int(row["count"]) for row in csv.DictReader(file)}
    assert counts == count_confusions(predictions)
    assert "macro F1" in (folder / "log.txt").read_text()
    status, said, _ = cgnl("eval", folder, "--json", "accelerator=cpu")
    assert status == 0
    test = json.loads(said)["tests"][0]
    assert [test[name] for name in ("test_macro_f1", "test_ece")] == [
        pytest.approx(results[name], abs=1e-6) for name in ("test_macro_f1", "test_ece")
    ]
    assert "macro F1" in cgnl("eval", folder, "accelerator=cpu")[1]


def test_more_epochs_take_them_away_until_they_are_tested(run, monkeypatch):
    folder = run().folder
    with monkeypatch.context() as patch:
        dying(patch, 7)
        with pytest.raises(Death):
            run(resume=True, optim__epochs=4)
    assert not any((folder / name).exists() for name in ("results.json", "classes.csv", "confusion.csv"))
