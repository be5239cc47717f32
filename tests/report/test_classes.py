import torch
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_confusion_matrix

from cgnl.engine.predictions import Answer
from cgnl.report.classes import confusions, per_class

NAMES = "abcd"


def some(count: int = 200) -> tuple[list[Answer], torch.Tensor, torch.Tensor]:
    labels, predicted = torch.randint(0, 4, (2, count))
    scores = torch.rand(count).tolist()
    pairs = zip(labels.tolist(), predicted.tolist(), scores, strict=True)
    return [Answer(i, NAMES[a], NAMES[b], s) for i, (a, b, s) in enumerate(pairs)], labels, predicted


def test_per_class_agrees_with_torchmetrics():
    answers, labels, predicted = some()
    found = per_class(answers)
    expected = multiclass_accuracy(predicted, labels, 4, average="none")
    assert torch.allclose(torch.tensor([c.share for c in sorted(found)]), expected)
    assert [c.share for c in found] == sorted(c.share for c in found)
    assert sum(c.of for c in found) == 200


def test_confusions_agree_with_torchmetrics():
    answers, labels, predicted = some()
    matrix = multiclass_confusion_matrix(predicted, labels, 4)
    found = confusions(answers)
    assert {(c.label, c.predicted): len(c.answers) for c in found} == {
        (NAMES[i], NAMES[j]): int(matrix[i, j]) for i in range(4) for j in range(4) if i != j
    }
    assert [len(c.answers) for c in found] == sorted((len(c.answers) for c in found), reverse=True)
    for c in found:
        assert c.of == int(matrix[NAMES.index(c.label)].sum())
        assert [a.score for a in c.answers] == sorted((a.score for a in c.answers), reverse=True)


def test_nothing_confused():
    answers = [Answer(0, "a", "a", 0.5)]
    assert confusions(answers) == []
    assert [(c.name, c.right, c.of) for c in per_class(answers)] == [("a", 1, 1)]


def test_no_answers():
    assert per_class([]) == confusions([]) == []
