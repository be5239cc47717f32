from cgnl.report import sections
from cgnl.report.run import read_run

from .conftest import ANSWERS, RESULTS, ROWS
from .test_html import Reader


def words(markup: str | None) -> str:
    return Reader(markup or "").text


def test_numbers_of_one_run(folder):
    place = folder(recipe="cub_r50_cgnl1", data__dataset="cub", rows=ROWS, results=RESULTS)
    said = words(sections.numbers([read_run(place)]))
    assert "test top-137.50%" in said
    assert "1 min 15 s" in said
    assert "last.ckpt" in said


def test_numbers_of_several_runs_stand_side_by_side(folder):
    runs = [read_run(folder("one", rows=ROWS, results=RESULTS)), read_run(folder("two", rows=ROWS[:1]))]
    said = words(sections.numbers(runs))
    assert "ended after 2 epochs" in said
    assert "not finished: 1 epoch so far" in said
    assert "last.ckpt" not in said


def test_numbers_of_different_tests_say_so(folder):
    moved = [(*prediction[:4], f"elsewhere/{prediction[4]}") for prediction in ANSWERS]
    cases = {"same": (ANSWERS, 4), "moved": (moved, 4), "other": ([*ANSWERS[:3], (3, "red", "red", 0.6, "x")], 4)}
    cases |= {"fewer": (ANSWERS[:3], 3), "unknown": (None, 4), "counted": (None, 3)}
    runs = {
        name: read_run(folder(name, predictions=predictions, results={"test_top1": 0.5, "test_count": count}))
        for name, (predictions, count) in cases.items()
    }
    said = [name for name, run in runs.items() if "different samples" in words(sections.numbers([runs["same"], run]))]
    assert said == ["other", "fewer", "counted"]


def test_numbers_before_any_test(folder):
    assert "No test has been made yet" in words(sections.numbers([read_run(folder())]))


def test_classes_are_escaped_and_the_worst_is_first(folder):
    markup = sections.classes([read_run(folder(predictions=ANSWERS))])
    read = Reader(markup or "")
    assert "script" not in [name for name, _ in read.tags]
    assert read.text.index("red33.3%1 of 3") < read.text.index("<script>100.0%1 of 1")


def test_classes_of_several_runs_are_ordered_by_their_spread(folder):
    other = [(0, "red", "red", 0.9, "x"), (1, "<script>", "<script>", 0.9, "y"), (2, "only here", "red", 0.9, "z")]
    runs = [read_run(folder("one", predictions=ANSWERS)), read_run(folder("two", predictions=other))]
    said = words(sections.classes(runs))
    assert "red33.3%100.0%66.7" in said
    assert said.index("red33.3%") < said.index("<script>100.0%100.0%0.0")
    assert said.endswith("only here0.0%")  # and no spread, for there is nothing to compare


def test_many_classes_are_folded(folder):
    predictions = [(i, f"class{i}", "class0", 0.5, "") for i in range(40)]
    markup = sections.classes([read_run(folder(predictions=predictions))])
    assert "15 more" in words(markup)
    assert [name for name, _ in Reader(markup or "").tags].count("details") == 1


def test_confused_names_pairs_and_shows_them(folder):
    read = Reader(sections.confused([read_run(folder(predictions=ANSWERS))]) or "")
    assert "2 of 4 test samples were taken for another class" in read.text
    assert "red taken for <script>: 2 of 3" in read.text
    pictures = [attributes for name, attributes in read.tags if name == "img"]
    assert [p["alt"] for p in pictures] == [f"parts {i}: red, taken for <script> ({s}%)" for i, s in ((1, 80), (2, 70))]
    assert all((p["src"] or "").startswith("data:image/webp;base64,") for p in pictures)


def test_confused_without_its_samples(folder, tmp_path):
    run = read_run(folder(predictions=ANSWERS, data__dataset="folder", data__root=str(tmp_path / "gone")))
    read = Reader(sections.confused([run]) or "")
    assert "The samples cannot be shown: " in read.text
    assert "img" not in [name for name, _ in read.tags]


def test_confused_by_nothing(folder):
    assert "All of the 1 test samples" in words(sections.confused([read_run(folder(predictions=ANSWERS[:1]))]))


def test_matrix_counts_every_pair(folder):
    rows = (sections.matrix(read_run(folder(predictions=ANSWERS))) or "").split("<tr>")[2:]
    assert [Reader(row).text for row in rows] == ["<script>1", "red21"]


def test_throughput_is_the_median_and_the_range(folder):
    assert "20.010.0 to 30.0" in words(sections.throughput([read_run(folder(rows=ROWS))]))


def test_settings_that_differ_are_shown_alone(folder):
    runs = [read_run(folder("one", seed=1)), read_run(folder("two", seed=2, model__options={"groups": 4}))]
    said = words(sections.settings(runs))
    assert "seed12" in said
    assert "model.options.groups4" in said
    assert "optim.lr" not in said


def test_settings_that_are_lists_are_in_brackets(folder):
    lists = {"data__area": [0.5, 1.0], "model__after": ["layer4.0", "layer2.1"]}
    said = words(sections.settings([read_run(folder("one")), read_run(folder("two", **lists))]))
    assert "data.area[0.08, 1.25][0.5, 1.0]" in said
    assert "model.after[][layer4.0, layer2.1]" in said


def test_settings_that_are_the_same(folder):
    assert "All settings are the same" in words(sections.settings([read_run(folder("one")), read_run(folder("two"))]))


def test_repeat_gives_the_command(folder):
    assert "cgnl train parts 'name=a b'" in words(
        sections.repeat([read_run(folder(command="cgnl train parts 'name=a b'"))])
    )


def test_repeat_names_the_commit(folder):
    place = folder()
    (place / "environment.json").write_text('{"commit": "0123abc-dirty", "python": "3.11"}')
    assert "0123abc-dirty" in words(sections.repeat([read_run(place)]))


def test_sections_of_classes_are_silent_where_there_are_none(folder):
    run = read_run(folder(rows=[{"epoch": 1, "test_box_ap": 0.31}], results={"test_box_ap": 0.31}))
    assert sections.classes([run]) is sections.confused([run]) is sections.attention([run]) is None
    assert "test box AP31.00%" in words(sections.numbers([run]))


def test_numbers_of_objects_are_per_cent_and_have_gaps(folder):
    run = read_run(folder(results={"test_box_ap": 0.3125, "test_box_ap_small": -1.0}))
    said = words(sections.numbers([run]))
    assert "test box AP31.25%" in said
    assert "test box AP small-" in said
    assert "AP small" not in words(sections.heading([run]))
