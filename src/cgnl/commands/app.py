"""``cgnl app``."""

from ..extras import need


def app(
    checkpoint: str,
    other: str | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    device: str = "auto",
) -> None:
    """Serve a page: drop in a picture or a clip, click on it, and see what the network attends to from there.

    Args:
        checkpoint: a run folder, or the last.ckpt or best.ckpt in it.
        other: a second checkpoint, shown next to the first.
        host: address to listen on. Only this machine can reach the default; everybody can reach 0.0.0.0.
        port: port to listen on; the first free one from 7860 on unless given.
        device: cpu, cuda, or auto.
    """
    if port is not None and not 0 < port < 2**16:
        raise ValueError(f"port = {port} must be from 1 to 65535")
    need("matplotlib", "app")
    from ..report.app import serve
    from ..report.page import open_networks

    serve(open_networks([checkpoint, *([other] if other else [])], device), host, port)
