"""Frames by number equal those of a plain decode from the start, and broken videos are named."""

import gc
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cgnl.data import images, video
from cgnl.data.index import UnreadableError, is_video_file
from cgnl.data.video import VideoInfo, clip_indices, probe, read_frames

av = pytest.importorskip("av")
Image = pytest.importorskip("PIL.Image")

WIDTH, HEIGHT, FRAMES = 64, 48, 50


def picture(number):
    """Brightness says the number, a moving bar makes the frames depend on each other."""
    pixels = np.full((HEIGHT, WIDTH, 3), 20 + 4 * number, np.uint8)
    pixels[:, number % WIDTH : number % WIDTH + 6] = (255, 40, 0)
    return pixels


def make(
    path, codec="libx264", frames=FRAMES, keys=(), times=None, b_frames: int | None = 2, gop=12, muxer=None, **options
):
    """A small video; ``keys`` are forced to be key frames, ``times`` are the times of the frames."""
    with av.open(str(path), "w", options=muxer or {}) as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        context = stream.codec_context
        context.gop_size = gop
        if b_frames is not None:
            context.max_b_frames = b_frames
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(number), format="rgb24")
            frame.pts = times[number] if times else number
            if number in keys:
                frame.pict_type = av.video.frame.PictureType.I
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def sequential(path):
    """Every frame, by nothing but a plain decode."""
    with av.open(str(path)) as container:
        frames = [torch.from_numpy(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    return torch.stack(frames).permute(0, 3, 1, 2)


UNEVEN = [n * 2 + (n % 3 == 0) for n in range(FRAMES)]
KINDS = {
    "h264": ("a.mp4", {}),
    "h264 with uneven key frames": ("a.mp4", {"keys": (3, 4, 17, 41), "gop": 250, "sc_threshold": "0"}),
    "h264 with one key frame": ("a.mp4", {"gop": 250, "sc_threshold": "0"}),
    "h264 with key frames only": ("a.mp4", {"gop": 1}),
    "h264 with many b-frames": ("a.mp4", {"b_frames": 7, "x264-params": "b-adapt=0:b-pyramid=strict"}),
    "h264 with open groups": ("a.mkv", {"x264-params": "open-gop=1:b-adapt=0:scenecut=0"}),
    "h264 with intra refresh": ("a.ts", {"x264-params": "intra-refresh=1:keyint=10"}),
    "h264 with uneven times": ("a.mp4", {"times": UNEVEN}),
    "h264 in a transport stream": ("a.ts", {}),
    "h264 in avi": ("a.avi", {}),
    "h264 in fragments": ("a.mp4", {"muxer": {"movflags": "frag_keyframe+empty_moov"}}),
    "hevc with open groups": ("a.mp4", {"codec": "libx265", "x265-params": "log-level=none:open-gop=1:keyint=10"}),
    "mpeg-4 in avi": ("a.avi", {"codec": "mpeg4", "b_frames": 0}),
    "mpeg-4 in avi with b-frames": ("a.avi", {"codec": "mpeg4"}),
    "mpeg-1": ("a.mpg", {"codec": "mpeg1video"}),
    "vp8": ("a.webm", {"codec": "libvpx", "b_frames": None}),
    "vp9": ("a.webm", {"codec": "libvpx-vp9", "b_frames": None}),
}


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.replace(" ", "-"))
def sample(request, tmp_path_factory):
    name, options = KINDS[request.param]
    if options.get("codec", "libx264") not in av.codecs_available:
        pytest.skip(f"this FFmpeg has no {options.get('codec', 'libx264')}")
    path = make(tmp_path_factory.mktemp("video") / name, **options)
    return path, sequential(path)


def test_probe_counts_the_frames(sample):
    path, truth = sample
    assert probe(path) == VideoInfo(len(truth), HEIGHT, WIDTH)
    assert len(truth) == FRAMES


def test_each_frame_alone_is_that_of_a_full_decode(sample):
    path, truth = sample
    for number in range(FRAMES):
        assert torch.equal(read_frames(path, [number])[0], truth[number]), number


def test_many_frames_are_those_of_a_full_decode(sample):
    path, truth = sample
    generator = torch.Generator().manual_seed(0)
    asked = [list(range(FRAMES)), list(range(FRAMES))[::-1], [7, 7, 3, 49, 3], [0, 25, 49], []]
    asked += [torch.randint(FRAMES, (n,), generator=generator).tolist() for n in (2, 3, 4, 8, 16)]
    for indices in asked:
        frames = read_frames(path, indices)
        assert frames.dtype == torch.uint8
        assert frames.is_contiguous()
        assert torch.equal(frames, truth[indices])


def copy(source, target, change):
    """The packets of a video in another file, as ``change`` makes them from a number and a packet."""
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for number, packet in enumerate(p for p in old.demux(video=0) if p.size):
            for changed in change(number, packet):
                changed.stream = stream
                new.mux(changed)
    return target


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
@pytest.mark.parametrize("skipped", [5, 12, 15])
@pytest.mark.parametrize("params", ["open-gop=0", "open-gop=1:b-adapt=0:scenecut=0"])
def test_a_copy_that_starts_anywhere_has_the_frames_that_decode(tmp_path, params, skipped, suffix):
    path = make(tmp_path / "a.mkv", **{"x264-params": params})
    path = copy(path, tmp_path / f"b{suffix}", lambda number, packet: [packet] if number >= skipped else [])
    truth = sequential(path)
    assert probe(path).frames == len(truth)
    for number in range(len(truth)):
        assert torch.equal(read_frames(path, [number])[0], truth[number])


def test_hidden_frames_of_vp8_are_not_counted(tmp_path):
    def hide(number, packet):
        if number % 10 != 5:
            return [packet]
        data = bytes(packet)
        hidden = av.Packet(bytes([data[0] & ~0x10]) + data[1:])
        hidden.pts = hidden.dts = packet.pts + 1
        hidden.time_base = packet.time_base
        return [packet, hidden]

    path = copy(make(tmp_path / "a.webm", "libvpx", b_frames=None), tmp_path / "b.webm", hide)
    with av.open(str(path)) as container:
        assert sum(packet.size > 0 for packet in container.demux(video=0)) == FRAMES + 5
    truth = sequential(path)
    assert probe(path).frames == len(truth) == FRAMES
    for number in range(FRAMES):
        assert torch.equal(read_frames(path, [number])[0], truth[number])


def test_a_damaged_packet_is_named(tmp_path):
    path = make(tmp_path / "a.mp4", gop=10, sc_threshold="0")
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packet = next(packet for packet in container.demux(video=0) if packet.pts and packet.is_keyframe)
        data[packet.pos : packet.pos + packet.size] = b"\xff" * packet.size
    path.write_bytes(data)
    assert probe(path).frames == FRAMES
    assert read_frames(path, [0]).shape == (1, 3, HEIGHT, WIDTH)
    with pytest.raises(UnreadableError, match=r"a\.mp4 cannot be read: Invalid data"):
        read_frames(path, [12])


def test_the_frames_say_their_number(tmp_path):
    frames = read_frames(make(tmp_path / "a.mp4"), list(range(FRAMES))).double()
    brightness = frames.median(dim=3).values.median(dim=2).values.mean(dim=1)  # [T]
    assert ((brightness - 20) / 4).round().tolist() == list(range(FRAMES))


def test_no_more_is_decoded_than_needed(tmp_path, monkeypatch):
    path = make(tmp_path / "a.mp4", gop=10, sc_threshold="0")
    decoded = []
    decode = video._decode
    monkeypatch.setattr(video, "_decode", lambda path, needed: decoded.append(len(needed)) or decode(path, needed))
    for indices, most in [([0], 1), ([10], 1), ([39], 10), ([0, 40], 2), ([11, 12], 10)]:
        decoded.clear()
        read_frames(path, indices)
        assert len(decoded) == 1
        assert decoded[0] <= most


def test_one_frame(tmp_path):
    path = make(tmp_path / "a.mp4", frames=1)
    assert probe(path).frames == 1
    assert read_frames(path, clip_indices(1, 4)).shape == (4, 3, HEIGHT, WIDTH)


def test_threads_read_at_once(tmp_path):
    path = make(tmp_path / "a.mp4")
    truth = sequential(path)
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda n: read_frames(path, [n, (n * 7) % FRAMES]), range(FRAMES)))
    assert all(torch.equal(frames, truth[[n, (n * 7) % FRAMES]]) for n, frames in enumerate(read))


def test_files_are_closed(tmp_path):
    files = Path("/proc/self/fd")
    if not files.exists():
        pytest.skip("no /proc here")
    path, cut = make(tmp_path / "a.mp4"), make(tmp_path / "b.avi")
    cut.write_bytes(b"RIFF" + cut.read_bytes()[4:200])
    gc.collect()
    before = len(list(files.iterdir()))
    gc.disable()
    try:
        for _ in range(5):
            read_frames(path, [3])
            with pytest.raises(ValueError, match="no frame 99"):
                read_frames(path, [99])
            with pytest.raises(UnreadableError):
                probe(cut)
        assert len(list(files.iterdir())) == before
    finally:
        gc.enable()


# Broken files


def refused(path):
    for attempt in (probe, lambda path: read_frames(path, [0, FRAMES - 1])):
        with pytest.raises(UnreadableError) as caught:
            attempt(path)
        message = str(caught.value)
        assert message.startswith(f"{path} cannot be read: ")
        assert "\n" not in message
    return message


def test_what_is_no_video_is_refused(tmp_path):
    path = tmp_path / "a.mp4"
    path.touch()
    assert refused(path).endswith("it is empty")
    path.write_text("not a video")
    assert refused(path).endswith("Invalid data found when processing input")
    assert refused(tmp_path / "none.mp4").endswith("No such file or directory")
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty").endswith("the folder holds no images")


@pytest.mark.parametrize("muxer", [{}, {"movflags": "faststart"}], ids=["index last", "index first"])
def test_a_cut_file_is_refused(tmp_path, muxer):
    same: Any = {"x264-params": "mbtree=0"}  # the same bytes each time, so the cut is never between two packets
    path = make(tmp_path / "a.mp4", muxer=muxer, **same)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    refused(path)


@pytest.mark.skipif(not hasattr(av.stream.Stream, "index_entries"), reason="this PyAV does not show the index")
@pytest.mark.parametrize("left", [1, 13, FRAMES - 1])
def test_a_file_cut_between_two_packets_is_refused(tmp_path, left):
    path = make(tmp_path / "a.mp4", muxer={"movflags": "faststart"}, b_frames=0)
    with av.open(str(path)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.size]
    path.write_bytes(path.read_bytes()[: places[left]])
    assert refused(path).endswith(f"it breaks off after {left} frames")


@pytest.mark.parametrize("edit", [(0.5, 1), (1, 20)], ids=["ends early", "begins late"])
def test_frames_that_an_edit_list_leaves_out_are_not_missing(tmp_path, edit):
    path = make(tmp_path / "a.mp4", muxer={"movflags": "faststart"}, b_frames=0, gop=4)
    share, begin = edit
    data = bytearray(path.read_bytes())
    list_ = data.index(b"elst") + 12
    duration, _ = struct.unpack_from(">Ii", data, list_)
    struct.pack_into(">Ii", data, list_, int(duration * share), begin * 512)
    path.write_bytes(data)
    shown = sequential(path)
    assert 0 < len(shown) < FRAMES
    assert probe(path).frames == len(shown)


def test_a_cut_file_without_an_index_keeps_what_is_there(tmp_path):
    path = make(tmp_path / "a.mkv")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    frames = probe(path).frames
    assert 0 < frames < FRAMES
    assert torch.equal(read_frames(path, range(frames)), sequential(path)[:frames])
    with pytest.raises(ValueError, match=f"{path} has {frames} frames and no frame {frames}"):
        read_frames(path, [frames])


def test_sound_alone_is_refused(tmp_path):
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert refused(path).endswith("it has no video stream")


@pytest.mark.parametrize("index", [-1, FRAMES])
def test_an_index_out_of_range_is_refused(tmp_path, index):
    path = make(tmp_path / "a.mp4")
    with pytest.raises(ValueError, match=f"a.mp4 has {FRAMES} frames and no frame {index}"):
        read_frames(path, [0, index])


def test_read_frames_asks_a_function_which_frames_are_wanted(tmp_path):
    path = make(tmp_path / "a.mp4")
    truth, counted = sequential(path), []

    def pick(count):
        counted.append(count)
        return [count - 1, 7, 7]

    assert torch.equal(read_frames(path, pick), truth[[FRAMES - 1, 7, 7]])
    assert counted == [FRAMES]


def test_read_frames_refuses_a_frame_that_a_function_made_up(tmp_path):
    path = make(tmp_path / "a.mp4")
    with pytest.raises(ValueError, match=f"a.mp4 has {FRAMES} frames and no frame {FRAMES}"):
        read_frames(path, lambda count: [count])


# Folders of frames


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "clip"
    folder.mkdir()
    for number in range(12):
        Image.fromarray(picture(number)).save(folder / f"frame{number}.png")
    (folder / "notes.txt").write_text("no frame")
    return folder


def test_a_folder_is_read_in_the_order_of_its_numbers(folder):
    assert probe(folder) == VideoInfo(12, HEIGHT, WIDTH)
    asked = [10, 2, 2, 0]
    expected = torch.from_numpy(np.stack([picture(n) for n in asked])).permute(0, 3, 1, 2)
    assert torch.equal(read_frames(folder, asked), expected)
    with pytest.raises(ValueError, match="clip has 12 frames and no frame 12"):
        read_frames(folder, [12])


def test_read_frames_asks_a_function_about_a_folder_too(folder):
    expected = torch.from_numpy(np.stack([picture(n) for n in (11, 0)])).permute(0, 3, 1, 2)
    assert torch.equal(read_frames(folder, lambda count: [count - 1, 0]), expected)


def test_a_bad_frame_of_a_folder_is_named(folder):
    (folder / "frame3.png").write_bytes((folder / "frame3.png").read_bytes()[:60])
    Image.new("RGB", (5, 4)).save(folder / "frame4.png")
    assert read_frames(folder, [0, 5]).shape == (2, 3, HEIGHT, WIDTH)
    for number in (3, 4):
        with pytest.raises(UnreadableError, match=f"frame{number}.png cannot be read"):
            read_frames(folder, [0, number])


# Clips


def test_a_clip_is_every_other_of_64_frames():
    assert clip_indices(300, start=10) == list(range(10, 74, 2))
    assert clip_indices(64) == list(range(0, 64, 2))


def test_the_start_comes_from_the_generator():
    starts = [clip_indices(67, generator=torch.Generator().manual_seed(seed))[0] for seed in range(60)]
    assert set(starts) == {0, 1, 2, 3}
    assert starts == [clip_indices(67, generator=torch.Generator().manual_seed(seed))[0] for seed in range(60)]


def test_a_short_video_is_played_in_a_loop():
    assert clip_indices(5, length=6, stride=2) == [0, 2, 4, 1, 3, 0]
    assert clip_indices(1, length=3) == [0, 0, 0]
    assert clip_indices(10, length=3, stride=2, start=8) == [8, 0, 2]


def test_starts_of_the_test_clips_are_evenly_spread():
    assert video.spread_clip_starts(154) == list(range(0, 91, 10))
    assert video.spread_clip_starts(64) == video.spread_clip_starts(7) == [0] * 10
    assert video.spread_clip_starts(100, clips=1, length=10) == [40]
    assert video.spread_clip_starts(70)[-1] == 6


@pytest.mark.parametrize(
    "wrong", [{"frames": 0}, {"frames": 9, "length": 0}, {"frames": 9, "stride": 0}, {"frames": 9, "start": 9}]
)
def test_impossible_clips_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must be at least 1|cannot start"):
        clip_indices(**wrong)


def test_names_of_videos():
    assert all(map(is_video_file, ["a.mp4", "b/A.AVI", "c.d.webm"]))
    assert not any(map(is_video_file, ["a.jpg", "mp4", "a", "._a.mp4", "a.mp4.part"]))


def test_frames_that_are_too_large_or_too_many_are_refused(tmp_path, monkeypatch):
    path = make(tmp_path / "a.mp4")
    monkeypatch.setattr(video, "MAX_BYTES", 3 * 3 * WIDTH * HEIGHT)
    assert read_frames(path, [0, 1, 2]).shape == (3, 3, HEIGHT, WIDTH)
    with pytest.raises(UnreadableError, match="cannot be read: 4 frames of 64 x 48 pixels are too many at once"):
        read_frames(path, [0, 1, 2, 2])
    monkeypatch.setattr(video, "MAX_FRAMES", FRAMES - 1)
    with pytest.raises(UnreadableError, match=f"it has more than {FRAMES - 1} frames"):
        probe(path)
    monkeypatch.setattr(images, "MAX_PIXELS", WIDTH * HEIGHT - 1)
    with pytest.raises(UnreadableError, match="64 x 48 pixels are too many"):
        probe(path)


def test_folder_of_frames_that_are_too_many_is_refused(tmp_path, monkeypatch):
    for number in range(3):
        Image.new("RGB", (8, 4)).save(tmp_path / f"{number}.png")
    monkeypatch.setattr(video, "MAX_BYTES", 2 * 3 * 8 * 4)
    assert read_frames(tmp_path, [0, 1]).shape == (2, 3, 4, 8)
    with pytest.raises(UnreadableError, match="3 frames of 8 x 4 pixels are too many at once"):
        read_frames(tmp_path, [0, 1, 2])
