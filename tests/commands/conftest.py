"""Fixtures of the rooms whose commands are tested."""

from tests.engine.conftest import _alone, _networks, cgnl, run  # noqa: F401
from tests.experiments.conftest import *  # noqa: F403
from tests.explain.conftest import checkpoint  # noqa: F401
