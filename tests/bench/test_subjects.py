import pytest
import torch

from cgnl import NonLocal, ops
from cgnl.bench.settings import read
from cgnl.bench.subjects import (
    BENCHMARKS,
    attention_by_kernels,
    attention_by_products,
    choose,
    compile_,
    peer_subjects,
)
from cgnl.heads import second_order_pools
from cgnl.surgery import inserted


@pytest.mark.parametrize(("name", "benchmark"), BENCHMARKS.items())
def test_benchmark_names_rows_that_exist(name, benchmark):
    names = [s.name for s in benchmark.subjects]
    assert len(set(names)) == len(names)
    assert {benchmark.baseline, "reference"} <= set(names)
    assert {s.counts_as for s in benchmark.subjects} - {""} <= set(names)
    for subject in benchmark.subjects:  # what a row is compared with is measured before it
        assert not subject.compared_with or subject.compared_with in names[: names.index(subject.name)]
    assert choose(names, benchmark.subjects) == list(benchmark.subjects), name


@pytest.mark.parametrize("spelling", ["non-local sdpa", "non-local-sdpa", "Non_Local_SDPA", " non-local sdpa"])
def test_choose_takes_other_spellings(spelling):
    assert [s.name for s in choose([spelling], BENCHMARKS["ops"].subjects)] == ["non-local sdpa"]


def test_choose_keeps_the_order_of_the_registry():
    assert [s.name for s in choose(["nl", "plain"], BENCHMARKS["network"].subjects)] == ["plain", "nl"]


def test_choose_names_the_nearest_row():
    with pytest.raises(ValueError, match=r"there is no row 'refrence'; did you mean reference\?"):
        choose(["refrence"], BENCHMARKS["block"].subjects)


@pytest.mark.parametrize("name", ["non-local bmm", "non-local sdpa"])
def test_forced_non_local_is_the_non_local_operation(name):
    theta, phi, g = torch.randn(3, 2, 8, 3, 4, dtype=torch.float64)
    (subject,) = choose([name], BENCHMARKS["ops"].subjects)
    torch.testing.assert_close(subject.build(read("ops", {}, "cpu"))(theta, phi, g), ops.non_local(theta, phi, g))


@pytest.mark.parametrize("attention", [attention_by_products, attention_by_kernels])
def test_forced_non_local_block_is_the_non_local_block(attention):
    setting = read("block", {"channels": 16}, "cpu")
    name = "non-local bmm" if attention is attention_by_products else "non-local sdpa"
    (subject,) = choose([name], BENCHMARKS["block"].subjects)
    forced = subject.build(setting)
    assert isinstance(forced, torch.nn.Module)
    x = torch.randn(2, 16, 4, 4)
    expected = NonLocal(16, zero_init=False)
    expected.load_state_dict(forced.state_dict())
    torch.testing.assert_close(forced(x), expected(x))


def test_timm_rows_are_for_images():
    (subject,) = choose(["squeeze-excitation"], BENCHMARKS["block"].subjects)
    with pytest.raises(ValueError, match="timm's SEModule is for images"):
        subject.build(read("block", {"size": "2x4x4"}, "cpu"))


def network_row(name: str, **given):
    (subject,) = choose([name], BENCHMARKS["network"].subjects)
    return subject, subject.build(read("network", {"network": "resnet18", "size": "32", **given}, "cpu"))


def test_covariance_rows_have_a_head_and_no_block():
    for name, given in (("covariance head", {}), ("covariance-head-compiled", {"reduced": 16})):
        _, model = network_row(name, **given)
        assert isinstance(model, torch.nn.Module)
        (head,) = second_order_pools(model).values()
        assert (head.kind, head.reduced) == ("covariance", given.get("reduced", 256))
        assert not inserted(model)


def test_compiled_head_is_compared_with_the_compiled_network():
    subject, _ = network_row("covariance head compiled")
    assert (subject.compiled, subject.compared_with, subject.counts_as) == (True, "plain compiled", "covariance head")


@pytest.mark.parametrize("name", ["plain compiled", "covariance head compiled"])
def test_network_without_blocks_is_compiled_whole(name):
    model = compile_(network_row(name)[1], on_cpu=True)
    assert isinstance(model, torch.nn.Module)
    assert [n for n, m in model.named_modules() if m._compiled_call_impl is not None] == [""]


def test_network_with_blocks_has_these_compiled():
    model = compile_(network_row("reference compiled", blocks=1)[1], on_cpu=True)
    assert isinstance(model, torch.nn.Module)
    assert [n for n, m in model.named_modules() if m._compiled_call_impl is not None] == list(inserted(model))


def test_detectors_are_refused():
    with pytest.raises(ValueError, match="maskrcnn_resnet50_fpn takes pictures with objects"):
        BENCHMARKS["network"].subjects[0].build(read("network", {"network": "maskrcnn_resnet50_fpn"}, "cpu"))


def test_peer_subjects_are_named_by_class_while_that_is_enough(tmp_path):
    (tmp_path / "a.py").write_text("import torch\nclass A(torch.nn.Identity):\n    pass\n")
    setting = read("block", {}, "cpu")
    assert [s.name for s in peer_subjects(f"{tmp_path}/a.py:A", setting)] == ["A"]
    twice = f"{tmp_path}/a.py:A,{tmp_path}/a.py:A(C, groups=2)"
    assert [s.name for s in peer_subjects(twice, setting)] == twice.split(",", 1)
