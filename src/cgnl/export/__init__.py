"""Files that run elsewhere: ONNX, torch.export's programs, and networks whose norms are folded away."""

from .agreement import BAR, Agreement
from .folding import fold
from .onnx import to_onnx
from .program import part_that_exports, to_program

__all__ = ["BAR", "Agreement", "fold", "part_that_exports", "to_onnx", "to_program"]
