"""Who goes at once, and who only when its kubelet or its finalizers let it."""

import datetime as dt

import pytest

from rollcall_local.api_server.errors import InvalidError
from rollcall_local.api_server.store import ObjectStore
from rollcall_operator.kube.resources import CONFIG_MAPS, PODS
from tests.unit.rollcall_local.api_server.objects import Object, config_map, pod


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore()


def seconds_left(found: Object) -> float:
    ends = dt.datetime.fromisoformat(found["metadata"]["deletionTimestamp"])
    return (ends - dt.datetime.now(dt.UTC)).total_seconds()


def test_an_object_without_finalizers_goes_at_once(store: ObjectStore) -> None:
    made = store.create(CONFIG_MAPS, config_map())
    watch = store.watch(CONFIG_MAPS, since=store.version)
    assert store.delete(CONFIG_MAPS, "ns", "a") == made
    assert store.find(CONFIG_MAPS, "ns", "a") is None
    assert [event.type for event in watch.take()] == ["DELETED"]


def test_a_pod_that_runs_gets_the_time_that_it_asks_for(store: ObjectStore) -> None:
    store.create(PODS, pod(node="n", grace=77))
    marked = store.delete(PODS, "ns", "p")
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 77
    assert 70 < seconds_left(marked) <= 78
    assert store.get(PODS, "ns", "p") == marked
    assert marked["metadata"]["generation"] == 2


def test_a_pod_that_does_not_say_gets_half_a_minute(store: ObjectStore) -> None:
    store.create(PODS, pod(node="n"))
    assert store.delete(PODS, "ns", "p")["metadata"]["deletionGracePeriodSeconds"] == 30


def test_a_pod_that_is_deleted_again_goes_no_later(store: ObjectStore) -> None:
    store.create(PODS, pod(node="n"))
    first = store.delete(PODS, "ns", "p", grace=10)
    assert store.delete(PODS, "ns", "p") == first
    assert store.delete(PODS, "ns", "p", grace=10) == first
    assert store.version == int(first["metadata"]["resourceVersion"])


def test_a_pod_that_is_deleted_again_may_go_earlier(store: ObjectStore) -> None:
    store.create(PODS, pod(node="n"))
    store.delete(PODS, "ns", "p")
    sooner = store.delete(PODS, "ns", "p", grace=5)
    assert sooner["metadata"]["deletionGracePeriodSeconds"] == 5
    assert seconds_left(sooner) <= 6
    assert sooner["metadata"]["generation"] == 2, "it counts once"


def test_without_grace_a_pod_is_gone(store: ObjectStore) -> None:
    store.create(PODS, pod(node="n"))
    store.delete(PODS, "ns", "p")
    store.delete(PODS, "ns", "p", grace=0)
    assert store.find(PODS, "ns", "p") is None


def test_a_pod_without_a_node_has_nothing_to_end(store: ObjectStore) -> None:
    store.create(PODS, pod(grace=77))
    store.delete(PODS, "ns", "p")
    assert store.find(PODS, "ns", "p") is None


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_has_ended_goes_at_once(store: ObjectStore, phase: str) -> None:
    store.create(PODS, pod(node="n"))
    store.set_status(PODS, "ns", "p", {"status": {"phase": phase}})
    store.delete(PODS, "ns", "p")
    assert store.find(PODS, "ns", "p") is None


def test_a_write_does_not_end_the_time_of_a_pod(store: ObjectStore) -> None:
    store.create(PODS, pod(node="n"))
    marked = store.delete(PODS, "ns", "p")
    store.merge(PODS, "ns", "p", {"metadata": {"labels": {"a": "b"}}})
    store.set_status(PODS, "ns", "p", {"status": {"phase": "Running"}})
    live = store.get(PODS, "ns", "p")["metadata"]
    assert live["deletionTimestamp"] == marked["metadata"]["deletionTimestamp"]


def test_an_object_stays_until_its_last_finalizer_is_gone(store: ObjectStore) -> None:
    body = config_map()
    body["metadata"]["finalizers"] = ["a/b", "c/d"]
    store.create(CONFIG_MAPS, body)
    marked = store.delete(CONFIG_MAPS, "ns", "a")
    assert marked["metadata"]["deletionTimestamp"]
    assert store.delete(CONFIG_MAPS, "ns", "a") == marked
    store.merge(CONFIG_MAPS, "ns", "a", {"metadata": {"finalizers": ["c/d"]}})
    assert store.get(CONFIG_MAPS, "ns", "a")["metadata"]["finalizers"] == ["c/d"]
    store.merge(CONFIG_MAPS, "ns", "a", {"metadata": {"finalizers": None}})
    assert store.find(CONFIG_MAPS, "ns", "a") is None


@pytest.mark.parametrize("last", ["finalizer", "kubelet"])
def test_a_pod_with_a_finalizer_waits_for_it_and_for_its_kubelet(
    store: ObjectStore, last: str
) -> None:
    store.create(PODS, pod(node="n", finalizers=["a/b"]))
    store.delete(PODS, "ns", "p")

    def let_go() -> None:
        store.delete(PODS, "ns", "p", grace=0)

    def finalize() -> None:
        store.merge(PODS, "ns", "p", {"metadata": {"finalizers": None}})

    first, second = (let_go, finalize) if last == "finalizer" else (finalize, let_go)
    first()
    assert store.find(PODS, "ns", "p") is not None
    second()
    assert store.find(PODS, "ns", "p") is None


def test_what_is_being_deleted_gets_no_new_finalizer(store: ObjectStore) -> None:
    body = config_map()
    body["metadata"]["finalizers"] = ["a/b"]
    store.create(CONFIG_MAPS, body)
    store.merge(CONFIG_MAPS, "ns", "a", {"metadata": {"finalizers": ["a/b", "e/f"]}})
    store.delete(CONFIG_MAPS, "ns", "a")
    with pytest.raises(InvalidError, match=r"finalizers: no new ones .*: c/d"):
        store.merge(CONFIG_MAPS, "ns", "a", {"metadata": {"finalizers": ["a/b", "c/d"]}})


def test_removing_a_finalizer_without_a_deletion_deletes_nothing(store: ObjectStore) -> None:
    body = config_map()
    body["metadata"]["finalizers"] = ["a/b"]
    store.create(CONFIG_MAPS, body)
    store.merge(CONFIG_MAPS, "ns", "a", {"metadata": {"finalizers": None}})
    assert store.find(CONFIG_MAPS, "ns", "a") is not None


def test_who_has_the_name_afterwards_is_another(store: ObjectStore) -> None:
    first = store.create(CONFIG_MAPS, config_map())
    store.delete(CONFIG_MAPS, "ns", "a")
    second = store.create(CONFIG_MAPS, config_map())
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert int(first["metadata"]["resourceVersion"]) < int(second["metadata"]["resourceVersion"])
