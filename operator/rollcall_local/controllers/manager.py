"""Runs the controllers: after each change they look at everything, and do what they plan."""

import asyncio
import logging
from collections.abc import Callable

from rollcall_local.api_server.errors import ApiStatusError
from rollcall_local.api_server.kinds import CLAIMS, KINDS
from rollcall_local.api_server.store import Key, ObjectStore
from rollcall_local.controllers import deployment, garbage, stateful_set
from rollcall_local.controllers.changes import Changes, Object, is_terminating
from rollcall_operator.kube.resources import DEPLOYMENTS, PODS, STATEFUL_SETS, Resource

log = logging.getLogger(__name__)

_CONTROLLERS: dict[Resource, Callable[[Object, list[Object]], Changes]] = {
    DEPLOYMENTS: deployment.plan,
    STATEFUL_SETS: stateful_set.plan,
}


class ControllerManager:
    """`notify` of each change in the store; the work is done in `run`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._woken = asyncio.Event()
        self._woken.set()  # for what is there already

    def notify(self, _: Key) -> None:
        """An object has changed, or is gone."""
        self._woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            self.reconcile()
            await asyncio.sleep(0)

    def reconcile(self) -> None:
        """One look at everything. What fails is logged, and tried after the next change."""
        for resource, plan in _CONTROLLERS.items():
            for owner in self._store.listed(resource):
                if is_terminating(owner):
                    continue
                try:
                    self._carry_out(resource, owner, plan)
                except Exception:  # what one owner has wrong must not stop the others
                    log.exception("%s %s is not looked after", resource.kind, _name(owner))
        self.collect_garbage()

    def collect_garbage(self) -> None:
        """Delete what has lost its owner."""
        for found in garbage.orphans(self._store.objects()):
            self._delete(found)

    def _carry_out(
        self, resource: Resource, owner: Object, plan: Callable[[Object, list[Object]], Changes]
    ) -> None:
        namespace = owner["metadata"]["namespace"]
        changes = plan(owner, self._store.listed(PODS, namespace))
        for claim in changes.claims:
            if self._store.find(CLAIMS, namespace, _name(claim)) is None:
                self._store.create(CLAIMS, claim)
        for pod in changes.create:
            try:
                self._store.create(PODS, pod)
            except ApiStatusError as error:
                log.warning("Pod %s is not made: %s", _name(pod), error)
        for pod in changes.delete:
            self._delete(pod)
        status = {"status": changes.status}
        self._store.set_status(resource, namespace, _name(owner), status)

    def _delete(self, found: Object) -> None:
        metadata = found["metadata"]
        resource = next(
            kind.resource for kind in KINDS.values() if kind.resource.kind == found["kind"]
        )
        self._store.delete(
            resource, metadata.get("namespace", ""), metadata["name"], uid=metadata["uid"]
        )


def _name(body: Object) -> str:
    return str(body["metadata"]["name"])
