import pytest
import torch

import cgnl
from cgnl.export import for_inference
from cgnl.export.serving import MOST, Graphed
from cgnl.heads import KINDS
from tests.conftest import relative_error

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
    for count in (*range(1, MOST + 3), 1, 2):
        x = torch.randn(count, 4, device="cuda")
        assert torch.allclose(layer(x), layer.network(x), atol=1e-6)
    assert len(layer._graphs) == MOST


@gpu
def test_graphed_answers_are_not_overwritten():
    layer = Graphed(torch.nn.Identity())
    x = torch.ones(3, device="cuda")
    first = layer(x)
    second = layer(2 * x)
    assert (first.tolist(), second.tolist()) == ([1, 1, 1], [2, 2, 2])
