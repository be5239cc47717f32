"""Networks as files that run elsewhere (ONNX, torch.export programs), and ready for serving.

Names resolve lazily: folding needs torch alone, files need more.
"""

import importlib
from typing import TYPE_CHECKING

from ..extras import with_extra
from .serving import fold, for_inference

if TYPE_CHECKING:
    from .files import BAR, Agreement, part_that_exports, to_onnx, to_program

__all__ = ["BAR", "Agreement", "fold", "for_inference", "part_that_exports", "to_onnx", "to_program"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module 'cgnl.export' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(".files", __name__), name)
    except ModuleNotFoundError as error:
        raise with_extra(error, "export") from None
