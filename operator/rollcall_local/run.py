"""`rollcall local run`: a job with all that belongs to it, as processes of this machine."""

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcall_cli.cluster import open_cluster
from rollcall_cli.job_record import read_job
from rollcall_cli.job_summary import learning
from rollcall_cli.screens import learning_words
from rollcall_local.api_server.errors import ApiStatusError
from rollcall_local.kubelet.marks import containers
from rollcall_local.kubelet.pod_runner import UID_LETTERS
from rollcall_local.kubelet.processes import OWN_RUNTIME
from rollcall_local.local_cluster import LocalCluster, local_cluster
from rollcall_local.machine_check import read_here
from rollcall_local.manifests import ManifestError, Manifests
from rollcall_local.state_folder import StateFolder, home
from rollcall_operator.kube.resources import RL_JOBS

Object = dict[str, Any]
Say = Callable[[str], None]

MANAGER = "rollcall-local"
EXIT_OK, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130
_LOOK_SECONDS = 0.5
_FINISHED = {"Succeeded": EXIT_OK, "Failed": EXIT_FAILED}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command was given.

    Attributes:
        files: manifests.
        folders: folders with a kustomization.
        images: environments (their Python) by image name.
        name: of the run; empty takes that of its first job.
    """

    files: list[Path]
    folders: list[Path]
    images: Mapping[str, Path]
    name: str = ""


def run(options: RunOptions, *, say: Say) -> int:
    """Run until every job is over, or until Ctrl-C; the exit code.

    Raises ManifestError, StateFolderError, NoAddressError, OSError.
    """
    manifests = read_here(options.files, options.folders, images=options.images)
    folder = StateFolder(home() / (options.name or manifests.jobs[0]["metadata"]["name"]))
    folder.hold()
    logging.raiseExceptions = False  # a full disk takes no log
    logging.basicConfig(filename=folder.path / "local.log", level=logging.INFO)
    _end_leftovers(folder, say)
    return asyncio.run(_Run(folder, manifests, options.images, say).run())


class _Run:
    def __init__(
        self, folder: StateFolder, manifests: Manifests, images: Mapping[str, Path], say: Say
    ) -> None:
        self._folder, self._manifests, self._images = folder, manifests, images
        self._say = say
        self._interrupted = asyncio.Event()
        self._shown: dict[str, str] = {}
        self._disk_problem = ""

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupted.set)
        namespaces = {body["metadata"]["namespace"] for body in self._manifests.objects}
        async with local_cluster(
            self._folder,
            namespaces=namespaces,
            images=self._images,
            imported_with=_imported_with(self._manifests),
        ) as cluster:
            self._apply(cluster)
            code = await self._follow(cluster)
            await self._end(cluster)
        return code

    def _apply(self, cluster: LocalCluster) -> None:
        for body in self._manifests.objects:
            resource = self._manifests.resource(body)
            try:
                cluster.store.apply(resource, body, manager=MANAGER, force=True)
            except ApiStatusError as error:
                raise ManifestError(str(error)) from error
            self._say(f"{body['kind']} {body['metadata']['name']}: applied")
        self._say_of_ended(cluster)

    def _say_of_ended(self, cluster: LocalCluster) -> None:
        """A job that was over before this run stays over, as in a cluster."""
        for job in self._jobs(cluster):
            name, phase = job["metadata"]["name"], (job.get("status") or {}).get("phase", "")
            if phase in _FINISHED:
                run = "" if self._folder.path.name == name else f" --run {self._folder.path.name}"
                self._say(
                    f"{name}: is over since an earlier run and stays {phase}; to start it from its "
                    f"first step, `rollcall local delete {name}{run}`, then run it again"
                )

    async def _follow(self, cluster: LocalCluster) -> int:
        """Say what the jobs do until all are over."""
        stopped = asyncio.create_task(self._interrupted.wait())
        try:
            while True:
                jobs = self._jobs(cluster)
                for job in jobs:
                    self._show(job)
                self._show_disk(cluster.disk_problem)
                ends = [_FINISHED.get((job.get("status") or {}).get("phase", "")) for job in jobs]
                codes = [code for code in ends if code is not None]
                if len(codes) == len(jobs):
                    return max(codes, default=EXIT_OK)
                done, _ = await asyncio.wait(
                    {stopped, *cluster.parts},
                    timeout=_LOOK_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for part in done - {stopped}:
                    part.result()
                if self._interrupted.is_set():
                    return EXIT_INTERRUPTED
        finally:
            stopped.cancel()

    def _jobs(self, cluster: LocalCluster) -> list[Object]:
        """Those that are still there: a user may have deleted others."""
        places = [body["metadata"] for body in self._manifests.jobs]
        found = [cluster.store.find(RL_JOBS, at["namespace"], at["name"]) for at in places]
        return [job for job in found if job is not None]

    def _show(self, job: Object) -> None:
        """One line, when it says something new."""
        status = job.get("status") or {}
        progress = status.get("progress") or {}
        reward = progress.get("rolloutReward")
        line = f"{status.get('phase', 'Pending')}  step {progress.get('step', 0)}"
        line += f"/{progress['maxSteps']}" if progress.get("maxSteps") else ""
        line += f"  reward {reward}" if reward else ""
        line += f"  rollouts {status.get('rollouts', '0/0')}"
        reason = learning(status)
        line += f"  {learning_words(reason)}" if reason else ""
        name = job["metadata"]["name"]
        if self._shown.get(name) != line:
            self._shown[name] = line
            self._say(f"{name}: {line}")

    def _show_disk(self, problem: str) -> None:
        if problem != self._disk_problem:
            self._disk_problem = problem
            what = "free some space; jobs go on, and a restart loses what is not written now"
            self._say(f"{problem}: {what}" if problem else "objects are written again")

    async def _end(self, cluster: LocalCluster) -> None:
        """Write reports, let the workers write what they keep, and end them."""
        await self._report(cluster)
        if self._interrupted.is_set():
            self._say("ending; the job goes on from its last checkpoint when it is run again")
        await cluster.end_pods()

    async def _report(self, cluster: LocalCluster) -> None:
        """Of each job that has made a step: its figures are kept in the trainer's process."""
        from rollcall_cli.html_report.page import render  # noqa: PLC0415 - matplotlib, for this alone

        kubeconfig = str(self._folder.kubeconfig)
        for job in self._jobs(cluster):
            metadata = job["metadata"]
            async with open_cluster(kubeconfig=kubeconfig) as (client, _):
                record = await read_job(
                    client, namespace=metadata["namespace"], name=metadata["name"]
                )
            if record.samples:
                lines = [sample.line() for sample in record.samples]
                self._folder.samples(record.name).write_bytes(b"".join(lines))
            if record.steps:
                path = self._folder.path / f"{metadata['name']}-report.html"
                page = await asyncio.to_thread(render, record)
                try:
                    path.write_text(page, encoding="utf-8")
                except OSError as error:
                    self._say(f"{metadata['name']}: no report: {path}: {error.strerror}")
                else:
                    self._say(f"{metadata['name']}: report in {path}")


def _imported_with(manifests: Manifests) -> dict[str, str]:
    """The variables, of those that matter at the import of torch, that most containers have."""
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    for job in manifests.jobs:
        spec = job["spec"]
        for part in (spec["trainer"], *(spec.get("rollouts") or ())):
            for container in part["template"]["spec"]["containers"]:
                values = {v["name"]: v["value"] for v in container.get("env") or () if "value" in v}
                found[tuple((n, values[n]) for n in OWN_RUNTIME if n in values)] += 1
    return dict(found.most_common(1)[0][0]) if found else {}


def _end_leftovers(folder: StateFolder, say: Say) -> None:
    """Processes of an earlier run that was killed, on a machine that did not end them."""
    pods = {path.name for path in folder.path.glob("pods/*/*/*")}
    for pid, container in containers().items():
        if container[:UID_LETTERS] in pods:
            say(f"process {pid} was left by an earlier run of {folder.path.name}: it is ended")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
