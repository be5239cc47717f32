import pytest
import torch
from torchmetrics.functional.classification import multiclass_confusion_matrix

from cgnl.engine.predictions import Prediction
from cgnl.report import sections
from cgnl.report.run import read_run
from cgnl.report.sections import find_confusions

from .conftest import ANSWERS, RESULTS, ROWS

NAMES = "abcd"


def cells(table: sections.Table | None) -> dict[str, list[str]]:
    """Rows of a table by their names."""
    return {str(row[0]): [str(cell) for cell in row[1:]] for row in (table.rows if table else ())}


def some(count: int = 200) -> tuple[list[Prediction], torch.Tensor, torch.Tensor]:
    labels, predicted = torch.randint(0, 4, (2, count))
    scores = torch.rand(count).tolist()
    pairs = zip(labels.tolist(), predicted.tolist(), scores, strict=True)
    return [Prediction(i, NAMES[a], NAMES[b], s) for i, (a, b, s) in enumerate(pairs)], labels, predicted


def test_confusions_agree_with_torchmetrics():
    predictions, labels, predicted = some()
    matrix = multiclass_confusion_matrix(predicted, labels, 4)
    found = find_confusions(predictions)
    assert {(c.label, c.predicted): len(c.predictions) for c in found} == {
        (NAMES[i], NAMES[j]): int(matrix[i, j]) for i in range(4) for j in range(4) if i != j
    }
    assert [len(c.predictions) for c in found] == sorted((len(c.predictions) for c in found), reverse=True)
    for c in found:
        assert c.of == int(matrix[NAMES.index(c.label)].sum())
        assert [p.score for p in c.predictions] == sorted((p.score for p in c.predictions), reverse=True)


def test_nothing_confused():
    assert find_confusions([Prediction(0, "a", "a", 0.5)]) == []
    assert find_confusions([]) == []


def test_results_of_one_run(folder):
    run = read_run(folder(recipe="cub_r50_cgnl1", data__dataset="cub", rows=ROWS, results=RESULTS))
    found = sections.tabulate_results([run])
    assert found is not None
    assert found.head == ["", "this run"]
    assert cells(found)["test top-1"] == ["37.50%"]
    assert cells(found)["time"] == ["1 min 15 s"]


def test_results_of_several_runs_stand_side_by_side(folder):
    runs = [read_run(folder("one", rows=ROWS, results=RESULTS)), read_run(folder("two", rows=ROWS[:1]))]
    found = cells(sections.tabulate_results(runs))
    assert found["state"] == ["ended after 2 epochs", "not finished: 1 epoch so far"]
    assert found["test top-1"] == ["37.50%", ""]
    assert found["time"] == ["1 min 15 s", "5 s"]


def test_results_of_objects_are_percent_and_have_gaps(folder):
    run = read_run(folder(results={"test_box_ap": 0.3125, "test_box_ap_small": -1.0}))
    found = cells(sections.tabulate_results([run]))
    assert (found["test box AP"], found["test box AP small"]) == (["31.25%"], ["-"])
    assert sections.make_tiles(run) == {"test box AP": "31.25%"}


def test_numbers_of_one_epoch_are_a_table(folder):
    row = {"epoch": 1, "lr": 0.1, "train_loss_mask": 1.5, "test_box_ap": 0.3}
    found = sections.tabulate_one_epoch([read_run(folder(rows=[row], results={"test_box_ap": 0.3}))])
    assert cells(found) == {"learning rate": ["0.1"], "train loss mask": ["1.5"]}
    assert sections.tabulate_one_epoch([read_run(folder("two", rows=ROWS))]) is None


def test_results_before_any_test(folder):
    assert sections.tabulate_results([read_run(folder())]) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(59.6, "1 min 00 s"), (3599, "59 min 59 s"), (7260, "2 h 01 min"), (float("nan"), "-")]
)
def test_durations(seconds, text):
    assert sections.format_duration(seconds) == text


def test_different_tests_are_noticed(folder):
    moved = [(*prediction[:4], f"elsewhere/{prediction[4]}") for prediction in ANSWERS]
    cases = {"same": (ANSWERS, 4), "moved": (moved, 4), "other": ([*ANSWERS[:3], (3, "red", "red", 0.6, "x")], 4)}
    cases |= {"fewer": (ANSWERS[:3], 3), "unknown": (None, 4), "counted": (None, 3)}
    runs = {
        name: read_run(folder(name, predictions=predictions, results={"test_top1": 0.5, "test_count": count}))
        for name, (predictions, count) in cases.items()
    }
    differ = [name for name, run in runs.items() if sections.tests_differ([runs["same"], run])]
    assert differ == ["other", "fewer", "counted"]


def test_classes_begin_with_the_worst(folder):
    found = cells(sections.tabulate_classes([read_run(folder(predictions=ANSWERS))]))
    assert list(found) == ["red", "<script>"]
    assert found["red"][1:] == ["50.0%", "100.0%", "33.3%", "3"]
    assert "width:50.0%" in found["red"][0]


def test_classes_of_several_runs_are_ordered_by_their_spread(folder):
    other = [(0, "red", "red", 0.9, "x"), (1, "<script>", "<script>", 0.9, "y"), (2, "only here", "red", 0.9, "z")]
    runs = [read_run(folder("one", predictions=ANSWERS)), read_run(folder("two", predictions=other))]
    found = cells(sections.tabulate_classes(runs))
    assert list(found.items()) == [
        ("red", ["33.3%", "100.0%", "66.7"]),
        ("<script>", ["100.0%", "100.0%", "0.0"]),
        ("only here", ["", "0.0%", ""]),  # no spread, because there is nothing to compare
    ]


def test_speed_is_the_median_and_the_range(folder):
    found = cells(sections.tabulate_speed([read_run(folder(rows=ROWS))]))
    assert found["one"][:2] == ["20.0", "10.0 to 30.0"]


def test_settings_that_differ_are_shown_alone(folder):
    runs = [read_run(folder("one", seed=1)), read_run(folder("two", seed=2, model__options={"groups": 4}))]
    assert cells(sections.tabulate_settings(runs)) == {"seed": ["1", "2"], "model.options.groups": ["", "4"]}


def test_settings_that_are_lists_are_in_brackets(folder):
    lists = {"data__area": [0.5, 1.0], "model__after": ["layer4.0", "layer2.1"]}
    found = cells(sections.tabulate_settings([read_run(folder("one")), read_run(folder("two", **lists))]))
    assert found["data.area"] == ["[0.08, 1.25]", "[0.5, 1.0]"]
    assert found["model.after"] == ["[]", "[layer4.0, layer2.1]"]


def test_settings_that_are_the_same(folder):
    assert sections.tabulate_settings([read_run(folder("one")), read_run(folder("two"))]) is None


def test_software_names_the_commit(folder):
    place = folder()
    (place / "environment.json").write_text('{"commit": "0123abc-dirty", "python": "3.11"}')
    assert cells(sections.tabulate_software([read_run(place)]))["one"][1] == "0123abc-dirty"


def test_nothing_about_classes_where_there_are_none(folder):
    run = read_run(folder(rows=[{"epoch": 1, "test_box_ap": 0.31}], results={"test_box_ap": 0.31}))
    content = sections.collect([run])
    assert content["classes"] is None
    assert content["confusions"] == content["attention"] == []
