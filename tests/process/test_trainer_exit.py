"""How a trainer ends: exit code 0 means that a signal stopped it, and nothing else."""

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import CheckpointConfig
from rollcall_protocol.pod_contract import ExitCode
from tests.process import odd_engine
from tests.process.harness import ENDLESS, FAST, START_SECONDS, STEP_SECONDS, LocalJob, in_sync
from tests.process.pods import Pod
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROBE_SECONDS = 5.0  # the liveness probe's time limit
EXIT_SECONDS = 20.0


async def probe(pod: Pod) -> int:
    """What the kubelet's liveness probe gets."""
    url = f"http://{pod.address}:{pod_contract.METRICS_PORT}/healthz"
    limit = aiohttp.ClientTimeout(total=PROBE_SECONDS)
    async with aiohttp.ClientSession(timeout=limit) as session, session.get(url) as answer:
        return answer.status


async def test_a_trainer_answers_its_liveness_probe_while_an_engine_opens(tmp_path: Path) -> None:
    async with LocalJob(tmp_path, job_config(algorithm=ENDLESS, membership=FAST)) as job:
        job.trainer.imports = odd_engine.__name__
        job.trainer.variables[odd_engine.VARIABLE] = "slow"
        await job.trainer.start()
        await job.trainer.logs_line(odd_engine.OPENING, seconds=START_SECONDS)
        await asyncio.sleep(odd_engine.STUCK_SECONDS + 2)
        assert await probe(job.trainer) == 200
        assert odd_engine.OPENED not in job.trainer.log(), "it answered meanwhile"


async def test_a_trainer_that_a_library_ends_with_code_0_has_failed(tmp_path: Path) -> None:
    async with LocalJob(tmp_path, job_config(algorithm=ENDLESS, membership=FAST)) as job:
        job.trainer.imports = odd_engine.__name__
        job.trainer.variables[odd_engine.VARIABLE] = "exit"
        await job.trainer.start()
        assert await job.trainer.exited(seconds=START_SECONDS) == ExitCode.FAILED
        assert "SystemExit: 0 (odd_engine.py:" in job.trainer.log()


async def test_a_rank_that_rank_0_leaves_behind_starts_again_with_it(tmp_path: Path) -> None:
    config = job_config(
        algorithm=ENDLESS,
        membership=FAST,
        trainer_replicas=2,
        checkpoint=CheckpointConfig(1000, str(tmp_path / "saved")),
    )
    async with LocalJob(tmp_path, config) as job:
        await job.train(rollouts=1)
        leader, other = job.trainers
        leader.send(signal.SIGTERM)
        assert await leader.exited(seconds=EXIT_SECONDS) == ExitCode.OK
        assert "stopped by SIGTERM after step" in leader.log()
        assert await other.exited(seconds=EXIT_SECONDS) == ExitCode.FAILED
        assert "rank 0 has stopped, and this rank got no SIGTERM" in other.log()
        await leader.start()
        await other.start()
        seen = await job.operator.until(
            lambda s: s.boot == 2 and in_sync(s, *job.rollouts), seconds=START_SECONDS
        )
        assert seen.snapshot.progress.step >= 5, "it saved what would have been lost"
        await job.steps(5, seconds=STEP_SECONDS)
