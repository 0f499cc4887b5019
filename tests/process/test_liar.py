"""A rollout that lies, in every way of `hack.liar` in turn: the job learns without its lies."""

from pathlib import Path

import pytest

from hack.liar.liar_soak import LiarSoak, soaked_job
from hack.soak.fault_plan import FaultKind, PlannedFault

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SECONDS = 30.0


async def test_a_job_learns_beside_a_rollout_that_lies(tmp_path: Path) -> None:
    kill = PlannedFault(number=0, kind=FaultKind.KILL_ROLLOUT, at=10.0, lasts=0.0, pick=0.5)
    async with soaked_job(tmp_path) as job:
        found = await LiarSoak(job, seed=3, say=print).run([kill], SECONDS)
    assert found["violations"] == []
    assert sum(kind["lies"] for kind in found["liars"].values()) > 0, "it lied"
    assert found["steps"] > 0
