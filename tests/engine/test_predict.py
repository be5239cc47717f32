"""What is printed about files is what the network says of them."""

import csv
import io
import json
from pathlib import Path

import pytest
import torch

from cgnl.data.sources import FileSource
from cgnl.engine.checkpoint import open_trained, write
from cgnl.engine.config import load, nest, to_dict
from cgnl.engine.predict import find_samples, predict_samples
from cgnl.engine.tasks import TASKS
from tests.engine.conftest import (
    PICTURES,
    VIDEOS,
    Tiny,
    TinyVideo,
    normalized,
    read_picture,
    video_input,
    views_by_hand,
    write_frame_folders,
    write_pictures,
    write_video,
)

CLASSES = ["finch", "gull", "owl", "wren", "crow", "tern"]


def checkpoint(path: Path, network: torch.nn.Module, kind: str, name: str, settings: dict) -> Path:
    given = {n.replace("__", "."): v for n, v in settings.items()} | {"model.name": name, "model.block": None}
    config = to_dict(load(None, nest({**given, "data.dataset": "folder", "data.root": "gone"})))
    weights = {f"network.{n}": v for n, v in network.state_dict().items()}
    about = {"config": config, "classes": CLASSES, "kind": kind, "results": {}, "problems": []}
    write({"state_dict": weights, "cgnl": about}, path)
    return path


@pytest.fixture
def pictures(tmp_path):
    """A checkpoint of a network of pictures."""
    return checkpoint(tmp_path / "pictures.ckpt", Tiny(6, 0.5), "images", "tiny", PICTURES)


@pytest.fixture
def videos(tmp_path):
    """A checkpoint of a network of videos."""
    return checkpoint(tmp_path / "videos.ckpt", TinyVideo(6, 0.5), "videos", "tiny_video", VIDEOS)


def by_hand(path: Path, file: Path) -> dict[str, float]:
    """Class names and probabilities of a picture of 40 x 32 pixels."""
    with torch.no_grad():
        scores = open_trained(path).network(normalized(read_picture(file)[:, 4:36])[None]).softmax(1)[0]
    return dict(zip(CLASSES, scores.tolist(), strict=True))


def by_hand_video(path: Path, folder: Path) -> dict[str, float]:
    with torch.no_grad():
        scores = open_trained(path).network(video_input(views_by_hand(folder))).softmax(1).mean(0)
    return dict(zip(CLASSES, scores.tolist(), strict=True))


def likeliest(scores: dict[str, float], count: int) -> list[tuple[str, float]]:
    return sorted(scores.items(), key=lambda item: -item[1])[:count]


def test_predict_table_names_the_likeliest_classes(cgnl, pictures, tmp_path):
    (file,) = write_pictures(tmp_path / "data", "a", 1)
    status, out, err = cgnl("predict", pictures, file)
    assert (status, err) == (0, "")
    name, *lines = out.splitlines()
    assert name == str(file)
    expected = likeliest(by_hand(pictures, file), 5)
    assert [line.split() for line in lines] == [[f"{p:.2%}", n] for n, p in expected]


@pytest.mark.parametrize("top", [1, 3, 6, 100])
def test_predict_json_gives_the_probabilities_by_hand(cgnl, pictures, tmp_path, top):
    files = write_pictures(tmp_path / "data", "ab", 2)
    status, out, err = cgnl("predict", pictures, *files, "--json", "--top", top)
    assert (status, err) == (0, "")
    rows = json.loads(out)
    assert [row["file"] for row in rows] == [str(file) for file in files]
    for file, row in zip(files, rows, strict=True):
        expected = likeliest(by_hand(pictures, file), top)
        assert [found["class"] for found in row["top"]] == [name for name, _ in expected]
        assert [found["probability"] for found in row["top"]] == pytest.approx([p for _, p in expected], rel=1e-5)


def test_predict_csv_can_be_read_back(cgnl, pictures, tmp_path):
    files = write_pictures(tmp_path / 'a, "b" \u00e9', "a", 2)
    status, out, _ = cgnl("predict", pictures, *files, "--csv", "--top=2")
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["file"], row["rank"]) for row in rows] == [(str(f), str(r)) for f in files for r in (1, 2)]
    for file in files:
        expected = likeliest(by_hand(pictures, file), 2)
        mine = [row for row in rows if row["file"] == str(file)]
        assert [row["class"] for row in mine] == [name for name, _ in expected]
        assert [float(row["probability"]) for row in mine] == pytest.approx([p for _, p in expected], abs=1e-6)


def test_predict_a_folder_stands_for_all_pictures_in_it(cgnl, pictures, tmp_path):
    files = write_pictures(tmp_path / "data", "ab", 2)
    (tmp_path / "data" / "notes.txt").write_text("hello")
    status, out, _ = cgnl("predict", pictures, tmp_path / "data", "--json")
    assert status == 0
    assert [row["file"] for row in json.loads(out)] == [str(file) for file in files]


def test_predict_names_what_cannot_be_read_and_prints_the_others(cgnl, pictures, tmp_path):
    files = write_pictures(tmp_path / "data", "a", 3)
    files[1].write_bytes(b"")
    status, out, err = cgnl("predict", pictures, *files)
    assert status == 2
    assert str(files[0]) in out
    assert str(files[2]) in out
    first, second = err.splitlines()
    assert first.startswith(f"cgnl predict: {files[1]} cannot be read: ")
    assert second == "cgnl predict: 1 of 3 could not be read"


def test_predict_json_holds_the_problem(cgnl, pictures, tmp_path):
    files = write_pictures(tmp_path / "data", "a", 2)
    files[0].write_text("no picture")
    status, out, _ = cgnl("predict", pictures, *files, "--json")
    broken, whole = json.loads(out)
    assert status == 2
    assert str(files[0]) in broken["problem"]
    assert len(whole["top"]) == 5


def test_predict_csv_of_broken_files_holds_the_others(cgnl, pictures, tmp_path):
    files = write_pictures(tmp_path / "data", "a", 2)
    files[0].write_text("no picture")
    status, out, _ = cgnl("predict", pictures, *files, "--csv")
    assert status == 2
    assert {row["file"] for row in csv.DictReader(io.StringIO(out))} == {str(files[1])}


def test_predict_averages_the_views_of_a_folder_of_frames(cgnl, videos, tmp_path):
    (folder,) = write_frame_folders(tmp_path / "data", "a", 1)
    status, out, _ = cgnl("predict", videos, folder, "--json", "--top=6")
    assert status == 0
    (row,) = json.loads(out)
    expected = likeliest(by_hand_video(videos, folder), 6)
    assert row["file"] == str(folder)
    assert [found["class"] for found in row["top"]] == [name for name, _ in expected]
    assert [found["probability"] for found in row["top"]] == pytest.approx([p for _, p in expected], rel=1e-5)


def test_predict_a_folder_stands_for_all_videos_in_it(cgnl, videos, tmp_path):
    folders = write_frame_folders(tmp_path / "data", "ab", 2)
    file = write_video(tmp_path / "data" / "a" / "z.avi", 7)
    status, out, _ = cgnl("predict", videos, tmp_path / "data", "--json")
    assert status == 0
    assert sorted(row["file"] for row in json.loads(out)) == sorted(map(str, [*folders, file]))


@pytest.mark.parametrize("frames", [1, 3, 9])
def test_predict_takes_a_video_file(cgnl, videos, tmp_path, frames):
    file = write_video(tmp_path / "a.avi", frames)
    status, out, err = cgnl("predict", videos, file, "--json", "--top=6")
    assert (status, err) == (0, "")
    (row,) = json.loads(out)
    assert sum(found["probability"] for found in row["top"]) == pytest.approx(1, rel=1e-5)


def test_predict_names_a_broken_video(cgnl, videos, tmp_path):
    file, whole = tmp_path / "a.mp4", write_video(tmp_path / "b.avi", 5)
    file.write_bytes(b"")
    status, out, err = cgnl("predict", videos, file, whole)
    assert status == 2
    assert str(whole) in out
    assert err.startswith(f"cgnl predict: {file} cannot be read: ")


def test_predict_refuses_a_picture_for_a_network_of_videos(cgnl, videos, tmp_path):
    (file,) = write_pictures(tmp_path / "data", "a", 1)
    status, out, err = cgnl("predict", videos, file)
    assert (status, out) == (2, "")
    assert err == f"cgnl predict: {file}: the network was trained on videos, not on images\n"


def test_predict_refuses_a_video_for_a_network_of_pictures(cgnl, pictures, tmp_path):
    file = write_video(tmp_path / "a.avi", 3)
    status, out, err = cgnl("predict", pictures, file)
    assert (status, out) == (2, "")
    assert err == f"cgnl predict: {file}: the network was trained on images, not on videos\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gone.png"], "there is no gone.png"),
        ([], "name a file or a folder to look at"),
        (["gone.png", "--top=0"], "top = 0 must be more than 0"),
        (["gone.png", "--json", "--csv"], "give --json or --csv, not both"),
    ],
    ids=str,
)
def test_predict_says_what_is_missing(cgnl, pictures, arguments, sentence):
    assert cgnl("predict", pictures, *arguments) == (2, "", f"cgnl predict: {sentence}\n")


def test_predict_refuses_an_unknown_device_in_one_sentence(cgnl, pictures, tmp_path):
    (file,) = write_pictures(tmp_path / "data", "a", 1)
    status, out, err = cgnl("predict", pictures, file, "--device=warp")
    assert (status, out) == (2, "")
    assert "warp" in err
    assert err.count("\n") == 1


def test_predict_names_a_missing_checkpoint(cgnl, tmp_path):
    status, _, err = cgnl("predict", tmp_path / "gone.ckpt", "a.png")
    assert status == 2
    assert "gone.ckpt" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("kind", ["images", "videos"])
def test_find_says_that_a_folder_is_empty(tmp_path, kind):
    with pytest.raises(ValueError, match=f"{tmp_path} holds no {'images' if kind == 'images' else 'videos'}"):
        find_samples([tmp_path], TASKS[kind])


def test_find_leaves_hidden_files_out(tmp_path):
    files = write_pictures(tmp_path / "data", "a", 1)
    files[0].with_name("._0.png").write_bytes(b"")
    assert find_samples([tmp_path / "data"], TASKS["images"]) == files


def test_predict_of_a_trained_network_knows_its_classes(run, cgnl, tmp_path):
    files = write_pictures(tmp_path / "data")
    settings = {"optim__epochs": 5, "optim__lr": 3.0, "model__dropout": 0.0, **PICTURES}
    result = run(recipe=None, data__root=str(tmp_path / "data"), **settings)
    (tmp_path / "data").rename(tmp_path / "moved")
    files = [tmp_path / "moved" / file.relative_to(tmp_path / "data") for file in files]
    status, out, _ = cgnl("predict", result.folder / "last.ckpt", tmp_path / "moved", "--top=1", "--json")
    assert status == 0
    assert [row["top"][0]["class"] for row in json.loads(out)] == [file.parent.name for file in files]


def test_predict_of_a_network_of_embedded_pictures_takes_files(run, cgnl, tmp_path):
    (file,) = write_pictures(tmp_path / "data", "a", 1, size=(64, 64))
    result = run()
    status, out, _ = cgnl("predict", result.folder / "best.ckpt", file, "--json", "--top=12")
    assert status == 0
    with torch.no_grad():
        scores = open_trained(result.folder / "best.ckpt").network(normalized(read_picture(file))[None]).softmax(1)[0]
    found = [found["probability"] for found in json.loads(out)[0]["top"]]
    assert found == pytest.approx(scores.sort(descending=True).values.tolist(), rel=1e-5)


def test_predictions_do_not_depend_on_one_another(pictures, tmp_path):
    files = write_pictures(tmp_path / "data", "ab", 4)
    trained = open_trained(pictures)
    sources = [FileSource.of_files(some, trained.kind) for some in (files, *([file] for file in files))]
    together, *alone = (list(predict_samples(trained, source, top=6)) for source in sources)
    alone = [one for (one,) in alone]
    assert together == alone
