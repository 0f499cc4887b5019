"""The least that a scale-up could take: as many interpreters that import PyTorch and do no more.

They are pods of their own on the worker's image, with a worker's request, beside the job.
"""

from typing import Any

from hack.bench.recovery.bench_job import CPU, BenchJob
from hack.bench.recovery.scale_up import FEW, MANY, SCALE_SECONDS
from hack.bench.recovery.trial_statistics import TrialResult
from hack.cluster.examples import WORKER_IMAGE

NAME = "imports"
CODE = "import time; at = time.time(); import torch; print(at, time.time())"


def imports(job: BenchJob) -> list[TrialResult]:
    """From the start of the last interpreter until all have imported PyTorch."""
    job.kubectl.apply(_manifest(MANY - FEW))
    try:
        job.kubectl.run(
            "wait",
            f"job/{NAME}",
            "--for=condition=complete",
            f"--timeout={SCALE_SECONDS:.0f}s",
            seconds=SCALE_SECONDS + 10,
        )
        lines = job.kubectl.run("logs", f"--selector=job-name={NAME}").splitlines()
    finally:
        job.kubectl.run("delete", f"job/{NAME}", "--cascade=foreground")
    starts, ends = zip(*(map(float, line.split()) for line in lines), strict=True)
    job.steps(2)
    apart = {"starts_apart": max(starts) - min(starts)}
    return [TrialResult("scale_up_limit", max(ends) - max(starts), apart)]


def _manifest(pods: int) -> dict[str, Any]:
    container = {
        "name": NAME,
        "image": WORKER_IMAGE,
        "command": ["python", "-c", CODE],
        "resources": {"requests": {"cpu": CPU}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": NAME},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }
