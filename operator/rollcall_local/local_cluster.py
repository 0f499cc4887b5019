"""The composition root: everything that stands in for a cluster, started and ended in order."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcall_local.api_server.admission import admit
from rollcall_local.api_server.folder import ObjectFolder
from rollcall_local.api_server.kinds import NAMESPACES
from rollcall_local.api_server.service_tokens import ServiceTokens
from rollcall_local.api_server.store import Entry, Key, Object, ObjectStore
from rollcall_local.controllers.manager import ControllerManager
from rollcall_local.kubelet.addresses import hold_network
from rollcall_local.kubelet.kubelet import Kubelet
from rollcall_local.kubelet.machine import this_machine
from rollcall_local.kubelet.node import Node
from rollcall_local.kubelet.processes import ContainerRuntimes
from rollcall_local.served_store import HOST, served
from rollcall_local.state_folder import StateFolder
from rollcall_operator.api import labels
from rollcall_operator.kube.http_client import open_session
from rollcall_operator.kube.resources import SERVICE_ACCOUNTS

log = logging.getLogger(__name__)

SYSTEM, OPERATOR = "rollcall-system", "rollcall-operator"
_OPERATOR_SECONDS = 30.0  # to end
_MOST_RESTARTS = 5


class OperatorEndedError(Exception):
    """The operator ended again and again; the message says where its log is."""


@dataclass(slots=True)
class LocalCluster:
    """A running API server, controllers, kubelet and operator.

    `parts` are what works in it, the kubelet last: one that ends has failed.
    """

    store: ObjectStore
    parts: tuple[asyncio.Task[None], ...]
    _kubelet: Kubelet
    _kept: ObjectFolder

    @property
    def disk_problem(self) -> str:
        """Why objects cannot be written now, if they cannot."""
        return self._kept.problem

    async def end_pods(self) -> None:
        """End all pods, each in its own time, and nothing starts others in their place.

        Trainers are the last: rollouts hand their samples to them when they drain.
        """
        *makers, _ = self.parts
        for part in makers:
            await _cancelled(part)
        await self._kubelet.close(grace=None, last=_is_trainer)


@asynccontextmanager
async def local_cluster(
    folder: StateFolder,
    *,
    namespaces: set[str],
    images: Mapping[str, Path],
    imported_with: Mapping[str, str],
) -> AsyncIterator[LocalCluster]:
    """Run it as long as the context; `folder` is held.

    `images` are environments (their Python) by image name; torch is imported beforehand with the
    variables `imported_with`. NoAddressError, OSError, ValueError for objects that cannot be read.
    """
    async with AsyncExitStack() as stack:
        addresses = hold_network()
        stack.callback(addresses.close)
        runtimes = ContainerRuntimes(folder.path)
        stack.push_async_callback(runtimes.close)
        runtimes.of(Path(sys.executable), dict(imported_with))
        session = await stack.enter_async_context(open_session(hands_on_redirects=True))
        kept = ObjectFolder(folder.objects)
        listeners: list[ControllerManager | Kubelet] = []

        def changed(key: Key, entry: Entry | None) -> None:
            kept.changed(key, entry)
            for listener in listeners:
                listener.notify(key)

        store = ObjectStore(admit=admit, changed=changed, entries=kept.load())
        tokens = ServiceTokens(folder.key)
        node = Node(
            store=store,
            tokens=tokens,
            machine=this_machine(),
            addresses=addresses,
            runtimes=runtimes,
            session=session,
            folder=folder.path,
            python=Path(sys.executable),
            images=images,
        )
        kubelet, controllers = Kubelet(node), ControllerManager(store)
        listeners += [kubelet, controllers]
        await stack.enter_async_context(served(folder, store, tokens))
        _make_accounts(store, namespaces)
        parts = tuple(
            _started(stack, work, name)
            for work, name in (
                (_keep_operator(folder), "operator"),
                (controllers.run(), "controllers"),
                (kubelet.run(), "kubelet"),
            )
        )
        yield LocalCluster(store, parts, kubelet, kept)


def _is_trainer(pod: Object) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(labels.ROLE) == labels.TRAINER)


def _make_accounts(store: ObjectStore, namespaces: set[str]) -> None:
    """Namespaces and service accounts, which a cluster has before a manifest is applied."""
    for namespace in sorted({SYSTEM, *namespaces}):
        if store.find(NAMESPACES, "", namespace) is None:
            store.create(NAMESPACES, {"metadata": {"name": namespace}})
        for name in ("default", OPERATOR) if namespace == SYSTEM else ("default",):
            if store.find(SERVICE_ACCOUNTS, namespace, name) is None:
                body = {"metadata": {"name": name, "namespace": namespace}}
                store.create(SERVICE_ACCOUNTS, body)


async def _keep_operator(folder: StateFolder) -> None:
    """Run the operator, and start it again when it ends; OperatorEndedError."""
    for number in range(_MOST_RESTARTS + 1):
        code = await _run_operator(folder)
        log.warning("The operator has ended with exit code %d; see %s", code, folder.operator_log)
        await asyncio.sleep(2.0**number / 2)
    raise OperatorEndedError(
        f"the operator has ended {_MOST_RESTARTS + 1} times; see {folder.operator_log}"
    )


async def _run_operator(folder: StateFolder) -> int:
    flags = {
        "--kubeconfig": str(folder.kubeconfig),
        "--reach": "direct",
        "--service-account": f"{SYSTEM}/{OPERATOR}",
        "--lease-namespace": SYSTEM,
        "--http-host": HOST,
        "--http-port": "0",
        "--log-format": "text",
    }
    words = [word for flag in flags.items() for word in flag]
    with folder.operator_log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rollcall_local.operator_process",
            str(os.getpid()),
            "run",
            "--no-leader-elect",
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _OPERATOR_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()


def _started(
    stack: AsyncExitStack, work: Coroutine[Any, Any, None], name: str
) -> asyncio.Task[None]:
    """A task that the stack cancels."""
    task = asyncio.create_task(work, name=name)
    stack.push_async_callback(_cancelled, task)
    return task


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
