"""Networks as files that run elsewhere (ONNX, torch.export programs), and ready for serving."""

from .files import BAR, Agreement, part_that_exports, to_onnx, to_program
from .serving import fold, for_inference

__all__ = ["BAR", "Agreement", "fold", "for_inference", "part_that_exports", "to_onnx", "to_program"]
