"""``cgnl app``."""

from typing import Annotated

from ..engine.runs import find_checkpoint
from ..extras import need


def app(
    checkpoint: str,
    other: str | None = None,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, "> 0", "<= 65535"] | None = None,
    device: str = "auto",
) -> None:
    """Serve a page: drop in an image or a clip, click on it, and see what the network attends to from there.

    Args:
        checkpoint: a run folder, or the last.ckpt or best.ckpt in it.
        other: a second checkpoint, shown next to the first.
        host: address to listen on. Only this machine can reach the default; everybody can reach 0.0.0.0.
        port: port to listen on. If not given: the first free one from 7860 on.
        device: cpu, cuda, or auto.
    """
    need("matplotlib", "app")
    paths = [checkpoint, *([other] if other else [])]
    for path in paths:
        find_checkpoint(path)
    from ..report.app import serve
    from ..report.page import open_networks

    serve(open_networks(paths, device), host, port)
