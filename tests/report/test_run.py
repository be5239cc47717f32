import pytest

from cgnl.report.run import read_run, read_runs

from .conftest import ANSWERS, RESULTS, ROWS


def test_read_run_of_a_finished_run(folder):
    run = read_run(folder(rows=ROWS, results=RESULTS, predictions=ANSWERS, command="cgnl train parts seed=3"))
    assert (run.title, run.finished, run.results, run.seconds) == ("one", True, RESULTS, 75.0)
    assert run.rows[0].keys() == ROWS[0].keys()
    assert run.rows[1] == {name: float(value) for name, value in ROWS[1].items()}
    assert run.speed == 20.0
    assert [a.right for a in run.predictions] == [True, False, False, True]
    assert run.command == "cgnl train parts seed=3"


def test_read_run_of_one_under_way(folder):
    run = read_run(folder(rows=ROWS))
    assert (run.finished, run.results["test_top1"], run.seconds, run.predictions) == (False, 0.375, 70, ())


@pytest.mark.parametrize(
    ("classes", "top5", "said"), [(5, 1.0, False), (6, 1.0, True), (0, 1.0, False), (0, 0.9, True)]
)
def test_read_run_leaves_out_a_top5_that_is_always_right(folder, classes, top5, said):
    predictions = [(i, f"class{i}", "class0", 0.5, "") for i in range(classes)]  # none in a run that is under way
    rows = [{"epoch": 1, "test_top5": top5}, {"epoch": 2, "test_top5": 1.0}]
    run = read_run(folder(rows=rows, results={"test_top5": 1.0, "test_top1": 0.5}, predictions=predictions))
    assert ["test_top5" in numbers for numbers in (*run.rows, run.results)] == [said] * 3


def test_read_run_that_has_just_begun(folder):
    run = read_run(folder())
    assert (run.rows, run.results, run.speed, run.seconds) == ((), {}, None, None)
    assert run.command == f"cgnl train {run.folder / 'config.yaml'}"


def test_read_run_refuses_what_is_none(tmp_path):
    with pytest.raises(ValueError, match=r"is not a run folder: it has no config\.yaml"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("metrics.csv", "epoch,lr\n1,fast\n", r"metrics\.csv is not a table"),
        ("metrics.csv", "<<<garbage\n", r"metrics\.csv is not a table"),
        ("results.json", "{", "is not JSON"),
        ("results.json", "[" * 100_000, "is not JSON"),
        ("results.json", '{"test_top1": [1]}', r"results\.json must hold numbers"),
        ("results.json", '{"test_top1": "x"}', r"results\.json must hold numbers"),
        ("results.json", '{"seconds": 1' + "0" * 400 + "}", r"results\.json must hold numbers"),
        ("environment.json", '{"gpus": 3}', r"environment\.json: gpus = 3 "),
        ("environment.json", '{"packages": []}', r"packages = \[\] "),
        ("config.yaml", "sed: 3\n", "did you mean|there is no setting 'sed'"),
    ],
)
def test_read_run_refuses_damaged_files(folder, file, text, message):
    place = folder(rows=ROWS)
    (place / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_run(place)


def test_read_runs_gives_each_a_title_of_its_own(folder, tmp_path):
    first = folder()
    (tmp_path / "x").mkdir()
    second = folder("x/one")
    assert [run.title for run in read_runs([str(first), str(folder("two"))])] == ["one", "two"]
    assert [run.title for run in read_runs([str(first), str(second)])] == [str(first), str(second)]
    with pytest.raises(ValueError, match="is named twice"):
        read_runs([str(first), str(first)])
