"""The core's inference engines, for the tests of this folder."""

from tests.unit.rollcall_runtime.rollout.engines.served_engine import (
    TINY,
    TRANSFORMERS,
    fixtures_of,
)

directory, served, engine = fixtures_of(TINY, TRANSFORMERS)
