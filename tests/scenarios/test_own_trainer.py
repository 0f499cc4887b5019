"""A trainer of the user's own, in two pods of two ranks that torchrun starts."""

from pathlib import Path

import pytest

from tests.scenarios.conftest import Apply
from tests.scenarios.job import STARTED, Object, example, in_sync

PROGRAM = Path(__file__).with_name("sharded_program.py")
STEPS = 60
START = """
printenv PROGRAM > "$ROLLCALL_STATE_DIR/program.py"
exec torchrun --nproc-per-node=2 "$ROLLCALL_STATE_DIR/program.py" "$0"
"""


def sharded(name: str) -> Object:
    """Its ranks send a quarter of the weights each, and check what the rollouts sample."""
    body = example("plain-loop/rljob.yaml", name=name)
    trainer = body["spec"]["trainer"]
    trainer["replicas"] = 2
    pod = trainer["template"]["spec"]
    (container,) = pod["containers"]
    container["command"] = ["sh", "-c", START, str(STEPS)]
    container["env"].append({"name": "PROGRAM", "value": PROGRAM.read_text(encoding="utf-8")})
    del pod["volumes"], container["volumeMounts"]
    return body


@pytest.mark.slow
@pytest.mark.timeout(4 * STARTED)  # it waits four times
async def test_ranks_of_two_pods_send_their_parts(applied: Apply, job_name: str) -> None:
    job = await applied(sharded(job_name))
    await job.until(lambda seen: in_sync(seen) == 2)
    await job.reaches(3)
    victim = (await job.rollouts())[0]
    await job.kill(victim)
    seen = await job.until(lambda seen: seen["phase"] in {"Succeeded", "Failed"}, seconds=STARTED)
    assert seen["phase"] == "Succeeded", seen
