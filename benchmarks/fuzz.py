"""Thousands of broken inputs, each given to the command that reads it: never a stack trace, a crash or a hang.

python -m benchmarks.fuzz --inputs 10000 --seed 0

Input number n of a seed is always the same one: ``--only n`` tries it alone, and shows what comes of it. One process
imports everything and forks children that take some inputs each, so that a decoder that crashes ends a child alone.
Trainings that are not tiny, torch.compile, benchmarks and the web page's server stop before the part that takes long
(accepted).
"""

import argparse
import contextlib
import faulthandler
import io
import json
import logging
import os
import re
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NamedTuple

import onnx
import torch
import yaml

from cgnl.cli import COMMANDS, main
from cgnl.engine.settings import setting_names
from cgnl.models.pretrained import Network
from cgnl.text import printable
from tests.engine.conftest import register

from .fuzz_mutations import as_json, mutated_arguments, mutated_bytes, mutated_graph, mutated_text, mutated_tree
from .fuzz_seeds import Files, Seeds, make_seeds

HANG, MEMORY = 10, 2048
"""Seconds and MiB that no input may take."""
LONGEST = 2000
"""Letters of a sentence that somebody may be expected to read."""
AT_ONCE = 50
"""Inputs of one child."""
NO_MEMORY = re.compile(r"not enough memory|can(no|')t allocate|bad.?alloc|could not allocate", re.IGNORECASE)
"""What is said where a child's limit stopped a file from taking more; whoever types a number may be told so."""
DECODERS = "decoders"
"""File for what libraries in C write to stderr by themselves."""
FROM_PRETRAINED = "from_pretrained"
"""In the place of a command: what Python alone does."""
FAULTS = ("trace", "crash", "hang", "memory", "words")
RESULTS = Path(__file__).parent / "results" / "fuzz.txt"


class Input(NamedTuple):
    """Files, and the command that is to read them."""

    files: Files
    arguments: list[str]


class Outcome(NamedTuple):
    """What came of an input."""

    number: int
    kind: str
    verdict: str
    """accepted, refused, or one of FAULTS."""
    seconds: float
    mebibytes: float
    said: str


# Inputs


def picture_input(seeds: Seeds, draw: Random) -> Input:
    name = draw.choice(list(seeds.pictures))
    content = mutated_bytes(seeds.pictures[name], draw, list(seeds.pictures.values())) if draw.random() < 0.97 else None
    files = {name: seeds.pictures[name] if content is None else content}
    how = draw.random()
    if how < 0.02:
        return Input(files, ["explain", f"{seeds.home}/tiny.ckpt", name, "-o", "out.png"])
    if how < 0.2:
        good = {"data/a/1.png": seeds.pictures["a.png"], "data/b/1.png": seeds.pictures["a.png"]}
        return Input(good | {f"data/a/{name}": files[name]}, ["data", "check", "data"])
    return Input(files, ["predict", f"{seeds.home}/tiny.ckpt", name])


def clip_input(seeds: Seeds, draw: Random) -> Input:
    name = draw.choice(list(seeds.clips))
    files = {name: mutated_bytes(seeds.clips[name], draw, list(seeds.clips.values()))}
    if draw.random() < 0.2:
        good = {"data/a/1.mp4": seeds.clips["a.mp4"], "data/b/1.mp4": seeds.clips["a.mp4"]}
        return Input(good | {f"data/a/{name}": files[name]}, ["data", "check", "data"])
    return Input(files, ["predict", f"{seeds.home}/tiny_video.ckpt", name])


def objects_input(seeds: Seeds, draw: Random) -> Input:
    files = dict(seeds.datasets["coco"])
    name = "annotations/instances_train2017.json"
    if draw.random() < 0.25:
        files[name] = mutated_bytes(files[name], draw)
    else:
        files[name] = as_json(mutated_tree(json.loads(files[name]), draw), draw)
    return Input(
        {f"data/{path}": content for path, content in files.items()}, ["data", "check", "data", "--dataset=coco"]
    )


def list_input(seeds: Seeds, draw: Random) -> Input:
    lists = {name: [f for f in files if f.endswith((".txt", ".csv"))] for name, files in seeds.datasets.items()}
    layout = draw.choice([name for name in lists if lists[name]])
    files = dict(seeds.datasets[layout])
    name = draw.choice(lists[layout])
    files[name] = mutated_text(files[name], draw)
    files = {f"data/{path}": content for path, content in files.items()}
    return Input(files, ["data", "check", "data", f"dataset={layout}"])


YAML_TRICKS = (
    "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{n}: &{n} [{', '.join(['*' + p] * 9)}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=False)),
    "model: &m\n  options: *m\n",
    "[" * 2000,
    "{a: " * 2000,
    "!!python/object/apply:os.system ['touch harmed']",
    "model: !!python/name:os.system\n",
    "optim: {lr: 2001-99-99}\n",
    f"seed: {'1' * 5000}\n",
    "? [a, b]\n: 1\n",
    "extends: ../../../etc/passwd\n",
    "extends: [parts]\n",
    "extends: recipe\n",
    "--- 1\n--- 2\n",
    "%YAML 9.9\n---\na: 1\n",
    "<<: [{a: 1}, 3]\n",
    "",
)


def recipe_input(seeds: Seeds, draw: Random) -> Input:
    text = seeds.recipes[draw.choice(list(seeds.recipes))]
    how = draw.random()
    if how < 0.1:
        text = draw.choice(YAML_TRICKS).encode() + (text if draw.random() < 0.3 else b"")
    elif how < 0.3:
        text = mutated_bytes(text, draw)
    else:
        config = yaml.safe_load(seeds.run["config.yaml"] if draw.random() < 0.5 else text)
        text = yaml.safe_dump(mutated_tree(config, draw)).encode(errors="surrogatepass")
    small = [
        "model.name=tiny",
        "optim.epochs=1",
        "runs=runs",
        f"data.root={seeds.home}/pictures",
        "data.dataset=folder",
    ]
    small += ["data.samples=24", "model.after=[conv1]", "model.options.groups=2", "data.workers=0"]
    words = draw.sample(small, draw.randrange(len(small) + 1)) if draw.random() < 0.8 else small
    if draw.random() < 0.2:
        words = mutated_arguments(words, setting_names(), draw)
    return Input({"recipe.yaml": text}, ["train", "recipe.yaml", *words])


def checkpoint_input(seeds: Seeds, draw: Random) -> Input:
    kind, picture = draw.choice((("tiny", "a.png"), ("tiny_video", "a.mp4")))
    checkpoint = seeds.checkpoints[kind]
    if draw.random() < 0.4:
        content = mutated_bytes(saved(checkpoint), draw)
    else:
        about = checkpoint["cgnl"]
        told = mutated_tree(about["config"], draw)
        about = about | {"config": told} if draw.random() < 0.6 else mutated_tree(about, draw)
        state = mutated_state(checkpoint["state_dict"], draw) if draw.random() < 0.3 else checkpoint["state_dict"]
        content = saved({"cgnl": about, "state_dict": state} if draw.random() < 0.95 else about)
    command = draw.choice(["predict"] * 8 + ["explain", "eval"])
    more = [] if command == "eval" else [f"{seeds.home}/{picture}"]
    return Input({"best.ckpt": content}, [command, "best.ckpt", *more])


def weights_input(seeds: Seeds, draw: Random) -> Input:
    from safetensors.torch import save

    state = mutated_state(seeds.weights, draw) if draw.random() < 0.5 else seeds.weights
    name = draw.choice(("weights.pth", "weights.safetensors"))
    if name == "weights.pth":
        content = saved(state)
    else:
        content = save({str(n): v.clone() for n, v in state.items() if is_plain(v)})
    content = mutated_bytes(content, draw) if state is seeds.weights else content
    words = [f"model.weights={name}", f"data.root={seeds.home}/pictures", "model.name=tiny", "model.block=null"]
    return Input({name: content}, ["train", *words, "data.size=32", "data.test_short_side=32"])


def mutated_state(state: dict[str, Any], draw: Random) -> dict[Any, Any]:
    """Tensors by name, with a wrong one."""
    name, result = draw.choice(list(state)), dict[Any, Any](state)
    change = draw.randrange(8)
    if change == 0:
        del result[name]
    elif change == 1:
        result[draw.choice((7, None, "x", ("a", 1)))] = result[name]
    elif change == 2:
        result[name] = draw.choice((None, 3, "x", [], {}, torch.tensor(3), torch.empty(0)))
    elif change == 3:
        result[name] = torch.zeros(1).expand(10**6, 10**6)
    elif change == 4:
        result[name] = result[name].to(draw.choice((torch.complex64, torch.float16, torch.bool, torch.int64)))
    elif change == 5:
        result[name] = torch.full_like(result[name], 255).float() * float("nan")
    elif change == 6:
        result[name] = torch.eye(3).to_sparse()
    else:
        result[name] = torch.empty(result[name].shape, device="meta")
    return result


def is_plain(value: Any) -> bool:
    """Whether it is a tensor that safetensors can write."""
    dense = isinstance(value, torch.Tensor) and value.layout == torch.strided and value.device.type == "cpu"
    return dense and value.is_contiguous()


def saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def run_input(seeds: Seeds, draw: Random) -> Input:
    files = dict(seeds.run)
    name = draw.choice([n for n in files if not n.endswith((".ckpt", ".txt"))])
    if draw.random() < 0.3:
        files[name] = mutated_bytes(files[name], draw)
    elif name.endswith(".json"):
        files[name] = as_json(mutated_tree(json.loads(files[name]), draw), draw)
    elif name.endswith(".yaml"):
        files[name] = yaml.safe_dump(mutated_tree(yaml.safe_load(files[name]), draw)).encode(errors="surrogatepass")
    else:
        files[name] = mutated_text(files[name], draw)
    if draw.random() < 0.1:
        del files[draw.choice(list(files))]
    return Input({f"run/{path}": content for path, content in files.items()}, ["report", "run"])


def argument_input(seeds: Seeds, draw: Random) -> Input:
    here = str(seeds.home)
    lines = {
        "train": ["parts", "model.name=tiny", "optim.lr=0.1", "--data.samples", "16", "name=x"],
        "eval": [f"{here}/tiny.ckpt", "--json", "data.root=x", "accelerator=cpu"],
        "predict": [f"{here}/tiny.ckpt", f"{here}/a.png", "--top", "2", "--json"],
        "explain": [f"{here}/tiny.ckpt", f"{here}/a.png", "--at", "5,5", "-o", "a.png", "group=1"],
        "diagnose": [f"{here}/tiny.ckpt", f"{here}/pictures", "accelerator=cpu"],
        "report": [f"{here}/nowhere", f"{here}/tiny.ckpt", "-o", "x.html"],
        "export": [f"{here}/tiny.ckpt", "out.safetensors"],
        "app": [f"{here}/tiny.ckpt", "--port", "9999", "--host=127.0.0.1"],
        "data": ["check", f"{here}/pictures", "--dataset", "folder", "min_frames=3", "count=3"],
        "new": [f"{here}/pictures", "-o", "new.yaml"],
        "models": ["resnet18", "block=cgnl", "--size", "64", "--json"],
        "reproduce": ["cub-kernels", "--scale", "embedded", "--dry", "seeds=2", "rows=*"],
        "bench": ["block", "batch=1", "channels=16", "size=4", "kernel=rbf:order=2", "rows=reference"],
    }
    command = draw.choice(list(COMMANDS))
    options = [f.split("=")[0].lstrip("-") for line in lines.values() for f in line if "=" in f or f.startswith("--")]
    arguments = mutated_arguments(lines[command], [*options, *setting_names()], draw)
    if draw.random() < 0.05:
        return Input({}, mutated_arguments([command, *arguments], options, draw))
    return Input({}, [command, *arguments])


def export_input(seeds: Seeds, draw: Random) -> Input:
    """An ONNX file, a folder of Hugging Face, or a checkpoint that is to become one of these."""
    name, sample = draw.choice((("small", "a.png"), ("small_video", "a.mp4")))
    files, how = dict(seeds.exports[name]), draw.random()
    if how < 0.6:
        files["model.onnx"] = mutated_onnx(files["model.onnx"], draw)
        return Input({"model.onnx": files["model.onnx"]}, ["predict", "model.onnx", f"{seeds.home}/{sample}"])
    if how < 0.9:
        path = draw.choice(("folder/config.json", "folder/model.safetensors"))
        if path == "folder/config.json" and draw.random() < 0.7:
            files[path] = as_json(mutated_tree(json.loads(files[path]), draw), draw)
        else:
            files[path] = mutated_bytes(files[path], draw)
        return Input(files, [FROM_PRETRAINED, "folder"])
    checkpoint = torch.load(io.BytesIO(files["best.ckpt"]), weights_only=True)
    content = saved(checkpoint | {"cgnl": mutated_tree(checkpoint["cgnl"], draw)})
    return Input({"best.ckpt": content}, ["export", "best.ckpt", draw.choice(("out.safetensors", "out/"))])


def mutated_onnx(content: bytes, draw: Random) -> bytes:
    if draw.random() < 0.4:
        return mutated_bytes(content, draw)
    model = onnx.load_model_from_string(content)
    if draw.random() < 0.4:
        card = model.metadata_props[0]
        card.value = as_json(mutated_tree(json.loads(card.value), draw), draw).decode(errors="replace")
    else:
        mutated_graph(model, draw)
    return model.SerializeToString()


def training_input(seeds: Seeds, draw: Random) -> Input:
    """A real training, on pictures some of which are broken."""
    files = {f"data/{label}/{n}.png": seeds.pictures["a.png"] for label in "ab" for n in range(4)}
    for _ in range(draw.randrange(1, 4)):
        name = draw.choice(list(seeds.pictures))
        files[f"data/{draw.choice('ab')}/{name}"] = mutated_bytes(seeds.pictures[name], draw)
    words = ["data.root=data", "model.name=tiny", "optim.epochs=1", "optim.warmup_epochs=0", "optim.batch_size=4"]
    words += ["model.after=[conv1]", "model.options.groups=2", "data.size=32", "data.test_short_side=32", "runs=runs"]
    return Input(files, ["train", *words, "data.workers=0", "data.samples=24", "accelerator=cpu"])


KINDS: dict[str, tuple[Callable[[Seeds, Random], Input], int]] = {
    "pictures": (picture_input, 30),
    "clips": (clip_input, 14),
    "objects": (objects_input, 9),
    "lists": (list_input, 9),
    "recipes": (recipe_input, 10),
    "checkpoints": (checkpoint_input, 8),
    "weights": (weights_input, 3),
    "runs": (run_input, 3),
    "arguments": (argument_input, 7),
    "exports": (export_input, 6),
    "trainings": (training_input, 1),
}
"""Name -> what makes an input, and how many of a hundred there are."""


def make_input(seeds: Seeds, seed: int, number: int) -> tuple[str, Input]:
    """Input ``number`` of a seed, and its kind."""
    draw = Random(f"{seed} {number}")
    there = [kind for kind in KINDS if kind != "exports" or seeds.exports]
    kind = draw.choices(there, [KINDS[kind][1] for kind in there])[0]
    return kind, KINDS[kind][0](seeds, draw)


# Trying one


def without_long_work() -> None:
    """Let commands stop where the work begins that takes long by its nature."""
    from cgnl.bench import measure
    from cgnl.commands import models, reproduce
    from cgnl.engine import train
    from cgnl.experiments import work
    from cgnl.report import app

    def stop(*_: Any, **__: Any) -> Any:
        raise SystemExit(0)  # what was given is accepted

    def begun(config: Any, *_: Any) -> None:
        tiny = str(config.model.name).startswith("tiny") and not config.compile
        small = tiny and config.optim.epochs == config.world == 1
        if not (small and (config.data.workers or 0) < 2 and config.data.samples < 100):
            stop()

    for module, name, other in (
        (train, "log_setup", begun),
        (measure, "measure_roofline", stop),
        (work, "work", stop),
        (reproduce, "_measure", stop),
        (models, "network_names", lambda: ["resnet18", "c2d_resnet18"]),
        (app, "build", stop),
    ):
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, other)


def attempt(number: int, kind: str, given: Input) -> Outcome:
    """Give an input to its command, in this process and in an empty folder."""
    for path, content in given.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)
    os.environ.pop("CGNL_RUN_FOLDER", None)
    Path("/proc/self/clear_refs").write_text("5")  # the highest use of memory begins anew
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace"))
    trace, start = "", time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = (
                from_pretrained(*given.arguments[1:])
                if given.arguments[0] == FROM_PRETRAINED
                else main(given.arguments)
            )
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            status, trace = 1, traceback.format_exc()
    seconds = time.perf_counter() - start
    peak = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    err.flush()
    said = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    mebibytes = int(peak) / 1024
    verdict = "accepted" if status == 0 else "refused"
    if trace or "Traceback" in said:
        verdict, said = "trace", trace or said
    elif mebibytes > MEMORY or (kind != "arguments" and NO_MEMORY.search(said)):
        verdict = "memory"
    elif seconds > HANG:
        verdict = "hang"
    elif not well_said(said, status):
        verdict = "words"
    return Outcome(number, kind, verdict, seconds, mebibytes, said)


def from_pretrained(folder: str) -> int:
    try:
        Network.from_pretrained(folder)
    except (ValueError, OSError) as error:
        print(f"cgnl: {printable(error)}", file=sys.stderr)
        return 2
    return 0


def well_said(said: str, status: int) -> bool:
    """Whether what went to stderr is sentences of ours, and at least one where the input was refused."""
    lines = said.splitlines()
    ours = all(line.startswith("cgnl") and len(line) <= LONGEST and line.isprintable() for line in lines)
    return ours and (status == 0 or (status == 2 and bool(lines)) or status == 130)


# Many, in children


class Child(NamedTuple):
    pid: int
    pipe: BinaryIO
    numbers: deque[int]


def start(numbers: Sequence[int], seeds: Seeds, seed: int, traces: Path) -> Child:
    """A child that tries these inputs, one after the other."""
    read, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return Child(pid, os.fdopen(read, "rb"), deque(numbers))
    status = 1
    try:
        os.close(read)
        os.dup2(os.open(traces / DECODERS, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = used + 3 * MEMORY * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))  # others work on this machine too
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work(numbers, seeds, seed, traces, os.fdopen(write_end, "w"))
        status = 0
    finally:
        os._exit(status)


def work(numbers: Iterable[int], seeds: Seeds, seed: int, traces: Path, pipe: Any) -> None:
    with (traces / str(os.getpid())).open("w") as file:
        faulthandler.enable(file)
        for number in numbers:
            kind, given = make_input(seeds, seed, number)
            folder = tempfile.mkdtemp()
            os.chdir(folder)
            faulthandler.dump_traceback_later(HANG + 1, exit=True, file=file)
            outcome = attempt(number, kind, given)
            faulthandler.cancel_dump_traceback_later()
            os.chdir("/")
            shutil.rmtree(folder, ignore_errors=True)
            print(json.dumps(outcome), file=pipe, flush=True)


def outcomes(numbers: Iterable[int], seeds: Seeds, seed: int, traces: Path, jobs: int = 1) -> Iterable[Outcome]:
    """What comes of these inputs. An input that ends its child is a crash or a hang, and the rest gets another."""
    waiting = list(numbers)
    batches = deque(waiting[at : at + AT_ONCE] for at in range(0, len(waiting), AT_ONCE))
    chosen = selectors.DefaultSelector()
    running = 0
    while batches or running:
        while batches and running < jobs:
            child = start(batches.popleft(), seeds, seed, traces)
            chosen.register(child.pipe, selectors.EVENT_READ, child)
            running += 1
        for key, _ in chosen.select():
            child = key.data
            if line := child.pipe.readline():
                child.numbers.popleft()
                yield Outcome(*json.loads(line))
                continue
            chosen.unregister(child.pipe)
            child.pipe.close()
            running -= 1
            status = os.waitpid(child.pid, 0)[1]
            if child.numbers:
                number = child.numbers.popleft()
                trace = (traces / str(child.pid)).read_text()
                verdict = "crash" if os.WIFSIGNALED(status) else "hang" if "Timeout" in trace else "trace"
                kind = make_input(seeds, seed, number)[0]
                yield Outcome(number, kind, verdict, HANG if verdict == "hang" else 0, 0, trace)
                if child.numbers:
                    batches.append(list(child.numbers))


def keep(outcome: Outcome, given: Input, folder: Path) -> None:
    """Save an input that failed, with the command and with what was said."""
    place = folder / f"{outcome.verdict}-{outcome.kind}-{outcome.number}"
    for path, content in given.files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    place.mkdir(parents=True, exist_ok=True)
    (place / "command.json").write_text(json.dumps(given.arguments))
    (place / "said.txt").write_text(outcome.said, errors="backslashreplace")


def figures(found: Sequence[Outcome], seed: int, minutes: float, of_decoders: int) -> str:
    """The table."""
    head = f"{'kind':12} {'inputs':>7} {'accepted':>9} {'refused':>8}  " + " ".join(f"{f:>7}" for f in FAULTS)
    lines = [f"{head} {'longest s':>10} {'peak MiB':>9}"]
    for kind in (*KINDS, "all"):
        mine = [outcome for outcome in found if kind in (outcome.kind, "all")]
        if not mine:
            continue
        count = Counter(outcome.verdict for outcome in mine)
        line = f"{kind:12} {len(mine):7,} {count['accepted']:9,} {count['refused']:8,}  "
        line += " ".join(f"{count[fault]:7}" for fault in FAULTS)
        lines.append(f"{line} {max(o.seconds for o in mine):10.2f} {max(o.mebibytes for o in mine):9,.0f}")
    words = f"seed {seed}, {minutes:.1f} minutes, torch {torch.__version__}, Python {sys.version.split()[0]}"
    notes = "trace: stack traces. words: refused in other words than one sentence. peak: with everything imported."
    more = f"Decoders in C wrote {of_decoders} lines of their own beside these sentences."
    return "\n".join([*lines, "", words, notes, more]) + "\n"


@contextlib.contextmanager
def prepared(exports: bool) -> Any:
    """Good inputs, and a process that is ready to fork."""
    torch.set_num_threads(1)
    logging.getLogger("cgnl").propagate = False
    register()
    with tempfile.TemporaryDirectory(prefix="cgnl-fuzz-") as home:
        seeds = make_seeds(Path(home), exports)
        without_long_work()
        yield seeds


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--without-exports", action="store_true", help="spare the ten seconds that an export takes")
    parser.add_argument("--only", type=int, help="the number of one input, to be tried in this process")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="folder for inputs that fail")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    with prepared(not args.without_exports) as seeds, tempfile.TemporaryDirectory() as traces:
        if args.only is not None:
            kind, given = make_input(seeds, args.seed, args.only)
            os.chdir(tempfile.mkdtemp())
            print(kind, given.arguments, Path.cwd())
            print(attempt(args.only, kind, given))
            return 0
        begin, found = time.perf_counter(), []
        for outcome in outcomes(range(args.inputs), seeds, args.seed, Path(traces), args.jobs):
            found.append(outcome)
            if outcome.verdict in FAULTS:
                keep(outcome, make_input(seeds, args.seed, outcome.number)[1], args.keep)
                last = (outcome.said.strip() or "?").splitlines()[-1][:200]
                print(f"{outcome.verdict} of {outcome.kind}, --only {outcome.number}: {last}", flush=True)
        minutes = (time.perf_counter() - begin) / 60
        text = figures(found, args.seed, minutes, len((Path(traces) / DECODERS).read_bytes().splitlines()))
        print(text)
        if args.inputs >= 1000:
            args.output.write_text(text)
    return int(any(outcome.verdict in FAULTS for outcome in found))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(run())
