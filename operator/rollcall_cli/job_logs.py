"""The logs of a job's trainer and rollouts as one, in the order of time."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcall_cli.job_record import NoSuchJobError
from rollcall_cli.visible_text import visible_lines
from rollcall_operator.api.labels import JOB, ROLE, ROLLOUT, TRAINER
from rollcall_operator.kube.errors import ApiError, UnreachableError
from rollcall_operator.kube.resources import PODS
from rollcall_operator.plan.pod_facts import worker_container

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rollcall_operator.kube.client import KubeClient, Object

MOST_BYTES = 64 << 20  # of one pod
_STEP = re.compile(r"step (\d+): ")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a pod; what is not JSON (a server's own output) has the time of the line before."""

    time: str
    pod: str
    level: str
    message: str
    epoch: int | None = None
    exception: str = ""

    def text(self) -> str:
        """The record as lines to read: time, level, pod, epoch, message, then the exception."""
        epoch = "" if self.epoch is None else f" epoch {self.epoch}"
        more = f"\n{self.exception}" if self.exception else ""
        line = f"{self.time} {self.level:<7} {self.pod}{epoch}: {self.message}{more}"
        return visible_lines(line)  # of containers, which may write what a terminal obeys


async def read_logs(
    client: KubeClient, *, namespace: str, job: str, tail: int, since: int | None
) -> tuple[list[LogLine], list[str]]:
    """The last `tail` lines of each pod, not older than `since` seconds, in the order of time.

    Beside them one sentence for each pod whose log could not be read. NoSuchJobError if the job has
    no pods.
    """
    pods = await client.list(PODS, namespace=namespace, labels=f"{JOB}={job}")
    workers = [pod for pod in pods if _role(pod) in {TRAINER, ROLLOUT}]
    if not workers:
        raise NoSuchJobError(f"there are no pods of a job {job!r} in namespace {namespace!r}")
    asked = {"tailLines": str(tail)} | ({} if since is None else {"sinceSeconds": str(since)})
    texts = await asyncio.gather(
        *(_read(client, namespace, pod, asked) for pod in workers), return_exceptions=True
    )
    lines: list[LogLine] = []
    missing: list[str] = []
    for pod, text in zip(workers, texts, strict=True):
        name = str(pod["metadata"]["name"])
        if isinstance(text, (ApiError, UnreachableError)):
            missing.append(f"the log of {name} could not be read: {text}")
        elif isinstance(text, BaseException):
            raise text
        else:
            lines += parse(name, text.decode(errors="replace"))
    return sorted(lines, key=lambda line: line.time), missing


def parse(pod: str, text: str) -> Iterator[LogLine]:
    """The lines of one pod's log."""
    time = ""
    for line in text.splitlines():
        found = _json(line)
        if found is None:
            yield LogLine(time, pod, "", line)
            continue
        time = str(found["time"])
        epoch = found.get("epoch")
        yield LogLine(
            time,
            str(found.get("pod", pod)),
            str(found.get("level", "")),
            str(found.get("message", "")),
            epoch if isinstance(epoch, int) else None,
            str(found.get("exception", "")),
        )


def of_epoch(lines: Iterable[LogLine], epoch: int) -> list[LogLine]:
    """Those that were written in an epoch."""
    return [line for line in lines if line.epoch == epoch]


def of_step(lines: Sequence[LogLine], step: int) -> list[LogLine]:
    """All that was written after the trainer's line about the step before, to that about `step`."""
    ends: dict[int, int] = {}
    for at, line in enumerate(lines):
        made = _STEP.match(line.message)
        if made:
            ends.setdefault(int(made[1]), at)
    if step not in ends:
        return []
    return list(lines[ends.get(step - 1, -1) + 1 : ends[step] + 1])


async def _read(client: KubeClient, namespace: str, pod: Object, query: dict[str, str]) -> bytes:
    return await client.read_log(
        namespace=namespace,
        name=pod["metadata"]["name"],
        query={"container": worker_container(pod), **query},
        most_bytes=MOST_BYTES,
    )


def _role(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(ROLE, ""))


def _json(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "time" in found else None
