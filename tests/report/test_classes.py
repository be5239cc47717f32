import torch
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_confusion_matrix

from cgnl.engine.predictions import Prediction
from cgnl.report.classes import confusions, per_class

NAMES = "abcd"


def some(count: int = 200) -> tuple[list[Prediction], torch.Tensor, torch.Tensor]:
    labels, predicted = torch.randint(0, 4, (2, count))
    scores = torch.rand(count).tolist()
    pairs = zip(labels.tolist(), predicted.tolist(), scores, strict=True)
    return [Prediction(i, NAMES[a], NAMES[b], s) for i, (a, b, s) in enumerate(pairs)], labels, predicted


def test_per_class_agrees_with_torchmetrics():
    predictions, labels, predicted = some()
    found = per_class(predictions)
    expected = multiclass_accuracy(predicted, labels, 4, average="none")
    assert torch.allclose(torch.tensor([c.share for c in sorted(found)]), expected)
    assert [c.share for c in found] == sorted(c.share for c in found)
    assert sum(c.of for c in found) == 200


def test_confusions_agree_with_torchmetrics():
    predictions, labels, predicted = some()
    matrix = multiclass_confusion_matrix(predicted, labels, 4)
    found = confusions(predictions)
    assert {(c.label, c.predicted): len(c.predictions) for c in found} == {
        (NAMES[i], NAMES[j]): int(matrix[i, j]) for i in range(4) for j in range(4) if i != j
    }
    assert [len(c.predictions) for c in found] == sorted((len(c.predictions) for c in found), reverse=True)
    for c in found:
        assert c.of == int(matrix[NAMES.index(c.label)].sum())
        assert [a.score for a in c.predictions] == sorted((a.score for a in c.predictions), reverse=True)


def test_nothing_confused():
    predictions = [Prediction(0, "a", "a", 0.5)]
    assert confusions(predictions) == []
    assert [(c.name, c.right, c.of) for c in per_class(predictions)] == [("a", 1, 1)]


def test_no_answers():
    assert per_class([]) == confusions([]) == []
