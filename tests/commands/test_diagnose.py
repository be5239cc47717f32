"""The command says how often the network is right with something else in the attention's place."""

import csv
import shutil
from contextlib import nullcontext

import pytest
import torch

from cgnl.data.transforms import network_input
from cgnl.engine.checkpoint import open_trained
from cgnl.engine.evaluate import evaluate, prepare
from cgnl.engine.predictions import Prediction
from cgnl.explain.diagnose import plot
from cgnl.explain.diagnose import run as diagnose
from cgnl.explain.diagnosis import Diagnosis, Outcome, frames_shuffled
from cgnl.explain.verdict import Verdict, quick_verdict, read_verdict
from tests.engine.conftest import write_frame_folders, write_pictures

BLOCK = {"model__block": "cgnl", "model__options": {"after": ["conv1"], "groups": 2}}


@pytest.fixture
def trained(run, tmp_path, tmp_path_factory):
    """The last checkpoint of a run in a folder of its own; trained once, and copied for each test."""
    once = tmp_path_factory.getbasetemp() / "trained-with-a-block"
    if not once.exists():
        shutil.copytree(run(**BLOCK).folder, once)
    return shutil.copytree(once, tmp_path / "trained") / "last.ckpt"


def test_diagnose_prints_and_writes_both_tables(cgnl, trained, tmp_path):
    status, out, err = cgnl("diagnose", trained, "-o", tmp_path / "new" / "d", "accelerator=cpu")
    assert (status, err) == (0, "")
    with (tmp_path / "new" / "d.csv").open(newline="") as file:
        outcomes = list(csv.DictReader(file))
    names = ["as it is", "its mean", "its sign x mean size", "another sample's", "block off"]
    assert [row["attention"] for row in outcomes] == names
    truth = evaluate(trained, {"accelerator": "cpu"})["test"]["test_top1"]
    assert float(outcomes[0]["top1"]) == pytest.approx(100 * truth)
    for row in outcomes[1:]:
        changed = int(row["won"]) - int(row["lost"])
        assert float(row["top1"]) == pytest.approx(100 * truth + 100 * changed / 6)
    with (tmp_path / "new" / "d_groups.csv").open(newline="") as file:
        groups = list(csv.DictReader(file))
    assert [(row["block"], row["group"], row["order"]) for row in groups] == [("conv1_cgnl", g, "1") for g in "01"]
    assert (tmp_path / "new" / "d.png").stat().st_size > 1000
    assert "6 samples" in out
    assert out.splitlines()[-1].endswith("d.png written")
    again = cgnl("diagnose", trained, "--block", "conv1_cgnl", "accelerator=cpu")[1]
    assert again == out[: len(again)] != ""


def test_diagnose_says_and_keeps_whether_the_block_is_used(cgnl, trained):
    out = cgnl("diagnose", trained, "accelerator=cpu")[1]
    network = open_trained(trained).network
    verdict = read_verdict(trained, network)
    assert verdict is not None
    assert verdict.words() in out.splitlines()
    assert out.splitlines()[-1].startswith(f"{trained.with_name('diagnosis.json')} written")
    test = prepare(trained, {"accelerator": "cpu", "devices": 1})
    quick = quick_verdict(network, [network_input(batch.pixels[:, 0]) for batch in test.batches])
    assert (quick.changed, quick.samples) == (verdict.changed, verdict.samples) == (verdict.changed, 6)
    assert quick.added == pytest.approx(verdict.added, rel=1e-4)


def test_diagnose_counts_predictions_that_change_from_one_wrong_class_to_another(trained, monkeypatch):
    """Neither lost nor won, and still changed."""
    test = prepare(trained, {"accelerator": "cpu", "devices": 1})
    calls = []

    def run() -> None:
        calls.append(1)
        wrong = [1, 2] if len(calls) < 5 else [2, 2]  # the fifth test is without the block
        test.trained.network(torch.zeros(2, 3, 32, 32))
        test.task.predictions = [Prediction(i, 0, predicted, 1.0) for i, predicted in enumerate(wrong)]

    monkeypatch.setattr(test, "run", run)
    result = diagnose(test)
    off = result.outcomes[-1]
    assert (off.attention, off.lost, off.won) == ("block off", 0, 0)
    assert result.verdict is not None
    assert (result.verdict.changed, result.verdict.samples) == (1, 2)


def test_diagnose_of_one_block_keeps_nothing(cgnl, trained):
    trained.with_name("diagnosis.json").unlink()  # of the training
    assert "The block adds" in cgnl("diagnose", trained, "--block", "conv1_cgnl", "accelerator=cpu")[1]
    assert not trained.with_name("diagnosis.json").exists()


def test_diagnose_of_a_folder_that_cannot_be_written_to(cgnl, trained, monkeypatch):
    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr("cgnl.explain.verdict.save_verdict", fail)
    status, out, _ = cgnl("diagnose", trained, "accelerator=cpu")
    assert (status, "the verdict is not kept: no space left" in out) == (0, True)


def test_plot_ends_at_a_hundred_percent_and_has_the_verdict():
    outcomes = Outcome("as it is", 100.0), Outcome("block off", 99.0, 1, 0, -1.0, 1.0)
    verdict = Verdict({"b": 0.1}, 0, 100)
    figure = plot(Diagnosis(outcomes, (), {}, {}, {}, verdict), "a$b$")
    assert figure.axes[0].get_xlim() == (0, 100)
    figure.draw_without_rendering()
    text = figure.axes[0].texts[0].get_window_extent()
    assert text.x1 <= figure.bbox.x1
    assert verdict.words() == figure._supxlabel.get_text().replace("\n", " ")


def test_commands_take_a_run_folder(cgnl, trained, tmp_path):
    (picture, *_) = write_pictures(tmp_path / "pictures", count=1)
    words = {"eval": [], "diagnose": [], "predict": [picture], "explain": [picture, "-o", tmp_path / "a.png"]}
    for command, more in words.items():
        (status, out, err), by_file = (cgnl(command, path, *more) for path in (trained.parent, trained))
        assert (status, err) == (0, "")
        assert out.replace(f"{trained.parent}\n", f"{trained}\n") == by_file[1]


def test_diagnose_of_videos_replaces_view_by_view(cgnl, run, tmp_path):
    from tests.engine.conftest import VIDEOS

    write_frame_folders(tmp_path / "clips", count=3)
    settings = VIDEOS | BLOCK | {"data__root": str(tmp_path / "clips"), "recipe": None}
    path = run(**settings).folder / "last.ckpt"
    status, out, err = cgnl("diagnose", path, tmp_path / "clips", "accelerator=cpu")
    assert (status, err) == (0, "")
    assert "another sample's" in out
    assert "frames in random order" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["somewhere"], "was trained on parts, which is synthetic"),
        (["--block", "conv2_cgnl"], "there is no block 'conv2_cgnl'; did you mean conv1_cgnl?"),
        (["data.dataset=actions"], "data.dataset cannot be changed"),
        (["--outptu", "a"], "did you mean output?"),
    ],
)
def test_diagnose_refuses_in_one_sentence(cgnl, trained, words, message):
    status, out, err = cgnl("diagnose", trained, *words)
    assert (status, out) == (2, "")
    assert message in err


def test_diagnose_refuses_networks_without_blocks(cgnl, run):
    status, _, err = cgnl("diagnose", run().folder / "last.ckpt")
    assert status == 2
    assert "the network has no NL or CGNL block" in err


def test_diagnose_shuffles_the_frames_that_a_test_gives_a_network(run, tmp_path):
    from tests.engine.conftest import VIDEOS

    write_frame_folders(tmp_path / "clips", count=3)
    settings = VIDEOS | {"model__block": None, "data__root": str(tmp_path / "clips"), "recipe": None}
    test = prepare(run(**settings).folder / "last.ckpt", {"accelerator": "cpu", "devices": 1})
    scores = []
    for context in (nullcontext(), frames_shuffled(test.trained.network)):
        with context:
            test.run()
        scores.append([prediction.score for prediction in test.task.predictions])
    assert scores[0] != scores[1]
