"""``cgnl app``: a page on which anybody can try networks and look into them."""

from ..extras import need
from ..report.app import serve
from ..report.page import open_networks


def app(
    checkpoint: str,
    other: str | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    device: str = "auto",
) -> None:
    """Serve a page: drop in a picture or a clip, click on it, see what the network attends to from there.

    Args:
        checkpoint: last.ckpt or best.ckpt of a run.
        other: a second checkpoint, side by side with the first.
        host: address to listen on; only this machine can reach the usual one, everybody can reach 0.0.0.0.
        port: of the address; the first free one from 7860 on unless given.
        device: cpu, cuda, or auto.
    """
    need("matplotlib", "app")
    if port is not None and not 0 < port < 2**16:
        raise ValueError(f"port = {port} must be from 1 to 65535")
    networks = open_networks([checkpoint, *([other] if other else [])], device)
    serve(networks, host, port)
