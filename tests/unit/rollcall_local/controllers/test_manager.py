"""Controllers at work on a store."""

import asyncio
import logging
from typing import Any

import pytest

from rollcall_local.api_server.kinds import CLAIMS
from rollcall_local.api_server.store import ObjectStore
from rollcall_local.controllers.manager import ControllerManager
from rollcall_operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PODS,
    STATEFUL_SETS,
    Resource,
)
from tests.unit.rollcall_local.controllers.pods_of import owner


class Store(ObjectStore):
    """A store that tells a manager of its changes."""

    def __init__(self) -> None:
        super().__init__(changed=lambda key, _: self.manager.notify(key))
        self.manager = ControllerManager(self)

    def names(self, resource: Resource) -> list[str]:
        return [body["metadata"]["name"] for body in self.listed(resource)]


def deployed(store: Store, name: str = "web", replicas: int = 2) -> None:
    store.create(DEPLOYMENTS, owner("Deployment", name, replicas))


def test_pods_are_made_and_counted() -> None:
    store = Store()
    deployed(store)
    for _ in range(2):
        store.manager.reconcile()
    assert len(store.names(PODS)) == 2
    assert store.get(DEPLOYMENTS, "default", "web")["status"]["replicas"] == 2


def test_a_deployment_that_is_deleted_takes_its_pods_along() -> None:
    store = Store()
    deployed(store)
    store.manager.reconcile()
    store.delete(DEPLOYMENTS, "default", "web")
    store.manager.reconcile()
    assert store.names(PODS) == []


def test_a_deployment_that_is_being_deleted_makes_no_pods() -> None:
    store = Store()
    body = owner("Deployment", "web", 2)
    body["metadata"]["finalizers"] = ["somebody/waits"]
    store.create(DEPLOYMENTS, body)
    store.delete(DEPLOYMENTS, "default", "web")
    store.manager.reconcile()
    assert store.names(PODS) == []


def test_a_claim_that_is_there_is_used_again_and_outlives_its_set() -> None:
    store = Store()
    template = {"metadata": {"name": "data"}, "spec": {}}
    body = owner("StatefulSet", "db", 1, volumeClaimTemplates=[template])
    store.create(STATEFUL_SETS, body)
    store.manager.reconcile()
    first = store.get(CLAIMS, "default", "data-db-0")
    store.delete(PODS, "default", "db-0")
    store.manager.reconcile()
    assert store.names(PODS) == ["db-0"]
    store.delete(STATEFUL_SETS, "default", "db")
    store.manager.reconcile()
    assert store.names(PODS) == []
    assert store.get(CLAIMS, "default", "data-db-0") == first


def test_a_pod_that_cannot_be_made_is_made_once_its_name_is_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store()
    store.create(PODS, {"metadata": {"name": "db-0", "namespace": "default"}, "spec": {}})
    store.create(STATEFUL_SETS, owner("StatefulSet", "db", 2, podManagementPolicy="Parallel"))
    store.manager.reconcile()
    assert store.names(PODS) == ["db-0", "db-1"]
    assert "Pod db-0 is not made: pods" in caplog.text
    store.delete(PODS, "default", "db-0")
    store.manager.reconcile()
    assert "hostname" in store.get(PODS, "default", "db-0")["spec"]


def test_an_owner_that_makes_no_sense_is_logged_and_the_others_are_looked_after(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store()
    broken = owner("Deployment", "a-broken-one", 1)
    del broken["spec"]["template"]
    store.create(DEPLOYMENTS, broken)
    deployed(store, replicas=1)
    with caplog.at_level(logging.ERROR):
        store.manager.reconcile()
    assert len(store.names(PODS)) == 1
    assert "Deployment a-broken-one is not looked after" in caplog.text


async def test_it_works_after_each_change_until_it_is_cancelled() -> None:
    store = Store()
    running = asyncio.create_task(store.manager.run())
    deployed(store, replicas=3)

    async def three_pods() -> None:
        while len(store.names(PODS)) != 3:
            await asyncio.sleep(0)

    await asyncio.wait_for(three_pods(), 5)
    store.create(CONFIG_MAPS, without_owner())
    await asyncio.wait_for(gone(store), 5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def without_owner() -> dict[str, Any]:
    """A ConfigMap whose owner is gone."""
    reference = {"uid": "gone", "name": "job", "kind": "RLJob", "apiVersion": "v1"}
    metadata = {"name": "left", "namespace": "default", "ownerReferences": [reference]}
    return {"metadata": metadata}


async def gone(store: Store) -> None:
    while store.names(CONFIG_MAPS):
        await asyncio.sleep(0)
