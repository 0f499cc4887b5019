"""One trainer and one rollout do a few steps, then end in order."""

import json
import signal
from pathlib import Path

from tests.process.harness import FAST, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config


async def test_a_job_of_three_steps_finishes(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    sync = {"config": {"threads": 1}, "profile_path": str(traces)}
    config = job_config(algorithm={"max_steps": 3}, membership=FAST, weight_sync=sync)
    async with LocalJob(tmp_path, config) as job:
        await job.start(rollouts=1)
        seen = await job.finished(seconds=30)
        assert seen.snapshot.finished is not None
        assert (seen.snapshot.finished.step, seen.snapshot.finished.error) == (3, "")
        assert seen.snapshot.progress.weight_version == 3
        values = await job.rollouts[0].metrics()
        assert values["weight_version"] == 3
        assert values["rollout_samples_total"] >= 3 * 16 * 16
        for pod in (job.rollouts[0], job.trainer):
            pod.send(signal.SIGTERM)
            assert await pod.exited(seconds=10) == 0
    calls = {}
    for file in traces.iterdir():
        names = [event.get("name") for event in json.loads(file.read_text())]
        calls[file.name.partition("-")[0]] = (names.count("publish"), names.count("receive"))
    assert calls["sender"][0] >= calls["receiver"][1] >= 3, "each process traced what it did"
