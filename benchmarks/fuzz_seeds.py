"""Good inputs, small and made on the fly, that ``fuzz.py`` makes bad ones of."""

import io
import json
import struct
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from PIL import Image

from cgnl.commands.export import export
from cgnl.commands.report import report
from cgnl.engine.checkpoint import write
from cgnl.engine.config import load, recipes, to_dict
from cgnl.engine.network import build_network
from cgnl.engine.train import train
from cgnl.models import NETWORKS
from tests.engine.conftest import PICTURES, SETTINGS, VIDEOS
from tests.export.conftest import SMALL

from .fuzz_bombs import bombs

Files = dict[str, bytes]
"""Path -> content."""
CLASSES = ["a", "b", "c"]
HEADER = "label,youtube_id,time_start,time_end,split,is_cc"


@dataclass(frozen=True)
class Seeds:
    """All good inputs, in memory; what is not changed is in files as well, in ``home``."""

    home: Path
    pictures: Files
    clips: Files
    datasets: dict[str, Files]
    recipes: Files
    checkpoints: dict[str, dict[str, Any]]
    weights: dict[str, torch.Tensor]
    run: Files
    exports: dict[str, Files]
    """Network -> what cgnl export makes of it."""


def make_seeds(home: Path, exports: bool = True) -> Seeds:
    """Draw, encode and train everything; ``exports`` take the longest to make."""
    NETWORKS.update(SMALL)
    pictures, clips = make_pictures() | bombs(), make_clips(home)
    (home / "a.png").write_bytes(pictures["a.png"])
    (home / "a.mp4").write_bytes(clips["a.mp4"])
    checkpoints = {name: make_checkpoint(name) for name in ("tiny", "tiny_video")}
    for name, checkpoint in checkpoints.items():
        write(checkpoint, home / f"{name}.ckpt")
    weights = checkpoints["tiny"]["state_dict"]
    weights = {name.removeprefix("network."): value for name, value in weights.items() if "cgnl" not in name}
    for label in ("a", "b"):
        (home / "pictures" / label).mkdir(parents=True)
        for number in range(4):
            (home / "pictures" / label / f"{number}.png").write_bytes(pictures["a.png"])
    texts = {name: (Path(str(recipe_folder())) / f"{name}.yaml").read_bytes() for name in recipes()}
    with ProcessPoolExecutor(1, get_context("fork")) as process:  # autograd's threads would not survive a fork
        made = process.map(make_exports, SMALL, [home] * len(SMALL)) if exports else ()
        exported = dict(zip(SMALL, made, strict=exports))
    datasets = make_datasets(pictures, clips)
    return Seeds(home, pictures, clips, datasets, texts, checkpoints, weights, make_run(home), exported)


def recipe_folder() -> Any:
    from importlib import resources

    return resources.files("cgnl") / "recipes"


def make_pictures() -> Files:
    """One of each format and mode that people have."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    pixels[8:24, 8:24] = (250, 20, 20)
    image, files = Image.fromarray(pixels), {}

    def add(name: str, picture: Any = image, **options: Any) -> None:
        file = io.BytesIO()
        picture.save(file, **options)
        files[name] = file.getvalue()

    exif = Image.Exif()
    exif[0x0112] = 6
    add("a.png", format="png")
    add("palette.png", image.quantize(16), format="png", transparency=3)
    add("deep.png", Image.fromarray(pixels[..., 0].astype(np.uint16) * 200), format="png")
    add("interlaced.png", image.convert("RGBA"), format="png")
    add("base.jpg", format="jpeg", exif=exif)
    add("progressive.jpg", format="jpeg", progressive=True)
    add("grey.jpg", image.convert("L"), format="jpeg")
    add("cmyk.jpg", image.convert("CMYK"), format="jpeg")
    add("a.gif", format="gif")
    add("moving.gif", format="gif", save_all=True, append_images=[image.rotate(90), image.rotate(180)])
    add("moving.png", format="png", save_all=True, append_images=[image.rotate(90)])
    add("a.bmp", format="bmp")
    add("a.webp", format="webp")
    add("lossless.webp", image.convert("RGBA"), format="webp", lossless=True)
    add("moving.webp", format="webp", save_all=True, append_images=[image.rotate(90)])
    add("a.tif", format="tiff")
    for packing in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
        add(f"{packing}.tif", format="tiff", compression=packing)
    add("float.tif", image.convert("F"), format="tiff")
    add("a.ppm", format="ppm")
    add("a.pgm", image.convert("L"), format="ppm")
    return files


def make_clips(home: Path) -> Files:
    """Twelve frames in the containers and codecs that people have."""
    clips = {}
    kinds = {"a.mp4": "mpeg4", "h264.mp4": "libx264", "a.avi": "mpeg4", "jpeg.avi": "mjpeg", "a.mkv": "libx264"}
    kinds |= {"a.webm": "libvpx", "a.mpg": "mpeg1video", "a.mov": "mpeg4", "a.ts": "mpeg2video", "gif.mp4": "gif"}
    for name, codec in kinds.items():
        path = home / name
        with av.open(str(path), "w", format="gif" if codec == "gif" else None) as container:
            stream: Any = container.add_stream(codec, rate=25)
            formats = {"mjpeg": "yuvj420p", "gif": "rgb8"}
            stream.width, stream.height, stream.pix_fmt = 48, 32, formats.get(codec, "yuv420p")
            for number in range(12):
                picture = np.full((32, 48, 3), 20 * number, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode(None))
        clips[name] = path.read_bytes()
        path.unlink()
    side, many = struct.pack(">HH", 0xFFFF, 0xFFFF), struct.pack(">I", 10**9)
    plain, size = clips["a.mp4"], struct.pack(">HH", 48, 32)
    clips["bomb.mp4"] = plain.replace(size, side)
    table = plain.index(b"stts") + 4
    clips["frames.mp4"] = plain[: table + 8] + many + plain[table + 12 :]
    sizes = plain.index(b"stsz") + 4
    clips["sizes.mp4"] = plain[: sizes + 4] + struct.pack(">I", 1) + many + plain[sizes + 12 :]
    raw = clips["jpeg.avi"]
    clips["bomb.avi"] = raw.replace(struct.pack("<II", 48, 32), struct.pack("<II", 100_000, 100_000))
    return clips


def make_datasets(pictures: Files, clips: Files) -> dict[str, Files]:
    """Each official layout, with two classes."""
    picture, clip = pictures["a.png"], clips["a.mp4"]
    square = [[2.0, 2.0, 20.0, 2.0, 20.0, 20.0, 2.0, 20.0]]
    runs = {"size": [40, 48], "counts": [100, 20, 1800]}
    things = [
        {"id": n, "image_id": n % 2, "category_id": 3 + n % 2, "bbox": [2, 2, 18, 18], "area": 324.0, "iscrowd": 0}
        | {"segmentation": square if n < 3 else runs}
        for n in range(4)
    ]
    coco = {
        "images": [{"id": n, "file_name": f"{n}.png", "height": 40, "width": 48} for n in range(2)],
        "annotations": things,
        "categories": [{"id": 3, "name": "cat"}, {"id": 4, "name": "dog"}],
    }
    found: dict[str, dict[str, bytes | str]] = {
        "coco": {
            "annotations/instances_train2017.json": json.dumps(coco),
            **{f"train2017/{n}.png": picture for n in range(2)},
        },
        "cub": {
            "images.txt": "1 a/1.jpg\n2 b/2.jpg\n3 a/3.jpg\n4 b/4.jpg\n",
            "classes.txt": "1 a\n2 b\n",
            "image_class_labels.txt": "1 1\n2 2\n3 1\n4 2\n",
            "train_test_split.txt": "1 1\n2 1\n3 0\n4 0\n",
            **{f"images/{name}": picture for name in ("a/1.jpg", "b/2.jpg", "a/3.jpg", "b/4.jpg")},
        },
        "pets": {
            "annotations/trainval.txt": "# Image CLASS-ID SPECIES BREED\na_1 1 1 1\nb_1 2 2 1\n",
            "annotations/test.txt": "a_2 1 1 1\nb_2 2 2 1\n",
            **{f"images/{name}.jpg": picture for name in ("a_1", "b_1", "a_2", "b_2")},
        },
        "ucf101": {
            "ucfTrainTestlist/classInd.txt": "1 Run\n2 Jump\n",
            "ucfTrainTestlist/trainlist01.txt": "Run/v_1.avi 1\nJump/v_1.avi 2\n",
            "ucfTrainTestlist/testlist01.txt": "Run/v_2.avi\nJump/v_2.avi\n",
            **{f"UCF-101/{name}/v_{n}.avi": clip for name in ("Run", "Jump") for n in (1, 2)},
        },
        "kinetics400": {
            "train.csv": f"{HEADER}\nrun,id1,1,11,train,0\njump,id2,2,12,train,0\n",
            "val.csv": f"{HEADER}\nrun,id3,1,11,val,0\njump,id4,2,12,val,0\n",
            "train/run/id1_000001_000011.mp4": clip,
            "train/jump/id2_000002_000012.mp4": clip,
            "val/run/id3_000001_000011.mp4": clip,
            "val/jump/id4_000002_000012.mp4": clip,
        },
        "lsa64": {f"all/{name}_001.mp4": clip for name in ("001_001", "002_001", "001_009", "002_010")},
        "imagenet": {
            "LOC_val_solution.csv": "ImageId,PredictionString\nv1,n01 1 2 3 4\nv2,n02 1 2 3 4\n",
            **{f"train/{name}/{name}_1.JPEG": picture for name in ("n01", "n02")},
            **{f"val/{name}.JPEG": picture for name in ("v1", "v2")},
        },
    }
    lists = {"train_ytid_list.txt": "id1\nid2\n", "val_ytid_list.txt": "id3\nid4\n"}
    found["mini_kinetics200"] = found["kinetics400"] | lists
    return {
        name: {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        for name, files in found.items()
    }


def make_checkpoint(name: str) -> dict[str, Any]:
    """What a checkpoint of a network with random weights holds."""
    settings = VIDEOS if name.endswith("video") else PICTURES
    given = {key.replace("__", "."): value for key, value in settings.items()}
    given |= {"data.dataset": "folder", "data.root": "gone", "model.name": name, "model.options": {"groups": 2}}
    config = load(None, given | {"model.after": ["conv1"], "model.block": "cgnl"})
    torch.manual_seed(0)
    network = build_network(config.model, len(CLASSES), load=False)
    kind = "videos" if name.endswith("video") else "images"
    about = {"config": to_dict(config), "classes": CLASSES, "kind": kind, "results": {}, "problems": []}
    return {"state_dict": {f"network.{n}": v for n, v in network.state_dict().items()}, "cgnl": about}


def make_exports(name: str, home: Path) -> Files:
    """A network as an ONNX file and as a folder of Hugging Face."""
    place = home / name
    place.mkdir()
    write(make_checkpoint(name), place / "best.ckpt")
    for target in ("model.onnx", "folder/"):
        with redirect_stdout(None):
            export(str(place / "best.ckpt"), f"{place}/{target}")
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def make_run(home: Path) -> Files:
    """The folder of a run that has ended."""
    config = load("parts", {**SETTINGS, "runs": str(home), "name": "run"})
    folder = train(config, silent=True).folder
    report(str(folder))  # so that what it needs is imported
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".html" and path.is_file()}
