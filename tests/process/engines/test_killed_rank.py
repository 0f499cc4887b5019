"""A rank that is killed ends the others: they raise, and wait for nothing without a bound."""

import time

import pytest

from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import EngineOnRanks, Model
from tests.process.engines.suite_batches import Rows

SECONDS = 45.0  # a little more than what a rank waits for another one


@pytest.mark.meshes(*meshes.PAIRS, meshes.DP2_CP2)
def test_the_other_ranks_raise(engine: EngineOnRanks, model: Model) -> None:
    engine.open(model("qwen3"))
    engine.train(Rows(1))
    engine.ranks.kill(1)
    began = time.monotonic()
    engine.ranks.begin("forward_backward", rows={"seed": 2})
    replies = engine.ranks.replies(seconds=SECONDS)
    assert time.monotonic() - began < SECONDS
    assert replies[1] is None
    alive = [reply for rank, reply in enumerate(replies) if rank != 1]
    assert all(reply is not None and "error" in reply for reply in alive)
