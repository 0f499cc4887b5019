"""The suite for inference engines, on this one."""

from tests.unit.rollcall_runtime.rollout.engines.served_engine import ServedCase, fixtures_of
from tests.unit.rollcall_runtime.rollout.engines.test_conformance import *  # noqa: F403

directory, served, engine = fixtures_of(ServedCase("example.my-inference"))
