"""Ranks for tests beside the suite that each engine passes, which is `tests/process/engines`."""

from tests.process.engines.conftest import rank_pool

__all__ = ["rank_pool"]
