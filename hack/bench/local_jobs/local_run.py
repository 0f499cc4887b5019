"""A job that a user runs by `rollcall local run`, changed and observed from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import yaml

from hack.bench.local_jobs.process_times import started, tree_cpu_seconds
from hack.bench.recovery.worker_log import WorkerLogEvent, event, parse_said
from hack.bench.run_record import ROOT
from hack.local_question import ask
from rollcall_cli.job_actions import kill, scale
from rollcall_local.kubelet.marks import containers
from rollcall_local.kubelet.pod_runner import UID_LETTERS
from rollcall_local.state_folder import StateFolder
from rollcall_operator.api.labels import JOB as JOB_LABEL
from rollcall_operator.api.labels import ROLE, ROLLOUT
from rollcall_operator.kube.resources import PODS

JOB, POOL = "reverse", "reverse-cpu"
TRAINER = f"{JOB}-trainer-0"
END_SECONDS = 90.0
LOOK_SECONDS = 0.1
_CHECKPOINTS = "checkpoints"

E = TypeVar("E", bound=WorkerLogEvent)


class LocalRun:
    """`home` is where the run's folder is made. Started by `with`, and ended by leaving it.

    `documents` are the job and what it needs; see `manifests`. All times are those of time.time().
    """

    def __init__(self, home: Path, documents: Sequence[Mapping[str, Any]]) -> None:
        self._home, self._folder = home, StateFolder(home / JOB)
        self._documents = documents
        self.environment = os.environ | {"ROLLCALL_LOCAL_HOME": str(home)}

    def __enter__(self) -> Self:
        manifest = self._home / "job.yaml"
        manifest.write_text(yaml.safe_dump_all(self._documents))
        words = ["-m", "rollcall_cli.main", "local", "run", str(manifest)]
        self._log = self._home / "run.log"
        self.began = time.time()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words], env=self.environment, stdout=log, stderr=log
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # upon which its processes end
            self._process.wait()

    def cpu_seconds(self) -> float:
        """Of all of its processes so far, the API server's, the operator's and those of pods."""
        return tree_cpu_seconds(self._process.pid)

    def trainers(self) -> set[Path]:
        """The folders of all pods that the trainer has had."""
        return set(self._folder.path.glob(f"pods/default/{TRAINER}/*"))

    def logged(self, kind: type[E], *, without: Collection[Path] = ()) -> Iterator[E]:
        """What the trainer's pods, `without` some, have said."""
        folders = self.trainers() - set(without)
        for file in sorted(path for folder in folders for path in folder.glob("trainer.*.log")):
            for text in file.read_text(errors="replace").splitlines():
                line = parse_said(text)
                found = event(line) if line is not None else None
                if isinstance(found, kind):
                    yield found

    def until(
        self,
        kind: type[E],
        what: Callable[[E], bool],
        *,
        without: Collection[Path] = (),
        seconds: float = 180.0,
        look_seconds: float = LOOK_SECONDS,
    ) -> E:
        """The first of which `what` holds; TimeoutError, or RuntimeError if the run ends.

        Each look reads all that the pods have said, every `look_seconds`.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = next(filter(what, self.logged(kind, without=without)), None)
            if found is not None:
                return found
            if self._process.poll() is not None:
                raise RuntimeError(f"rollcall local run has ended:\n{self._log.read_text()}")
            time.sleep(look_seconds)
        raise TimeoutError(f"not within {seconds:.0f} s:\n{self._log.read_text()[-2000:]}")

    def rollouts(self) -> dict[str, str]:
        """Names of the rollouts' pods that are not being deleted, by uid."""
        labels = f"{JOB_LABEL}={JOB},{ROLE}={ROLLOUT}"
        pods = ask(self._folder, lambda c: c.list(PODS, namespace="default", labels=labels))
        found = (p["metadata"] for p in pods if "deletionTimestamp" not in p["metadata"])
        return {metadata["uid"]: metadata["name"] for metadata in found}

    def started(self, uid: str) -> float:
        """When the first process of a pod's container was started, as far as it still runs."""
        pids = [pid for pid, name in containers().items() if name.startswith(uid[:UID_LETTERS])]
        return min(map(started, pids))

    def scale(self, replicas: int) -> None:
        """As `rollcall local scale`."""
        ask(self._folder, lambda c: scale(c, namespace="default", pool=POOL, replicas=replicas))

    def kill(self, pod: str) -> float:
        """As `rollcall local kill`; when it was asked for."""
        at = time.time()
        ask(self._folder, lambda c: kill(c, namespace="default", pod=pod))
        return at


def manifests(observe: Mapping[str, Any], trainer: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The example, which goes on for ever and has a volume for checkpoints.

    `observe` is its spec.observe, `trainer` another program in the place of the trainer's.
    """
    job = yaml.safe_load((ROOT / "examples" / "reverse.yaml").read_text())
    job["spec"]["observe"] = observe
    if trainer:
        (container,) = job["spec"]["trainer"]["template"]["spec"]["containers"]
        container["command"] = list(trainer)
        container["env"].append({"name": "PYTHONPATH", "value": str(ROOT)})
    job["spec"]["algorithm"]["maxSteps"] = 1_000_000
    claim = {"persistentVolumeClaim": {"claimName": _CHECKPOINTS}}
    job["spec"]["trainer"]["checkpoint"] = {"everySteps": 20, "volume": claim}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": _CHECKPOINTS},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    return [job, volume]
