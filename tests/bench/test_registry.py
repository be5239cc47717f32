import pytest
import torch

from benchmarks import speed
from cgnl import NonLocal, ops
from cgnl.bench.registry import BENCHMARKS, Setting, compile_
from cgnl.commands.bench import check_options, read_setting
from cgnl.heads import second_order_pools
from cgnl.surgery import inserted


@pytest.mark.parametrize(("name", "table"), BENCHMARKS.items())
def test_benchmark_names_rows_that_exist(name, table):
    names = [s.name for s in table.subjects]
    assert len(set(names)) == len(names)
    assert {table.baseline, "reference"} <= set(names)
    assert {s.counts_as for s in table.subjects} - {""} <= set(names)
    for subject in table.subjects:  # what a row is compared with is measured before it
        assert not subject.compared_with or subject.compared_with in names[: names.index(subject.name)]
    assert table.choose(*names) == list(table.subjects), name


@pytest.mark.parametrize(("name", "options"), [*speed.measurements("peer.py:Block"), *speed.through_pointers()])
def test_what_the_documents_show_can_be_measured(name, options):
    given = {option: value for option, value in options.items() if option not in ("rows", "peer")}
    check_options(name, given)
    setting = read_setting(name, given, "cpu")
    assert (setting.mode, setting.groups) == (options["mode"], options.get("groups", 8))
    assert len(BENCHMARKS[name].choose(*options["rows"].split(","))) == options["rows"].count(",") + 1


@pytest.mark.parametrize("spelling", ["non-local sdpa", "non-local-sdpa", "Non_Local_SDPA", " non-local sdpa"])
def test_choose_takes_other_spellings(spelling):
    assert [s.name for s in BENCHMARKS["ops"].choose(spelling)] == ["non-local sdpa"]


def test_choose_keeps_the_order_of_the_registry():
    assert [s.name for s in BENCHMARKS["network"].choose("nl", "plain")] == ["plain", "nl"]


def test_choose_names_the_nearest_row():
    with pytest.raises(ValueError, match=r"there is no row 'refrence'; did you mean reference\?"):
        BENCHMARKS["block"].choose("refrence")


@pytest.mark.parametrize("name", ["non-local bmm", "non-local sdpa"])
def test_forced_non_local_is_the_non_local_operation(name):
    theta, phi, g = torch.randn(3, 2, 8, 3, 4, dtype=torch.float64)
    (subject,) = BENCHMARKS["ops"].choose(name)
    torch.testing.assert_close(
        subject.build(read_setting("ops", {}, "cpu"))(theta, phi, g), ops.non_local(theta, phi, g)
    )


@pytest.mark.parametrize("name", ["non-local bmm", "non-local sdpa"])
def test_forced_non_local_block_is_the_non_local_block(name):
    setting = read_setting("block", {"channels": 16}, "cpu")
    (subject,) = BENCHMARKS["block"].choose(name)
    forced = subject.build(setting)
    assert isinstance(forced, torch.nn.Module)
    x = torch.randn(2, 16, 4, 4)
    expected = NonLocal(16, zero_init=False)
    expected.load_state_dict(forced.state_dict())
    torch.testing.assert_close(forced(x), expected(x))


def test_timm_rows_are_for_images():
    (subject,) = BENCHMARKS["block"].choose("squeeze-excitation")
    with pytest.raises(ValueError, match="timm's SEModule is for images"):
        subject.build(read_setting("block", {"size": "2x4x4"}, "cpu"))


def network_row(name: str, **given):
    (subject,) = BENCHMARKS["network"].choose(name)
    setting = read_setting("network", {"network": "resnet18", "size": "32", **given}, "cpu")
    return subject, subject.build(setting), setting


def test_covariance_rows_have_a_head_and_no_block():
    for name, given in (("covariance head", {}), ("covariance-head-compiled", {"reduced": 16})):
        _, model, _ = network_row(name, **given)
        assert isinstance(model, torch.nn.Module)
        (head,) = second_order_pools(model).values()
        assert (head.kind, head.reduced) == ("covariance", given.get("reduced", 256))
        assert not inserted(model)


def test_compiled_head_is_compared_with_the_compiled_network():
    subject, *_ = network_row("covariance head compiled")
    assert (subject.prepare, subject.compared_with, subject.counts_as) == (
        compile_,
        "plain compiled",
        "covariance head",
    )


@pytest.mark.parametrize("name", ["plain compiled", "covariance head compiled"])
def test_network_without_blocks_is_compiled_whole(name):
    model = compile_(*network_row(name)[1:])
    assert isinstance(model, torch.nn.Module)
    assert [n for n, m in model.named_modules() if m._compiled_call_impl is not None] == [""]


def test_network_with_blocks_has_these_compiled():
    model = compile_(*network_row("reference compiled", blocks=1)[1:])
    assert isinstance(model, torch.nn.Module)
    assert [n for n, m in model.named_modules() if m._compiled_call_impl is not None] == list(inserted(model))


def test_detectors_are_refused():
    with pytest.raises(ValueError, match="maskrcnn_resnet50_fpn is a detector"):
        BENCHMARKS["network"].subjects[0].build(read_setting("network", {"network": "maskrcnn_resnet50_fpn"}, "cpu"))


def test_setting_half_precision_is_autocast_in_training_alone():
    train = read_setting("block", {"dtype": "bfloat16"}, "cpu")
    forward = read_setting("block", {"dtype": "bfloat16", "mode": "forward"}, "cpu")
    assert (train.autocast, forward.autocast, read_setting("block", {}, "cpu").autocast) == (True, False, False)


@pytest.mark.parametrize(
    ("size", "last", "expected"),
    [
        ((4, 4), True, torch.channels_last),
        ((2, 4, 4), True, torch.channels_last_3d),
        ((4,), True, torch.contiguous_format),
        ((4, 4), False, torch.contiguous_format),
    ],
)
def test_setting_memory_format(size, last, expected):
    setting = Setting("block", 2, 8, size, torch.device("cpu"), channels_last=last)
    assert setting.memory_format == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_row_runs_or_says_that_it_needs_a_gpu(name):
    small = {"network": "resnet18", "size": "32", "reduced": 8} if name in ("network", "serve") else {"size": "4"}
    setting = read_setting(name, small, "cpu")
    inputs = torch.randn(BENCHMARKS[name].inputs, *setting.shape)
    reference = BENCHMARKS[name].reference.build(setting)
    weights = reference.state_dict() if isinstance(reference, torch.nn.Module) else {}
    for subject in BENCHMARKS[name].subjects:
        if "compiled" in subject.name or subject.only_on_gpu:
            continue
        call = subject.load(setting, weights)
        if subject.name.startswith("fused"):
            with pytest.raises(ValueError, match="the input is on cpu"):
                call(*inputs)
        else:
            assert len(call(*inputs)) == setting.batch
