"""Coordinators for many jobs in one process: they take rosters and report a step each second.

    python -m hack.bench.operator_load.fake_coordinators KUBECONFIG NAMESPACE [--no-steps]
        [--only JOB ... | --but JOB ...] [--hostile]

Trainer pods have addresses of this machine, at which it listens. Which pod is meant is read from
the address, and the certificate of its job from its Secret, by the name that the client asks for. A
stopped process (SIGSTOP) is coordinators that do not answer. Hostile ones answer the operator's
stream in the ways of hack.attacks.hostile_service, another one each time that it asks, and leave
the processor to others.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import os
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from hack.attacks.hostile_service import ANSWERS, BODIES, COMPRESSED, REDIRECT
from rollcall_operator.api import labels
from rollcall_operator.kube.resources import PODS, SECRETS
from rollcall_operator.kube.watch import Watch
from rollcall_protocol import pod_contract
from rollcall_protocol.wire.job_snapshot import JobSnapshot, TrainingProgress
from rollcall_runtime.coordinator.roster_push import handle_roster_push
from rollcall_runtime.coordinator.state_stream import StateStream
from tests.apiserver.cluster_user import open_user
from tests.unit.rollcall_operator.plan.coordinator_snapshots import snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rollcall_operator.kube.client import KubeClient, Object
    from rollcall_protocol.wire.roster import Roster

STEP_SECONDS = 1.0
LEAST_PRIORITY = 19


class FakeCoordinator:
    """Reports as the coordinator of one trainer pod; no worker of the job runs."""

    def __init__(self, pod_uid: str, way: int) -> None:
        """`way`: the first one in which it is hostile, if it is."""
        self.pod_uid, self.way = pod_uid, way
        self.roster: Roster | None = None
        self.step = 0
        self.stream = StateStream(self.snapshot)

    def take(self, roster: Roster) -> None:
        """The operator pushes it."""
        self.roster = roster
        self.stream.changed()

    def advance(self) -> None:
        """Report one more training step to the operator."""
        self.step += 1
        self.stream.changed()

    def snapshot(self) -> JobSnapshot:
        """All members hold the weights of the step."""
        progress = TrainingProgress(self.step, 1_000_000, self.step, rollout_reward=0.5)
        if self.roster is not None:
            return snapshot_of(self.roster, progress, groups=["default"])
        return JobSnapshot(self.pod_uid, 1, 0, "", (), progress)


def _refuse(why: str) -> None:
    raise RuntimeError(f"the operator has pushed a roster that is {why}")


class FakeCoordinators:
    """By the address of their pods; `contexts` by the name in the certificate.

    They play the pods whose name `plays` chooses. `addresses` are those to listen at from now on.
    """

    def __init__(self, folder: Path, plays: Callable[[str], bool], *, hostile: bool) -> None:
        self._folder, self._plays, self._hostile = folder, plays, hostile
        self.addresses: asyncio.Queue[str] = asyncio.Queue()
        self.by_address: dict[str, FakeCoordinator] = {}
        self.contexts: dict[str, ssl.SSLContext] = {}

    def pod(self, _: Object | None, now: Object | None) -> None:
        """A trainer pod has changed."""
        address = ((now or {}).get("status") or {}).get("podIP")
        if now is not None and address and self._plays(now["metadata"]["name"]):
            uid = now["metadata"]["uid"]
            known = self.by_address.get(address)
            if known is None:
                self.addresses.put_nowait(address)
            if known is None or known.pod_uid != uid:
                self.by_address[address] = FakeCoordinator(uid, way=len(self.by_address))

    def secret(self, _: Object | None, now: Object | None) -> None:
        """A job's certificate was made."""
        if now is None or now.get("type") != "kubernetes.io/tls":
            return
        name = now["metadata"]["name"]
        files = [self._folder / f"{name}.{part}" for part in ("crt", "key")]
        for file, part in zip(files, ("tls.crt", "tls.key"), strict=True):
            file.write_bytes(base64.b64decode(now["data"][part]))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files[0], files[1])
        self.contexts[name] = context

    def choose(self, connection: Any, host: str | None, _: ssl.SSLContext) -> int | None:
        """By the host `<trainer pod>.<service>.<namespace>.svc`."""
        service = (host or "").split(".")[1:2]
        found = self.contexts.get(labels.certificate_name(service[0])) if service else None
        if found is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = found
        return None

    def of(self, request: web.Request) -> FakeCoordinator:
        """The coordinator that a request is for."""
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        if address not in self.by_address:
            raise web.HTTPServiceUnavailable
        return self.by_address[address]

    async def serve_stream(self, request: web.Request) -> web.StreamResponse:
        """GET of the operator's stream."""
        found = self.of(request)
        return await (_attack(request, found) if self._hostile else found.stream.serve(request))

    async def take_roster(self, request: web.Request) -> web.Response:
        """PUT of a roster."""
        return await handle_roster_push(request, self.of(request).take, _refuse)

    async def advance(self) -> None:
        """Each makes a step each second, spread over it."""
        while True:
            each = list(self.by_address.values())
            pause = STEP_SECONDS / max(1, len(each))
            for coordinator in each:
                coordinator.advance()
                await asyncio.sleep(pause)
            if not each:
                await asyncio.sleep(STEP_SECONDS)


async def _attack(request: web.Request, coordinator: FakeCoordinator) -> web.StreamResponse:
    how = ANSWERS[coordinator.way % len(ANSWERS)]
    coordinator.way += 1
    if how == REDIRECT:
        raise web.HTTPTemporaryRedirect("/v1/elsewhere")
    packed = {"Content-Encoding": "gzip"} if how == COMPRESSED else {}
    response = web.StreamResponse(headers=packed)
    await response.prepare(request)
    parts = BODIES[how](coordinator.pod_uid)
    with contextlib.suppress(ConnectionError):
        while part := await asyncio.to_thread(next, parts, b""):
            await response.write(part)
    return response


async def serve(
    kubeconfig: Path, namespace: str, plays: Callable[[str], bool], *, steps: bool, hostile: bool
) -> None:
    """Play the coordinators of `namespace` in the pods whose name `plays` chooses, until cancelled;
    with `steps` they train.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = FakeCoordinators(Path(folder), plays, hostile=hostile)
        async with (
            open_user(kubeconfig, namespace=namespace, keep=True) as user,
            asyncio.TaskGroup() as group,
        ):
            for watch in _watches(user.client, namespace, made):
                group.create_task(watch.run())
            group.create_task(_listen(made))
            if steps:
                group.create_task(made.advance())


def _watches(
    client: KubeClient, namespace: str, made: FakeCoordinators
) -> tuple[Watch[Object], ...]:
    def watch(resource: Any, changed: Any, selector: str = "") -> Watch[Object]:
        return Watch(
            client,
            resource,
            namespace=namespace,
            labels=selector,
            reduce=lambda found: found,
            changed=changed,
            delay=lambda _: 1.0,
        )

    trainers = f"{labels.ROLE}={labels.TRAINER}"
    return watch(PODS, made.pod, trainers), watch(SECRETS, made.secret)


async def _listen(made: FakeCoordinators) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = made.choose
    app = web.Application()
    app.router.add_get(pod_contract.OPERATOR_STREAM_ROUTE, made.serve_stream)
    app.router.add_put(pod_contract.ROSTER_ROUTE, made.take_roster)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    while True:  # another program of the machine may listen at the port of another address
        address = await made.addresses.get()
        site = web.TCPSite(runner, address, pod_contract.MEMBERSHIP_PORT, ssl_context=context)
        await site.start()


def main() -> None:
    """Serve until the process ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("namespace")
    parser.add_argument("--no-steps", dest="steps", action="store_false")
    jobs = parser.add_mutually_exclusive_group()
    jobs.add_argument("--only", nargs="+", metavar="JOB")
    jobs.add_argument("--but", nargs="+", metavar="JOB", default=[])
    parser.add_argument("--hostile", action="store_true")
    options = parser.parse_args()
    only, but = _pods(options.only or ()), _pods(options.but)
    if options.hostile:
        os.nice(LEAST_PRIORITY)  # elsewhere they would have processors of their own
    asyncio.run(
        serve(
            options.kubeconfig,
            options.namespace,
            lambda pod: pod in only if only else pod not in but,
            steps=options.steps,
            hostile=options.hostile,
        )
    )


def _pods(jobs: Iterable[str]) -> set[str]:
    return {labels.coordinator_pod(job) for job in jobs}


if __name__ == "__main__":
    main()
