import copy
import math
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import cgnl
from cgnl.engine.checkpoint import read
from cgnl.models import LoadReport, create_model, load_reference_checkpoint, load_weights
from cgnl.models.weights import read_state_dict
from cgnl.surgery import inserted
from tests.conftest import relative_error

State = dict[str, Tensor]


class Tiny(nn.Module):
    """The names of a ResNet, and little else."""

    def __init__(self, classes: int = 3, residual_blocks: int = 3, ndim: int = 2):
        super().__init__()
        conv, norm = ((nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))[ndim - 2]
        self.conv1 = conv(3, 16, 3, bias=False)
        self.bn1 = norm(16)
        self.layer3 = nn.Sequential(*(conv(16, 16, 1, bias=False) for _ in range(residual_blocks)))
        self.fc = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer3(self.bn1(self.conv1(x))).flatten(2).mean(2))


def with_block(block: str = "cgnl", after: str = "layer3.1", **options) -> nn.Module:
    return cgnl.insert(Tiny(), block, after, **options)


def differing(model: nn.Module, state: State) -> list[str]:
    """Entries of the model that are not those of ``state``."""
    ours = model.state_dict()
    return [name for name in ours if name not in state or not torch.equal(ours[name], state[name])]


def fresh_values(model: nn.Module) -> State:
    """The model's names with other numbers."""
    return {n: torch.randn_like(v) if v.is_floating_point() else v + 3 for n, v in model.state_dict().items()}


def as_torch_file(state: State, path: Path) -> None:
    torch.save(state, path)


def as_old_torch_file(state: State, path: Path) -> None:
    torch.save(state, path, _use_new_zipfile_serialization=False)


def as_nested_file(state: State, path: Path) -> None:
    torch.save({"epoch": 3, "state_dict": state, "best_prec1": torch.tensor(87.5)}, path)


def as_data_parallel_file(state: State, path: Path) -> None:
    torch.save({f"module.{name}": value for name, value in state.items()}, path)


def as_compiled_file(state: State, path: Path) -> None:
    torch.save({"model": {f"module._orig_mod.{name}": value for name, value in state.items()}}, path)


def as_averaged_file(state: State, path: Path) -> None:
    averaged = {f"module.{name}": value for name, value in state.items()}
    torch.save({"model_ema": {"n_averaged": torch.tensor(3), **averaged}, "epoch": 3}, path)


def as_child_file(state: State, path: Path) -> None:
    torch.save({"state_dict": {f"model.{name}": value for name, value in state.items()}}, path)


def as_child_of_data_parallel_file(state: State, path: Path) -> None:
    torch.save({"state_dict_ema": {f"model.module.{name}": value for name, value in state.items()}}, path)


def as_a_checkpoint_of_a_run(state: State, path: Path) -> None:
    torch.save({"state_dict": {f"network.{name}": value for name, value in state.items()}, "cgnl": {}}, path)


@pytest.mark.parametrize(
    ("write", "suffix"),
    [
        (as_a_checkpoint_of_a_run, ".ckpt"),
        (as_torch_file, ".pt"),
        (as_old_torch_file, ".pth"),
        (as_nested_file, ".pth.tar"),
        (as_data_parallel_file, ".pt"),
        (as_compiled_file, ".pt"),
        (as_averaged_file, ".pth"),
        (as_child_file, ".ckpt"),
        (as_child_of_data_parallel_file, ".pth"),
        (save_file, ".safetensors"),
    ],
)
@pytest.mark.parametrize("kind", [Path, str])
def test_load_weights_reads(write, suffix, kind, tmp_path):
    model, path = with_block(), tmp_path / f"weights{suffix}"
    state = fresh_values(model)
    write(state, path)
    report = load_weights(model, kind(path))
    assert (set(report.loaded), report.new, report.ignored) == (set(state), (), ())
    assert differing(model, state) == []


def test_load_weights_reports_a_whole_new_block():
    model, plain = with_block(norm="group"), fresh_values(Tiny())
    report = load_weights(model, plain)
    new = tuple(f"layer3.1_cgnl.{name}" for name in inserted(model)["layer3.1_cgnl"].state_dict())
    assert (report.loaded, report.new, report.ignored) == (tuple(plain), new, ())
    assert differing(model, plain) == list(new)


def test_load_weights_ignores_a_classifier_for_another_number_of_classes():
    model, other = Tiny(classes=3), fresh_values(Tiny(classes=5))
    report = load_weights(model, other)
    assert report.new == ("fc.weight", "fc.bias")
    assert report.ignored == ("fc.bias", "fc.weight")
    assert report.loaded == tuple(name for name in other if not name.startswith("fc"))
    assert differing(model, other) == ["fc.weight", "fc.bias"]


def test_load_report_counts_and_names():
    text = str(LoadReport(("a", "b"), ("c",), ("d",)))
    assert text.splitlines() == ["2 entries loaded, 1 new, 1 ignored", "  new: c", "  ignored: d"]


def test_load_weights_accepts_files_from_before_num_batches_tracked():
    model = Tiny()
    state = fresh_values(model)
    del state["bn1.num_batches_tracked"]
    assert load_weights(model, state).new == ("bn1.num_batches_tracked",)


def test_load_weights_inflates_image_weights_for_video():
    image, video = fresh_values(with_block()), cgnl.insert(Tiny(ndim=3), "cgnl", "layer3.1")
    assert load_weights(video, image) == LoadReport(tuple(image), (), ())
    assert relative_error(video.get_parameter("conv1.weight").sum(2), image["conv1.weight"]) < 1e-6
    assert torch.equal(video.get_parameter("layer3.1_cgnl.z.weight").squeeze(2), image["layer3.1_cgnl.z.weight"])


def without(state: State, *names: str) -> State:
    return {name: value for name, value in state.items() if name not in names}


REFUSED = {
    "missing": (lambda s: without(s, "conv1.weight"), "conv1.weight missing"),
    "classifier-missing": (lambda s: without(s, "fc.weight", "fc.bias"), "fc.bias, fc.weight missing"),
    "part-of-a-block-missing": (lambda s: without(s, "layer3.1_cgnl.z.weight"), "layer3.1_cgnl.z.weight missing"),
    "unexpected": (lambda s: s | {"layer3.9.weight": torch.zeros(1)}, "layer3.9.weight unexpected"),
    "other-block": (
        lambda s: {name.replace("_cgnl", "_nl"): value for name, value in s.items()},
        r"layer3.1_nl.g.weight, .* and \d more unexpected",
    ),
    "other-shape": (lambda s: s | {"conv1.weight": torch.zeros(16, 3, 5, 5)}, "conv1.weight of another shape"),
    "classifier-of-other-features": (lambda s: s | {"fc.weight": torch.zeros(3, 99)}, "fc.weight of another shape"),
    "several": (
        lambda s: without(s, "conv1.weight") | {"stem.weight": torch.zeros(1)},
        "conv1.weight missing; stem.weight unexpected",
    ),
    "not-a-number": (lambda s: s | {"bn1.bias": s["bn1.bias"] * math.nan}, "bn1.bias not finite"),
    "overflown-in-half-precision": (
        lambda s: {name: value.half() for name, value in (s | {"bn1.running_var": s["bn1.running_var"] + 7e4}).items()},
        "bn1.running_var not finite",
    ),
    "empty": (lambda _: {}, "missing"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_load_weights_refuses_and_changes_nothing(change, message):
    model = with_block()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=f"the weights do not fit the network: .*{message}") as error:
        load_weights(model, change(fresh_values(model)))
    assert "\n" not in str(error.value)
    assert differing(model, before) == []


def test_load_weights_refuses_video_weights_for_images():
    with pytest.raises(ValueError, match=r"conv1.weight, .* of another shape"):
        load_weights(Tiny(), fresh_values(Tiny(ndim=3)))


class Malicious:
    def __init__(self, victim: Path):
        self.victim = victim

    def __reduce__(self):
        return os.mkdir, (str(self.victim),)


def whole_file(write, tmp_path: Path) -> bytes:
    write(fresh_values(Tiny()), tmp_path / "whole")
    return (tmp_path / "whole").read_bytes()


BROKEN = {
    "empty": (lambda _: b"", ".pt"),
    "empty-safetensors": (lambda _: b"", ".safetensors"),
    "web-page": (lambda _: b"<html>404</html>", ".pt"),
    "pickle-opcodes": (lambda _: b"hejofvp(duezt p", ".pt"),
    "pickle-pops-nothing": (lambda _: b"u\x92", ".pt"),
    "pickle-cut-short": (lambda _: b"X\x01", ".pt"),
    "web-page-safetensors": (lambda _: b"<html><body>404 Not Found</body></html>", ".safetensors"),
    "truncated": (lambda path: whole_file(as_torch_file, path)[:-500], ".pt"),
    "truncated-old": (lambda path: whole_file(as_old_torch_file, path)[:300], ".pth"),
    "truncated-safetensors": (lambda path: whole_file(save_file, path)[:-500], ".safetensors"),
    "tensor": (lambda path: whole_file(lambda _, p: torch.save(torch.zeros(3), p), path), ".pt"),
    "numbers": (lambda path: whole_file(lambda _, p: torch.save({"conv1.weight": 1}, p), path), ".pt"),
    "no names": (lambda path: whole_file(lambda _, p: torch.save({7: torch.zeros(3)}, p), path), ".pt"),
    "repeated": (lambda path: whole_file(lambda _, p: torch.save({"a": torch.zeros(1).expand(9)}, p), path), ".pt"),
}


@pytest.mark.parametrize(("content", "suffix"), BROKEN.values(), ids=BROKEN)
def test_load_weights_refuses_a_broken_file(content, suffix, tmp_path):
    model, path = Tiny(), tmp_path / f"weights{suffix}"
    before = copy.deepcopy(model.state_dict())
    path.write_bytes(content(tmp_path))
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} (is not a file of weights|holds no state dict)") as e:
        load_weights(model, path)
    assert "\n" not in str(e.value)
    assert differing(model, before) == []


@pytest.mark.parametrize(
    "write",
    [torch.save, lambda thing, path: path.write_bytes(pickle.dumps(thing, protocol=2))],
    ids=["torch.save", "pickle"],
)
@pytest.mark.parametrize("load", [load_weights, load_reference_checkpoint])
def test_load_runs_nothing_in_a_file(load, write, tmp_path):
    victim, path = tmp_path / "executed", tmp_path / "weights.pt"
    write({"state_dict": Malicious(victim)}, path)
    with pytest.raises(ValueError, match="not a file of weights"):
        load(Tiny(), path)
    assert not victim.exists()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_load_weights_says_when_there_is_no_file(suffix, tmp_path):
    with pytest.raises(FileNotFoundError):
        load_weights(Tiny(), tmp_path / f"nowhere{suffix}")


RELEASED = {"theta": "t", "phi": "p"}


def as_released(model: nn.Module, norm: str | None) -> dict:
    """The model as the authors' code would have saved it: its block is layer3's last but one child, counted in."""
    blocks = inserted(model)
    place = int(next(iter(blocks)).split(".")[1].split("_")[0]) + 1 if blocks else 10**6

    def rename(name: str) -> str:
        stage, _, rest = name.partition(".")
        index, _, leaf = rest.partition(".")
        if stage != "layer3":
            return name
        if "_" in index:
            child, _, parameter = leaf.partition(".")
            child = norm if child == "norm" else RELEASED.get(child, child)
            return f"layer3.{place}.{child}.{parameter}"
        return f"layer3.{int(index) + (int(index) >= place)}.{leaf}"

    state = {f"module.{rename(name)}": value for name, value in fresh_values(model).items()}
    return {"epoch": 100, "state_dict": state, "best_prec1": torch.tensor(85.1), "optimizer": {"state": {}}}


def released_file(path: Path, model: nn.Module, norm: str | None) -> tuple[Path, State]:
    """(the checkpoint, its tensors by the authors' names)."""
    checkpoint = as_released(model, norm)
    torch.save(checkpoint, path / "model_best.pth.tar")
    return path / "model_best.pth.tar", {n.removeprefix("module."): v for n, v in checkpoint["state_dict"].items()}


@pytest.mark.parametrize(
    ("block", "options", "norm"),
    [("cgnl", {"norm": "group"}, "gn"), ("cgnlx", {"norm": "group"}, "gn"), ("nl", {}, "bn")],
    ids=["cgnl", "cgnlx", "nl"],
)
def test_load_reference_checkpoint_moves_every_entry_to_its_place(block, options, norm, tmp_path):
    model = with_block(block, **options)
    path, theirs = released_file(tmp_path, with_block(block, **options), norm)
    report = load_reference_checkpoint(model, path)
    assert (len(report.loaded), report.new, report.ignored) == (len(theirs), (), ())
    ours = model.state_dict()
    ours_by_theirs = {
        "layer3.0.weight": "layer3.0.weight",
        "layer3.1.weight": "layer3.1.weight",
        "layer3.2.t.weight": f"layer3.1_{block}.theta.weight",
        "layer3.2.p.weight": f"layer3.1_{block}.phi.weight",
        "layer3.2.g.weight": f"layer3.1_{block}.g.weight",
        "layer3.2.z.weight": f"layer3.1_{block}.z.weight",
        f"layer3.2.{norm}.weight": f"layer3.1_{block}.norm.weight",
        f"layer3.2.{norm}.bias": f"layer3.1_{block}.norm.bias",
        "layer3.3.weight": "layer3.2.weight",
        "conv1.weight": "conv1.weight",
        "fc.bias": "fc.bias",
    }
    assert [name for name, other in ours_by_theirs.items() if not torch.equal(theirs[name], ours[other])] == []


def test_load_reference_checkpoint_reads_a_resnet50(tmp_path):
    build = {"block": "cgnl", "norm": "group", "num_classes": 10}
    model = create_model("resnet50", **build)
    path, theirs = released_file(tmp_path, create_model("resnet50", **build), "gn")
    assert {name.split(".")[1] for name in theirs if name.startswith("layer3")} == set("0123456")
    report = load_reference_checkpoint(model, path)
    assert (len(report.loaded), report.new, report.ignored) == (len(model.state_dict()), (), ())
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), theirs.values(), strict=True))


def test_load_reference_checkpoint_reads_a_network_without_blocks(tmp_path):
    model = Tiny()
    path, theirs = released_file(tmp_path, Tiny(), None)
    load_reference_checkpoint(model, path)
    assert differing(model, theirs) == []


def test_load_reference_checkpoint_ignores_another_classifier(tmp_path):
    path, _ = released_file(tmp_path, with_block(norm="group"), "gn")
    model = cgnl.insert(Tiny(classes=200), "cgnl", "layer3.1", norm="group")
    assert load_reference_checkpoint(model, path).ignored == ("fc.bias", "fc.weight")


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        pytest.param("cgnl", lambda: with_block(), 'GroupNorm, the network\'s BatchNorm: .*norm="group"', id="norm"),
        pytest.param("cgnl", lambda: with_block("nl"), "GroupNorm, the network's BatchNorm", id="cgnl-into-nl"),
        pytest.param("nl", lambda: with_block(norm="group"), "norm.running_mean.* unexpected", id="nl-into-cgnl"),
        pytest.param("nl", lambda: with_block(), "z.weight of another shape", id="nl-into-cgnl-batch"),
        pytest.param(
            "cgnl", lambda: with_block(norm="group", groups=4), "z.weight of another shape", id="number-of-groups"
        ),
        pytest.param(
            "cgnl",
            lambda: with_block(after="layer3.0", norm="group"),
            "blocks after layer3.1, the network after layer3.0",
            id="place",
        ),
        pytest.param("cgnl", Tiny, "after layer3.1, the network after nothing", id="network-without-block"),
        pytest.param(None, with_block, "after nothing, the network after layer3.1", id="checkpoint-without-block"),
    ],
)
def test_load_reference_checkpoint_refuses_and_changes_nothing(theirs, ours, message, tmp_path):
    released = {"cgnl": lambda: with_block(norm="group"), "nl": lambda: with_block("nl"), None: Tiny}[theirs]()
    path, _ = released_file(tmp_path, released, "bn" if theirs == "nl" else "gn")
    model = ours()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        load_reference_checkpoint(model, path)
    assert differing(model, before) == []


def test_load_reference_checkpoint_names_an_entry_without_a_number(tmp_path):
    model = with_block(norm="group")
    path, state = released_file(tmp_path, model, "gn")
    torch.save(state | {"layer3.downsample.weight": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"layer3\.downsample\.weight unexpected"):
        load_reference_checkpoint(model, path)


def test_load_reference_checkpoint_refuses_a_block_that_is_none_of_the_authors(tmp_path):
    path, _ = released_file(tmp_path, with_block(norm="group"), "gn")
    model = cgnl.insert(Tiny(), lambda channels: nn.Conv2d(channels, channels, 1), "layer3.1")
    with pytest.raises(ValueError, match="do not fit"):
        load_reference_checkpoint(model, path)


@pytest.mark.parametrize("network", ["resnet18", "c2d_resnet18"])
def test_weights_of_the_plain_network_load_beside_a_new_head(network):
    plain = create_model("resnet18", num_classes=5).state_dict()
    model = create_model(network, head="covariance", reduced=8, num_classes=5)
    report = load_weights(model, plain)
    assert set(report.ignored) == {"fc.weight"} | {"fc.bias"}
    assert {name.partition(".")[0] for name in report.new} == {"avgpool", "fc"}
    assert torch.equal(model.state_dict()["layer4.1.bn2.weight"], plain["layer4.1.bn2.weight"])


def test_weights_of_a_head_load_with_other_classes():
    trained = create_model("resnet18", head="compact", reduced=8, num_classes=5)
    model = create_model("resnet18", head="compact", reduced=8, num_classes=3)
    report = load_weights(model, trained.state_dict())
    assert set(report.ignored) == {"fc.weight", "fc.bias"}
    assert torch.equal(model.state_dict()["avgpool.phi.weight"], trained.state_dict()["avgpool.phi.weight"])


def test_weights_of_another_head_are_refused():
    trained = create_model("resnet18", head="covariance", reduced=8, num_classes=5).state_dict()
    for options in ({}, {"head": "covariance", "reduced": 9}, {"head": "compact", "reduced": 8}):
        with pytest.raises(ValueError, match="avgpool"):
            load_weights(create_model("resnet18", num_classes=5, **options), trained)


@pytest.mark.parametrize("child", ["model", "network", "module"])
@pytest.mark.parametrize("write", [as_torch_file, as_data_parallel_file, as_child_file, as_a_checkpoint_of_a_run])
def test_load_weights_keeps_the_names_of_a_network_whose_child_is_called_like_a_wrapper(child, write, tmp_path):
    """As timm's VOLO, all of whose names begin with network."""
    model = nn.ModuleDict({child: Tiny()})
    state = fresh_values(model)
    write(state, tmp_path / "weights.pth")
    load_weights(model, tmp_path / "weights.pth")
    assert differing(model, state) == []


def test_load_weights_refuses_a_folder(tmp_path):
    with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path))} is a folder"):
        load_weights(Tiny(), tmp_path)


class Named(nn.Module):
    """No name tells of the classifier: it is the last layer."""

    def __init__(self, classes: int):
        super().__init__()
        self.body, self.answer = nn.Conv2d(3, 16, 1), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(self.body(x).flatten(2).mean(2))


def test_a_block_called_by_a_hook_is_not_taken_for_the_classifier():
    model = cgnl.insert(Named(9), "residual", "body")
    assert list(model._modules)[-1] == "body_residual"
    assert set(load_weights(model, fresh_values(Named(7))).ignored) == {"answer.weight", "answer.bias"}


def test_pickled_model_is_called_so(tmp_path):
    path = tmp_path / "model.pth"
    torch.save(nn.Conv2d(2, 2, 1), path)
    for read_file in (read_state_dict, read):
        with pytest.raises(ValueError, match="pickled model") as raised:
            read_file(path)
        assert str(raised.value).isprintable()
