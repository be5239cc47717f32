"""``cgnl bench serve``: how many samples a second a network answers, and how long 99 of 100 requests take at most."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from ..export import for_inference
from .cases import draw
from .checks import check_batch, relative_error, settle
from .measure import by_clock, percentile
from .runner import Heading, device_name, heading, reason
from .settings import Setting
from .subjects import whole_network

BATCHES = 1, 8, 64
"""Samples of a request, unless given."""
FEWEST = 100
"""Requests, or else nobody knows what 99 of 100 take."""
LONGEST = 20.0
"""Seconds after which fewer will do; how many there were stands beside it."""
SEEN = 4
"""Samples by which norms have their statistics."""

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Served(Heading):
    """What was measured of a way to answer; None where it was not, and then ``note`` says why."""

    per_second: float | None = None
    ms: float | None = None
    ms_99: float | None = None
    requests: int | None = None
    error: float | None = None
    note: str = ""


def _as_it_is(setting: Setting, weights: Weights, backend: str) -> nn.Module:
    model = whole_network(setting, "cgnl", backend=backend)
    model.load_state_dict(weights)
    model.eval().requires_grad_(False).to(setting.device, setting.dtype)
    return model.to(memory_format=setting.memory_format)  # pyright: ignore[reportCallIssue]


def _ready(setting: Setting, weights: Weights, graphs: bool = False) -> nn.Module:
    model = whole_network(setting, "cgnl")
    model.load_state_dict(weights)
    return for_inference(model, setting.device, setting.dtype, graphs)


def _compiled(setting: Setting, weights: Weights, mode: str | None = None) -> Callable[[Tensor], Tensor]:
    return torch.compile(_ready(setting, weights), dynamic=False, mode=mode)


def _plain(setting: Setting, _: Weights) -> nn.Module:
    return for_inference(whole_network(setting, None), setting.device, setting.dtype)


@dataclass(frozen=True)
class Way:
    """A way to answer requests."""

    name: str
    build: Callable[[Setting, Weights], Callable[[Tensor], Tensor]]
    only_on_gpu: bool = False
    checked: bool = True


WAYS = (
    Way("reference", partial(_as_it_is, backend="reference")),
    Way("fused", partial(_as_it_is, backend="fused"), only_on_gpu=True),
    Way("folded", _ready),
    Way("folded graph", partial(_ready, graphs=True), only_on_gpu=True),
    Way("folded compiled", _compiled),
    Way("folded compiled graph", partial(_compiled, mode="reduce-overhead"), only_on_gpu=True),
    Way("plain folded graph", _plain, checked=False),
)
"""Fused kernels run in all rows but the first, where there is a GPU. ``graph`` means nothing on a CPU."""


def check(setting: Setting) -> None:
    """Refuse what cannot be measured."""
    if setting.mode != "forward":
        raise ValueError("a network that answers does not train: cgnl bench serve has no mode=train")
    whole_network(setting, "cgnl")


def serve(setting: Setting, ways: Iterable[Way]) -> Iterator[Served]:
    """A row for each way, as it comes. Whatever goes wrong with one, the others go on."""
    weights, x, truth = _truth(setting)
    for way in ways:
        row = Served(**heading(way.name, setting))
        torch.compiler.reset()
        try:
            yield _served(row, way, setting, weights, x, truth)
        except Exception as error:
            yield replace(row, note=reason(error))
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()


def _truth(setting: Setting) -> tuple[Weights, Tensor, Tensor]:
    """Weights with norms that have seen something, a few samples, and what float64 makes of them."""
    torch.manual_seed(0)
    exact = whole_network(setting, "cgnl", backend="reference").to(setting.device, torch.float64)
    (x,) = draw(setting, SEEN, 1, gradient=False)
    settle(exact, [x.double()])
    x = x[: check_batch(setting)]
    weights = {
        name: value.float() if value.is_floating_point() else value for name, value in exact.state_dict().items()
    }
    with torch.inference_mode():
        return weights, x, exact.eval()(x.double())


def _served(row: Served, way: Way, setting: Setting, weights: Weights, x: Tensor, truth: Tensor) -> Served:
    if way.only_on_gpu and setting.device.type != "cuda":
        return replace(row, note="only on a GPU")
    call = way.build(setting, weights)
    with torch.inference_mode():
        if way.checked:
            row = replace(row, error=relative_error([call(x)], [truth]))
        (given,) = draw(setting, setting.batch, 1, gradient=False)
        waiting = given.cpu()
        if given.is_cuda:
            waiting = waiting.pin_memory()
        times = latencies(lambda: call(waiting.to(setting.device, non_blocking=True)).cpu(), setting.seconds)
        rate = setting.batch / seconds_of_each(lambda: call(given), setting.seconds, setting.device)
    return replace(row, per_second=rate, ms=percentile(times, 50), ms_99=percentile(times, 99), requests=len(times))


def latencies(request: Callable[[], object], seconds: float) -> list[float]:
    """Milliseconds of requests one after another: for this long, and enough of them unless they take too long."""
    for _ in range(3):
        request()
    return by_clock(request, seconds, fewest=FEWEST, most=math.inf, longest=LONGEST)


def seconds_of_each(call: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Seconds of a call where nobody waits for its answer before the next one."""
    count, start = 0, time.perf_counter()
    while count < 10 or time.perf_counter() - start < seconds:
        call()
        count += 1
        if count % 10 == 0 and device.type == "cuda":  # so that no more than these wait to be computed
            torch.cuda.synchronize(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / count


LEGEND = """samples/s: without waiting for an answer before the next request, input on the device.
ms, 99 %: a request alone, from input in the host's memory to the answer there: median, and what 99 of 100 stay under.
error: of the logits, relative, to the reference in float64; the weights are random.
folded: cgnl.export.for_inference, batch norms in the convolutions; blocks are fused but in the first row (on a GPU).
graph: started all at once, as a CUDA graph. plain: the same without blocks."""


def header(setting: Setting) -> str:
    size = " x ".join(map(str, setting.shape[1:]))
    where = f"{device_name(setting.device)}, torch {torch.__version__}"
    return f"cgnl bench serve: {size}, {setting.dtype_name}, {setting.kernel}\n{setting.words}; {where}"


def title_line(width: int) -> str:
    return f"{'batch':>5}  {'row':{width}} {'samples/s':>10} {'ms':>9} {'99 %':>9} {'requests':>9} {'error':>9}"


def line(row: Served, width: int) -> str:
    head = f"{row.shape.partition('x')[0]:>5}  {row.row:{width}}"
    if row.per_second is None or row.ms is None or row.ms_99 is None:
        return f"{head} {'-':>10} {row.note}"
    error = "-" if row.error is None else f"{row.error:.1e}"
    return f"{head} {row.per_second:10.1f} {row.ms:9.4g} {row.ms_99:9.4g} {row.requests:9} {error:>9}"
