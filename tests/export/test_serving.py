import pytest
import torch
from torch import nn

import cgnl
from cgnl.export import fold, for_inference
from cgnl.export.serving import MAX_GRAPHS, Graphed
from cgnl.heads import KINDS
from tests.conftest import relative_error
from tests.export.conftest import Small, stir

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def network(name: str = "resnet18", **options):
    torch.manual_seed(0)
    model = cgnl.create_model(name, block="cgnl", num_classes=5, zero_init=False, **options)
    x = torch.randn(2, 3, *([8] if name.startswith("c2d") else []), 33, 40)
    model(x)  # the norms have seen something
    return model.eval(), x


@pytest.mark.parametrize("name", ["resnet18", "c2d_resnet18"])
def test_for_inference_answers_as_the_network_does(name):
    model, x = network(name)
    ready = for_inference(model)
    with torch.no_grad():
        expected = model(x)
    answer = ready(x)
    assert relative_error(answer, expected) < 1e-5
    assert not answer.requires_grad
    assert torch.equal(ready(x.double()), answer)  # as it comes
    assert relative_error(ready(x.transpose(-1, -2).contiguous().transpose(-1, -2)), expected) < 1e-5


@pytest.mark.parametrize("head", KINDS)
def test_for_inference_takes_heads(head):
    model, _ = network(head=head, reduced=32)
    x = torch.randn(2, 3, 96, 80)
    with torch.no_grad():
        expected = model(x)
    assert relative_error(for_inference(model)(x), expected) < 1e-4
    low = for_inference(model, dtype=torch.bfloat16)(x)
    assert low.dtype == torch.bfloat16
    assert relative_error(low, expected) < 5e-2


def test_for_inference_may_be_compiled():
    model, x = network()
    ready = for_inference(model)
    with torch.inference_mode():
        assert relative_error(torch.compile(ready, backend="aot_eager")(x), ready(x)) < 1e-5


def test_for_inference_leaves_the_network_alone():
    model, x = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ready = for_inference(model.train(), dtype=torch.bfloat16)
    assert model.training
    assert not ready.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert ready(x).dtype == torch.bfloat16


def test_for_inference_refuses_what_cannot_be_followed():
    with pytest.raises(ValueError, match="the order of the layers cannot be followed"):
        for_inference(cgnl.create_model("maskrcnn_resnet50_fpn"))


@gpu
@pytest.mark.parametrize("graphs", [False, True])
def test_for_inference_on_a_gpu(graphs, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model, x = network()
    with torch.no_grad():
        expected = model.double()(x.double())
    ready = for_inference(model.float(), "cuda", torch.float32, graphs)
    for sample in (x, x[:1], x):
        got = ready(sample)
        assert relative_error(got.cpu(), expected[: len(sample)]) < 1e-4
    assert relative_error(torch.compile(ready)(x).cpu(), expected) < 1e-4
    assert relative_error(for_inference(model, "cuda")(x).cpu(), expected) < 5e-2


@gpu
def test_graphed_keeps_so_many_shapes_and_no_more():
    layer = Graphed(torch.nn.Linear(4, 3, device="cuda").requires_grad_(False))
    for count in (*range(1, MAX_GRAPHS + 3), 1, 2):
        x = torch.randn(count, 4, device="cuda")
        assert torch.allclose(layer(x), layer.network(x), atol=1e-6)
    assert len(layer._graphs) == MAX_GRAPHS


@gpu
def test_graphed_answers_are_not_overwritten():
    layer = Graphed(torch.nn.Identity())
    x = torch.ones(3, device="cuda")
    first = layer(x)
    second = layer(2 * x)
    assert (first.tolist(), second.tolist()) == ([1, 1, 1], [2, 2, 2])


NORMS = nn.BatchNorm2d | nn.BatchNorm3d


def norms(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, NORMS)]


@pytest.mark.parametrize("name", ["resnet18", "i3d_resnet50"])
def test_fold_gives_the_same(name):
    model = cgnl.create_model(name, block="cgnl", num_classes=4, zero_init=False)
    for module in model.modules():
        if isinstance(module, NORMS):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    x = torch.randn(2, 3, *(() if name.startswith("resnet") else (8,)), 40, 48)
    folded = fold(model)
    assert norms(folded) == [f"{cgnl.placement(name)[0]}_cgnl.norm"]
    assert model.training
    with torch.no_grad():
        assert relative_error(folded(x), model.eval()(x)) < 1e-5


@pytest.mark.parametrize(("name", "head"), [("resnet18", "covariance"), ("c2d_resnet18", "bilinear")])
def test_fold_folds_the_norm_of_a_head(name, head):
    model = cgnl.create_model(name, head=head, reduced=16, num_classes=4)
    x = torch.randn(2, 3, *(() if name == "resnet18" else (8,)), 64, 80)
    model(x)  # the norms have seen something
    folded = fold(model)
    assert norms(folded) == []
    ours, theirs = (m.get_submodule("avgpool") for m in (folded, model))
    assert isinstance(ours, cgnl.SecondOrderPool)
    assert isinstance(theirs, cgnl.SecondOrderPool)
    scale = theirs.norm.weight / (theirs.norm.running_var + theirs.norm.eps).sqrt()
    expected = theirs.get_parameter("reduce.weight") * scale.view(-1, *[1] * theirs.ndim, 1)
    torch.testing.assert_close(ours.get_parameter("reduce.weight"), expected)
    torch.testing.assert_close(ours.get_parameter("reduce.bias"), theirs.norm.bias - scale * theirs.norm.running_mean)
    with torch.no_grad():
        assert relative_error(folded(x), model.eval()(x)) < 1e-4
        assert folded(x[:0]).shape == (0, 4)


def test_fold_leaves_the_norm_of_a_compact_head():
    model, x = cgnl.create_model("resnet18", head="compact", reduced=16, num_classes=4), torch.randn(2, 3, 40, 48)
    model(x)
    folded = fold(model)
    assert isinstance(folded.get_submodule("avgpool.norm"), nn.BatchNorm1d)
    with torch.no_grad():
        assert relative_error(folded(x), model.eval()(x)) < 1e-4


class Twice(Small):
    """Its convolution is used twice, once without the norm."""

    def forward(self, x):
        return self.fc((self.norm1(self.conv1(x)) + self.conv1(x)).flatten(2).mean(2))


def test_fold_leaves_alone_what_is_used_elsewhere_too():
    model, x = stir(Twice(4, 2)), torch.randn(2, 3, 16, 16)
    folded = fold(model)
    assert norms(folded) == ["norm1"]
    assert torch.equal(folded(x), model(x))


class ByValue(Small):
    """Its path depends on its input."""

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


def test_fold_refuses_what_it_cannot_follow():
    with pytest.raises(ValueError, match="the order of the layers cannot be followed"):
        fold(ByValue(4, 2))


@pytest.mark.parametrize("after", ["conv1", "layer1.0.conv1", "layer3.1.bn2"])
def test_fold_leaves_alone_what_calls_a_block(after):
    """Blocks outside of a Sequential are called by a hook, which torch.fx does not see."""
    model = stir(cgnl.create_model("resnet18", block="cgnl", num_classes=4, after=[after], zero_init=False))
    x = torch.randn(2, 3, 40, 48)
    with torch.no_grad():
        expected = model.eval()(x)
        assert relative_error(fold(model)(x), expected) < 1e-5
        assert relative_error(expected, cgnl.remove(model)(x)) > 1e-3


@pytest.mark.parametrize("part", ["reduce", "norm"])
def test_fold_leaves_alone_the_hooks_of_a_head(part):
    model = stir(cgnl.create_model("resnet18", head="covariance", reduced=16, num_classes=4)).eval()
    model.get_submodule(f"avgpool.{part}").register_forward_hook(lambda _module, _inputs, output: output.abs())
    x = torch.randn(2, 3, 64, 80)
    with torch.no_grad():
        assert relative_error(fold(model)(x), model(x)) < 1e-4
