"""Attacks on a job of real workers: refused, counted, and training goes on.

`make attacks` does all of them, and measures memory and steps as well.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hack.attacks.attack import Attack
from hack.attacks.catalogue import all_attacks
from hack.attacks.runner import AttackRunner
from hack.attacks.target import attacked_job

pytestmark = pytest.mark.slow

SEED = 1


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def runner(
    tmp_path_factory: pytest.TempPathFactory, one_runtime: None
) -> AsyncIterator[AttackRunner]:
    """One job for all attacks of this module."""
    async with attacked_job(tmp_path_factory.mktemp("attacks"), seed=SEED) as job:
        yield AttackRunner(job)


@pytest.mark.parametrize("attack", [a for a in all_attacks() if a.quick], ids=lambda a: a.name)
async def test_it_is_refused_and_training_goes_on(runner: AttackRunner, attack: Attack) -> None:
    outcome = await runner.run(attack)
    assert outcome.failures() == []
