"""The command says how often the network is right with something else in the attention's place."""

import csv
from contextlib import nullcontext

import pytest

from cgnl.engine.evaluate import evaluate, prepare
from cgnl.explain.diagnosis import frames_shuffled
from tests.engine.conftest import write_frame_folders, write_pictures

BLOCK = {"model__block": "cgnl", "model__options": {"after": ["conv1"], "groups": 2}}


@pytest.fixture
def trained(run):
    return run(**BLOCK).folder / "last.ckpt"


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
