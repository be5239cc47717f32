"""The tests. This is set before torch is imported, as the command does it."""

import os

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
