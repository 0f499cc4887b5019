"""What a store makes of a write: versions, generations, and what is the server's own."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from rollcall_local.api_server.errors import (
    AlreadyExistsError,
    ChangedObjectError,
    InvalidError,
    MalformedRequestError,
    MissingObjectError,
    StorageError,
)
from rollcall_local.api_server.kinds import KINDS, NAMESPACES, Kind
from rollcall_local.api_server.store import Entry, Key, ObjectStore
from rollcall_operator.kube.resources import CONFIG_MAPS, DEPLOYMENTS, EVENTS, NODES, PODS, Resource
from tests.unit.rollcall_local.api_server.objects import Object, config_map, pod

DEPLOYMENT = {"metadata": {"name": "d", "namespace": "ns"}, "spec": {"replicas": 1}}


def version(found: Object) -> int:
    return int(found["metadata"]["resourceVersion"])


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore()


WRITES: dict[str, Callable[[ObjectStore, Object], Object]] = {
    "create": lambda store, body: store.create(CONFIG_MAPS, body),
    "apply": lambda store, body: store.apply(CONFIG_MAPS, body, manager="m", force=True),
}


# --- creating ------------------------------------------------------------------------------------


def test_a_new_object_gets_what_the_server_gives(store: ObjectStore) -> None:
    made = store.create(CONFIG_MAPS, config_map(x="1"))
    assert (made["apiVersion"], made["kind"], made["data"]) == ("v1", "ConfigMap", {"x": "1"})
    metadata = made["metadata"]
    assert metadata["uid"]
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["generation"] == 1
    assert version(made) == store.version
    assert store.get(CONFIG_MAPS, "ns", "a") == made


def test_what_is_the_servers_own_is_not_taken_from_a_writer(store: ObjectStore) -> None:
    body = config_map()
    body["metadata"] |= {
        "uid": "mine",
        "resourceVersion": "99",
        "generation": 7,
        "creationTimestamp": "then",
        "deletionTimestamp": "then",
    }
    body |= {"apiVersion": "v9", "kind": "Other"}
    made = store.create(CONFIG_MAPS, body)
    assert made["metadata"]["uid"] != "mine"
    assert made["metadata"]["creationTimestamp"] != "then"
    assert "deletionTimestamp" not in made["metadata"]
    assert (version(made), made["metadata"]["generation"]) == (store.version, 1)
    assert (made["apiVersion"], made["kind"]) == ("v1", "ConfigMap")


def test_a_name_is_taken_once(store: ObjectStore) -> None:
    store.create(CONFIG_MAPS, config_map())
    with pytest.raises(AlreadyExistsError, match='configmaps "a" already exists'):
        store.create(CONFIG_MAPS, config_map())
    store.create(PODS, pod("a"))
    elsewhere = config_map()
    elsewhere["metadata"]["namespace"] = "other"
    store.create(CONFIG_MAPS, elsewhere)


def test_a_name_can_be_made_up(store: ObjectStore) -> None:
    body = {"metadata": {"generateName": "a-", "namespace": "ns"}}
    names = {store.create(CONFIG_MAPS, body)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("a-") for name in names)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [({"namespace": "ns"}, "metadata.name is required"), ({"name": "a"}, "a namespace is")],
)
def test_an_object_has_a_place(store: ObjectStore, metadata: Object, message: str) -> None:
    with pytest.raises(MalformedRequestError, match=message):
        store.create(CONFIG_MAPS, {"metadata": metadata})


def test_a_kind_without_namespaces_has_none(store: ObjectStore) -> None:
    made = store.create(NODES, {"metadata": {"name": "n", "namespace": "ns"}})
    assert "namespace" not in made["metadata"]
    assert store.get(NODES, "", "n") == made


def test_a_new_pod_is_pending_whatever_its_maker_says(store: ObjectStore) -> None:
    made = store.create(PODS, {**pod(), "status": {"phase": "Running"}})
    assert made["status"] == {"phase": "Pending"}


def test_what_was_written_is_not_changed_with_the_writers_own(store: ObjectStore) -> None:
    body = config_map(x="1")
    store.create(CONFIG_MAPS, body)
    body["data"]["x"] = "2"
    assert store.get(CONFIG_MAPS, "ns", "a")["data"] == {"x": "1"}


@pytest.mark.parametrize(
    "name", ["../../a", "a/b", "..", ".", "a..b", "-a", "a-", "A", "ä", "a b", "a\n", "a" * 241]
)
@pytest.mark.parametrize("write", WRITES)
def test_a_name_that_could_be_another_files_is_refused(
    store: ObjectStore, name: str, write: str
) -> None:
    body = config_map(name)
    with pytest.raises(InvalidError, match=r"metadata\.name: (must|.* at most 240)"):
        WRITES[write](store, body)
    assert store.objects() == []


def test_a_namespace_that_could_be_another_folder_is_refused(store: ObjectStore) -> None:
    body = config_map()
    body["metadata"]["namespace"] = "../b"
    with pytest.raises(InvalidError, match=r"metadata\.namespace: must be"):
        store.create(CONFIG_MAPS, body)


def test_of_events_the_newest_are_kept(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, EVENTS.plural, Kind(EVENTS, most=3))

    def event(name: str, *, dry_run: bool = False) -> None:
        store.create(EVENTS, {"metadata": {"name": name, "namespace": "ns"}}, dry_run=dry_run)

    for name in ("z", "b", "c"):
        event(name)
    store.merge(EVENTS, "ns", "z", {"note": "it is a series, which goes on"})
    event("unseen", dry_run=True)
    event("d")
    event("e")
    assert [each["metadata"]["name"] for each in store.listed(EVENTS)] == ["d", "e", "z"]
    assert {plural for plural, kind in KINDS.items() if kind.most} == {"events"}


# --- updating ------------------------------------------------------------------------------------


def test_each_write_is_a_new_version(store: ObjectStore) -> None:
    first = store.create(CONFIG_MAPS, config_map(x="1"))
    second = store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": "2"}})
    third = store.replace(CONFIG_MAPS, config_map(x="3"))
    assert version(first) < version(second) < version(third) == store.version
    assert {found["metadata"]["uid"] for found in (first, second, third)} == {
        first["metadata"]["uid"]
    }
    assert first["data"] == {"x": "1"}, "what was returned stays as it was"


def test_a_write_of_the_same_is_no_new_version(store: ObjectStore) -> None:
    made = store.create(CONFIG_MAPS, config_map(x="1"))
    written = [
        store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": "1"}}),
        store.replace(CONFIG_MAPS, copy.deepcopy(made)),
        store.replace(CONFIG_MAPS, config_map(x="1")),
    ]
    assert written == [made] * 3
    assert store.version == version(made)


def test_the_generation_counts_changes_of_the_spec_alone(store: ObjectStore) -> None:
    store.create(DEPLOYMENTS, DEPLOYMENT)

    def generation() -> int:
        return int(store.get(DEPLOYMENTS, "ns", "d")["metadata"]["generation"])

    store.merge(DEPLOYMENTS, "ns", "d", {"metadata": {"labels": {"a": "b"}}})
    store.set_status(DEPLOYMENTS, "ns", "d", {"status": {"replicas": 1}})
    assert generation() == 1
    store.merge(DEPLOYMENTS, "ns", "d", {"spec": {"replicas": 2}})
    assert generation() == 2
    store.merge(DEPLOYMENTS, "ns", "d", {"spec": {"replicas": 2}})
    assert generation() == 2


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"name": "b"}},
        {"metadata": {"namespace": "other"}},
        {"metadata": {"namespace": None}},
        {"metadata": {"generation": 9, "creationTimestamp": "then"}},
        {"kind": "Secret", "apiVersion": "v2"},
    ],
)
def test_a_patch_does_not_move_an_object(store: ObjectStore, patch: Object) -> None:
    made = store.create(CONFIG_MAPS, config_map(x="1"))
    assert store.merge(CONFIG_MAPS, "ns", "a", patch) == made


def test_an_update_is_checked_as_a_new_object_is(store: ObjectStore) -> None:
    store.create(CONFIG_MAPS, config_map())
    with pytest.raises(InvalidError, match=r"metadata.labels.a: must be a string"):
        store.merge(CONFIG_MAPS, "ns", "a", {"metadata": {"labels": {"a": 5}}})


@pytest.mark.parametrize("write", ["merge", "replace", "apply", "set_status", "delete"])
def test_a_write_over_another_version_is_refused(store: ObjectStore, write: str) -> None:
    made = store.create(PODS, pod())
    store.merge(PODS, "ns", "p", {"metadata": {"labels": {"a": "b"}}})
    old = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    body = pod(resourceVersion=made["metadata"]["resourceVersion"])
    with pytest.raises(ChangedObjectError, match="was written since it was read"):
        _write(store, write, body, old)
    live = store.get(PODS, "ns", "p")
    new = {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"]}}
    _write(store, write, pod(resourceVersion=new["metadata"]["resourceVersion"]), new)


@pytest.mark.parametrize(
    ("write", "error"),
    [
        ("merge", InvalidError),
        ("apply", InvalidError),
        ("set_status", InvalidError),
        ("replace", ChangedObjectError),
        ("delete", ChangedObjectError),
    ],
)
def test_a_write_of_another_object_of_the_name_is_refused(
    store: ObjectStore, write: str, error: type[Exception]
) -> None:
    store.create(PODS, pod())
    with pytest.raises(error, match="not another"):
        _write(store, write, pod(uid="another"), {"metadata": {"uid": "another"}})


def _write(store: ObjectStore, write: str, body: Object, patch: Object) -> None:
    metadata = patch["metadata"]
    if write == "merge":
        store.merge(PODS, "ns", "p", patch)
    elif write == "replace":
        store.replace(PODS, body)
    elif write == "apply":
        store.apply(PODS, body, manager="m", force=True)
    elif write == "set_status":
        store.set_status(PODS, "ns", "p", patch)
    else:
        options = {"uid": metadata.get("uid", ""), "version": metadata.get("resourceVersion", "")}
        store.delete(PODS, "ns", "p", **options)


@pytest.mark.parametrize("write", ["merge", "replace", "set_status", "delete"])
def test_what_is_not_there_is_not_found(store: ObjectStore, write: str) -> None:
    with pytest.raises(MissingObjectError, match='pods "p" not found'):
        _write(store, write, pod(), {"metadata": {}})


def test_an_apply_to_an_object_that_is_gone_makes_no_other(store: ObjectStore) -> None:
    with pytest.raises(InvalidError, match="not there any more"):
        store.apply(PODS, pod(uid="gone"), manager="m", force=True)


# --- status --------------------------------------------------------------------------------------


def test_a_status_is_written_apart_from_the_rest(store: ObjectStore) -> None:
    made = store.create(PODS, pod())
    patch = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"nodeName": "n"},
        "status": {"phase": "X"},
    }
    written = store.set_status(PODS, "ns", "p", patch)
    assert written["status"] == {"phase": "X"}
    assert (written["spec"], written["metadata"].get("labels")) == (made["spec"], None)
    assert version(written) > version(made)
    others = {**pod(), "status": {"phase": "Y"}}
    store.merge(PODS, "ns", "p", {"status": {"phase": "Y"}})
    store.replace(PODS, others)
    store.apply(PODS, others, manager="m", force=True)
    assert store.get(PODS, "ns", "p")["status"] == {"phase": "X"}


def test_a_status_of_null_is_none(store: ObjectStore) -> None:
    store.create(DEPLOYMENTS, DEPLOYMENT)
    store.set_status(DEPLOYMENTS, "ns", "d", {"status": {"replicas": 1}})
    store.set_status(DEPLOYMENTS, "ns", "d", {"status": None})
    assert store.get(DEPLOYMENTS, "ns", "d")["status"] == {}


def test_the_same_status_is_no_new_version(store: ObjectStore) -> None:
    store.create(DEPLOYMENTS, DEPLOYMENT)
    first = store.set_status(DEPLOYMENTS, "ns", "d", {"status": {"replicas": 1}})
    assert store.set_status(DEPLOYMENTS, "ns", "d", {"status": {"replicas": 1}}) == first
    assert store.version == version(first)


def test_a_status_is_a_map(store: ObjectStore) -> None:
    store.create(PODS, pod())
    with pytest.raises(InvalidError, match="status: must be a map"):
        store.set_status(PODS, "ns", "p", {"status": 5})


def test_a_kind_without_a_status_has_none_to_write(store: ObjectStore) -> None:
    store.create(CONFIG_MAPS, config_map())
    with pytest.raises(MissingObjectError, match="configmaps have no status"):
        store.set_status(CONFIG_MAPS, "ns", "a", {"status": {"x": 1}})


# --- without effect ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.create(CONFIG_MAPS, config_map("b"), dry_run=True),
        lambda store: store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": "2"}}, dry_run=True),
        lambda store: store.replace(CONFIG_MAPS, config_map(x="2"), dry_run=True),
        lambda store: store.apply(
            CONFIG_MAPS, config_map(x="2"), manager="m", force=True, dry_run=True
        ),
        lambda store: store.apply(
            CONFIG_MAPS, config_map(x="1"), manager="m", force=True, dry_run=True
        ),
        lambda store: store.apply(
            CONFIG_MAPS, config_map("b"), manager="m", force=True, dry_run=True
        ),
        lambda store: store.delete(CONFIG_MAPS, "ns", "a", dry_run=True),
        lambda store: store.set_status(PODS, "ns", "p", {"status": {"phase": "X"}}, dry_run=True),
        lambda store: store.delete(PODS, "ns", "p", dry_run=True),
    ],
)
def test_a_dry_run_changes_nothing(write: Any) -> None:
    written: list[tuple[Key, Entry | None]] = []
    store = ObjectStore(changed=lambda key, entry: written.append((key, entry)))
    store.create(CONFIG_MAPS, config_map(x="1"))
    store.create(PODS, pod(node="n"))
    before, entries = store.version, dict(store._entries)
    written.clear()
    write(store)
    assert (store.version, store._entries, written) == (before, entries, [])


def test_a_dry_run_answers_with_what_would_be(store: ObjectStore) -> None:
    store.create(CONFIG_MAPS, config_map(x="1"))
    patched = store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": "2"}}, dry_run=True)
    assert patched["data"] == {"x": "2"}
    with pytest.raises(AlreadyExistsError):
        store.create(CONFIG_MAPS, config_map(), dry_run=True)


# --- what is admitted, and kept ------------------------------------------------------------------


def test_what_is_not_admitted_is_not_written() -> None:
    def admit(_: Resource, body: Object, before: Object | None) -> Object:
        if before is not None and body["data"] != before["data"]:
            raise InvalidError("not that")
        return {**body, "data": {"default": "1", **body["data"]}}

    store = ObjectStore(admit=admit)
    made = store.create(CONFIG_MAPS, config_map(x="1"))
    assert made["data"] == {"default": "1", "x": "1"}
    with pytest.raises(InvalidError):
        store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": "2"}})
    assert store.get(CONFIG_MAPS, "ns", "a") == made
    assert store.version == version(made)


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.create(CONFIG_MAPS, config_map("b")),
        lambda store: store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": "2"}}),
        lambda store: store.apply(CONFIG_MAPS, config_map(x="2"), manager="m", force=True),
        lambda store: store.set_status(PODS, "ns", "p", {"status": {"phase": "X"}}),
        lambda store: store.delete(CONFIG_MAPS, "ns", "a"),
        lambda store: store.delete(PODS, "ns", "p", grace=5),
    ],
)
def test_what_the_disk_does_not_take_has_not_happened(write: Any) -> None:
    is_full = False

    def changed(_key: Key, _entry: Entry | None) -> None:
        if is_full:
            raise OSError(28, "No space left on device")

    store = ObjectStore(changed=changed)
    store.create(CONFIG_MAPS, config_map(x="1"))
    store.create(PODS, pod(node="n"))
    watch = store.watch(CONFIG_MAPS, since=store.version)
    before, entries = store.version, dict(store._entries)
    is_full = True
    with pytest.raises(StorageError, match=r"cannot be written: No space left on device"):
        write(store)
    assert (store.version, store._entries, watch.take()) == (before, entries, [])
    is_full = False
    write(store)
    assert store.version == before + 1


def test_a_listener_gets_the_object_as_it_will_be() -> None:
    got: list[tuple[Key, Entry | None]] = []
    store = ObjectStore(changed=lambda key, entry: got.append((key, entry)))
    made = store.create(CONFIG_MAPS, config_map())
    store.delete(CONFIG_MAPS, "ns", "a")
    (added_key, entry), gone = got
    assert added_key == Key("configmaps", "ns", "a")
    assert entry is not None
    assert entry.object == made
    assert gone == (added_key, None)


def test_versions_go_on_after_those_of_an_earlier_server() -> None:
    old = {**config_map(), "metadata": {**config_map()["metadata"], "resourceVersion": "41"}}
    store = ObjectStore(entries={Key("configmaps", "ns", "a"): Entry(old)})
    assert store.get(CONFIG_MAPS, "ns", "a") == old
    assert version(store.create(CONFIG_MAPS, config_map("b"))) > 41


# --- reading -------------------------------------------------------------------------------------


def test_a_list_is_of_one_kind_in_order_of_names(store: ObjectStore) -> None:
    for name in ("b", "a", "c"):
        store.create(CONFIG_MAPS, config_map(name, labels={"is": name}))
    store.create(PODS, pod("z"))
    elsewhere = config_map("b")
    elsewhere["metadata"]["namespace"] = "another"
    store.create(CONFIG_MAPS, elsewhere)

    def names(*place: str, **selectors: str) -> list[str]:
        listed = store.listed(CONFIG_MAPS, *place, **selectors)
        return [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in listed]

    assert names() == ["another/b", "ns/a", "ns/b", "ns/c"]
    assert names("ns") == ["ns/a", "ns/b", "ns/c"]
    assert names("ns", labels="is in (a, b)") == ["ns/a", "ns/b"]
    assert names(fields="metadata.name=b") == ["another/b", "ns/b"]


def test_a_watch_is_of_what_a_list_lists(store: ObjectStore) -> None:
    watch = store.watch(
        CONFIG_MAPS, "ns", since=store.version, labels="is=a", fields="metadata.name!=c"
    )
    store.create(CONFIG_MAPS, config_map("a", labels={"is": "a"}))
    store.create(CONFIG_MAPS, config_map("b", labels={"is": "b"}))
    store.create(CONFIG_MAPS, config_map("c", labels={"is": "a"}))
    store.create(PODS, pod("a", labels={"is": "a"}))
    store.create(NAMESPACES, {"metadata": {"name": "ns", "labels": {"is": "a"}}})
    store.merge(CONFIG_MAPS, "ns", "a", {"metadata": {"labels": {"is": "b"}}})
    seen = [(event.type, event.object["metadata"]["name"]) for event in watch.take()]
    assert seen == [("ADDED", "a"), ("DELETED", "a")]


def test_nothing_is_found_where_nothing_is(store: ObjectStore) -> None:
    assert store.find(PODS, "ns", "p") is None
    with pytest.raises(MissingObjectError):
        store.get(PODS, "ns", "p")
    assert store.listed(PODS) == []
