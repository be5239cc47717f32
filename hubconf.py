"""Networks for ``torch.hub.load``: cgnl_resnet50, nl_c2d_resnet50, ...; their options are those of ``create_model``."""

import sys as _sys
from pathlib import Path as _Path

dependencies = ["torch", "torchvision"]

_sys.path.insert(0, str(_Path(__file__).parent / "src"))
from cgnl.models import NETWORKS as _NETWORKS  # noqa: E402
from cgnl.models import create_model  # noqa: E402
from cgnl.surgery import BLOCKS as _BLOCKS  # noqa: E402

_sys.path.pop(0)


def _entry(network: str, block: str):
    def build(**options):
        return create_model(network, block=block, **options)

    build.__name__ = f"{block}_{network}"
    build.__doc__ = f"{network} with {block} blocks; options are those of cgnl.create_model.\n\n{create_model.__doc__}"
    return build


for _network in _NETWORKS:
    for _block in _BLOCKS:
        globals()[f"{_block}_{_network}"] = _entry(_network, _block)
