"""The contract of each task."""

from pathlib import Path

import pytest

from cgnl.engine.settings import Data
from cgnl.engine.tasks import TASKS, Images, Objects, Videos

ACCURACY = {"test_top1": 0.5, "test_top5": 0.75, "test_count": 8}


@pytest.mark.parametrize("kind", TASKS)
def test_default_network_fits_its_task_alone(kind):
    assert [task.kind for task in TASKS.values() if task.fits(TASKS[kind].default_network)] == [kind]


@pytest.mark.parametrize(("classes", "top5"), [(5, False), (6, True)])
def test_describe_names_top5_where_it_says_anything(classes, top5):
    (line,) = Images.describe(ACCURACY, classes)
    assert "top-1 50.00%" in line
    assert ("top-5 75.00%" in line) == top5
    assert "8 images" in line


def test_describe_of_videos_tells_views_from_videos():
    video, clip = Videos.describe({**ACCURACY, "test_views": 30, "test_clip_top1": 0.25}, 3)
    assert "30 views" in video
    assert "8 videos" in video
    assert "25.00% of 240 views" in clip


def test_describe_of_objects_leaves_out_what_is_not_there():
    names = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar_100")
    numbers = {f"test_{kind}_{name}": 0.125 for kind in ("box", "mask") for name in names}
    lines = Objects.describe({**numbers, "test_box_ap_small": -1, "test_count": 1}, 2)
    assert "1 image " in lines[0]
    assert "AP 12.50" in lines[1]
    assert "small -" in lines[1]
    assert "small 12.50" in lines[2]


def test_find_files_of_videos_are_files_and_folders_of_frames(tmp_path: Path):
    for name in ("a.mp4", "b/0.png", "b/1.png", "c/d.mp4", "note.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert Videos.find_files(tmp_path) == [tmp_path / "a.mp4", tmp_path / "c" / "d.mp4", tmp_path / "b"]
    assert Images.find_files(tmp_path) == [tmp_path / "b" / "0.png", tmp_path / "b" / "1.png"]


def test_only_videos_are_seen_in_several_views():
    data = Data(root="x", size=112, test_clips=4, test_crops=2)
    views = {kind: [task.view_in_test(data, full) for full in (True, False)] for kind, task in TASKS.items()}
    sizes = {kind: (full.size, full.clips, full.crops) for kind, (full, _) in views.items()}
    assert sizes == {"images": (112, 1, 1), "videos": (128, 4, 2), "objects": (128, 1, 1)}
    assert {kind for kind, (full, one) in views.items() if full != one} == {"videos"}


@pytest.mark.parametrize("kind", TASKS)
def test_synthetic_samples_are_seen_whole_by_every_task(kind):
    view = TASKS[kind].view_in_test(Data(dataset="parts"), full=True)
    assert (view.size, view.clips, view.crops) == (None, 1, 1)


def test_suffixes_tell_files_of_images_from_those_of_videos():
    names = {".png": {"image"}, ".mp4": {"video"}, ".txt": set()}
    assert {s: {task.file for task in TASKS.values() if s in task.suffixes} for s in names} == names


def test_flags_of_the_contract():
    flags = {kind: (task.classifies, task.fixed_size, task.has_frames) for kind, task in TASKS.items()}
    assert flags == {"images": (True, True, False), "videos": (True, True, True), "objects": (False, False, False)}
