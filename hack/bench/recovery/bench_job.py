"""The job that the trials are made with: 64 MiB of weights, on the local cluster."""

import time
from dataclasses import dataclass, field
from typing import Any

from hack.bench.recovery.job_state_stream import JobStateStream, StreamedState
from hack.bench.recovery.pod_processes import WorkerProcess, worker, workers
from hack.bench.recovery.worker_log import LoggedStep, WorkerLog
from hack.cluster.examples import example
from hack.cluster.installation import RELEASE, SYSTEM_NAMESPACE
from hack.cluster.kubectl import Kubectl, wait_for
from rollcall_protocol import pod_contract

JOB, POOL = "reverse", "reverse-cpu"
TRAINER = f"{JOB}-trainer-0"
NAMESPACE = "bench-recovery"
CLAIM = "checkpoints"
EVERY_STEPS = 5
START_SECONDS = 180.0
SETTLE_STEPS = 3
SUSPECT_AFTER_MS = 700
NEVER_MS = 3_600_000  # longer than any trial
# What a worker uses of a core. With less its node's own daemons come first, and they are busy with
# the container that was killed.
CPU = "300m"
# Connections to each peer, each with a thread: as many as there are cores. More make a session
# slower to form, and the transfer not faster.
THREADS = 2

# Steps of a few tenths of a second: the weights are large, the batches small.
ALGORITHM = {"maxSteps": 1_000_000, "promptsPerStep": 4, "groupSize": 4}


@dataclass(frozen=True, slots=True)
class BenchJobSettings:
    """What differs between the jobs of the events.

    Without `detection` a silent member is not noticed within a trial: only the transport's own
    time-out ends what waits for it.
    """

    rollouts: int
    checkpoint: bool = False
    detection: bool = True
    weight_sync: dict[str, Any] = field(default_factory=dict)


def manifests(settings: BenchJobSettings) -> list[dict[str, Any]]:
    """The job, and the volume of its checkpoints if it has one."""
    job = example("reverse.yaml", **ALGORITHM)
    spec = job["spec"]
    spec["model"]["path"] = "builtin:reverse-64m"
    spec["rollouts"][0]["replicas"] = settings.rollouts
    for part in (spec["trainer"], spec["rollouts"][0]):
        part["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = CPU
    spec["trainer"]["engine"] = {"name": "fsdp2", "config": {"minibatches": 1}}
    spec["weightSync"] = {"config": {"threads": THREADS}} | settings.weight_sync
    # A container that was killed must come back by itself, or by the bench.
    spec["membership"] = {
        "replaceAfterSeconds": 0,
        "heartbeatMilliseconds": SUSPECT_AFTER_MS // 3,
        "suspectAfterMilliseconds": SUSPECT_AFTER_MS if settings.detection else NEVER_MS,
    }
    spec["failurePolicy"] = {"maxRestarts": 1000}
    if not settings.checkpoint:
        return [job]
    volume = {"persistentVolumeClaim": {"claimName": CLAIM}}
    spec["trainer"]["checkpoint"] = {"everySteps": EVERY_STEPS, "volume": volume}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "2Gi"}},
        },
    }
    return [claim, job]


class BenchJob:
    """Use as a context manager: made on entering, gone with its namespace on leaving."""

    stream: JobStateStream
    trainer_log: WorkerLog
    trainer: WorkerProcess

    def __init__(self, cluster: Kubectl, settings: BenchJobSettings) -> None:
        self._cluster, self.settings = cluster, settings
        self.kubectl = cluster.within(NAMESPACE)

    def __enter__(self) -> "BenchJob":
        self._remove()
        self._cluster.run("create", "namespace", NAMESPACE)
        self.kubectl.apply(*manifests(self.settings))
        try:
            self.follow()
            self.serving(self.settings.rollouts)
            self.steps(SETTLE_STEPS + 2)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self._remove()

    def follow(self, process: WorkerProcess | None = None, *, restarts: int = 0) -> None:
        """Follow one start of the trainer's container, by default the first one of its pod."""
        pod = wait_for("the trainer's pod", self._trainer_pod, seconds=START_SECONDS)
        uid = pod["metadata"]["uid"]
        self.trainer = process or worker(uid, seconds=START_SECONDS)
        self.trainer_log = WorkerLog(uid, restarts=restarts)
        self._connect(pod["status"]["podIP"])

    def _connect(self, address: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.stream = JobStateStream(
                    self.trainer, address=address, token=self._make_token()
                )
            except OSError:
                if time.monotonic() > deadline or not self.trainer.alive():
                    raise
                time.sleep(0.05)
            else:
                return

    def serving(self, rollouts: int, *, seconds: float = START_SECONDS) -> StreamedState:
        """Wait until as many rollouts, and no others, are in sync in one session."""
        return self.stream.until(
            lambda seen: (
                len(seen.in_sync) == rollouts == len(seen.state.members)
                and seen.members == rollouts + 1
            ),
            seconds=seconds,
        )

    def steps(self, count: int, *, seconds: float = 60.0) -> None:
        """Wait for some more steps."""
        at = time.time()
        self.trainer_log.wait(LoggedStep, after=at, seconds=seconds)
        seen = [s.number for s in self.trainer_log.steps()][-1] + count - 1
        self.trainer_log.wait(
            LoggedStep, after=at, seconds=seconds, that=lambda s: s.number >= seen
        )

    def rollouts(self) -> dict[str, WorkerProcess]:
        """The processes of all members, by pod uid."""
        return workers(member.pod_uid for member in self.stream.history[-1].state.members)

    def pod_name(self, uid: str) -> str:
        """The name of the pod with this uid. StopIteration if the newest state lacks it."""
        members = self.stream.history[-1].state.members
        return next(member.pod for member in members if member.pod_uid == uid)

    def pods(self) -> dict[str, str]:
        """The addresses of all rollouts' pods by uid, empty before they have one."""
        pods = self.kubectl.rollouts(JOB)
        return {pod["metadata"]["uid"]: pod["status"].get("podIP", "") for pod in pods}

    def delete_now(self, *pods: str) -> None:
        """Delete pods without a grace period; does not wait."""
        self.kubectl.run("delete", "pod", *pods, "--grace-period=0", "--force", "--wait=false")

    def _trainer_pod(self) -> dict[str, Any] | None:
        pod = self.kubectl.get("pod", TRAINER)
        here = pod["status"].get("podIP") and "deletionTimestamp" not in pod["metadata"]
        return pod if here else None

    def _make_token(self) -> str:
        """A token of the operator for the job, which coordinators take."""
        job = self.kubectl.job(JOB)
        return self._cluster.run(
            "create",
            "token",
            RELEASE,
            "--namespace",
            SYSTEM_NAMESPACE,
            "--audience",
            pod_contract.audience(job["metadata"]["uid"]),
        ).strip()

    def _remove(self) -> None:
        self._cluster.run(
            "delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s", seconds=130
        )
