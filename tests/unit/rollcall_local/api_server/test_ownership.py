"""Server-side apply: a field belongs to who has set it last.

All of it was seen with a real API server.
"""

import pytest

from rollcall_local.api_server.admission import admit
from rollcall_local.api_server.errors import ChangedObjectError
from rollcall_local.api_server.store import ObjectStore
from rollcall_operator.kube.resources import CONFIG_MAPS, RL_JOBS, ROLLOUT_POOLS
from tests.unit.rollcall_local.api_server.objects import Object, config_map, job, pool


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore(admit=admit)


def apply(
    store: ObjectStore,
    manager: str,
    *,
    force: bool = False,
    labels: dict[str, str] | None = None,
    **data: str,
) -> Object:
    body = config_map(labels=labels, **data)
    return store.apply(CONFIG_MAPS, body, manager=manager, force=force)


def data(store: ObjectStore) -> dict[str, str]:
    found: dict[str, str] = store.get(CONFIG_MAPS, "ns", "a").get("data", {})
    return found


def test_an_apply_makes_what_is_not_there(store: ObjectStore) -> None:
    assert apply(store, "m", x="1")["data"] == {"x": "1"}


def test_what_a_manager_leaves_out_is_removed(store: ObjectStore) -> None:
    apply(store, "m", x="1", y="2", labels={"a": "b"})
    live = apply(store, "m", y="2")
    assert live["data"] == {"y": "2"}
    assert "labels" not in live["metadata"]


def test_what_another_has_set_stays(store: ObjectStore) -> None:
    apply(store, "m", x="1", labels={"a": "b"})
    store.merge(CONFIG_MAPS, "ns", "a", {"data": {"z": "3"}, "metadata": {"labels": {"c": "d"}}})
    live = apply(store, "m", y="2")
    assert live["data"] == {"y": "2", "z": "3"}
    assert live["metadata"]["labels"] == {"c": "d"}


def test_what_two_have_set_goes_with_the_second(store: ObjectStore) -> None:
    apply(store, "m", x="1")
    apply(store, "n", x="1")
    apply(store, "m")
    assert data(store) == {"x": "1"}
    apply(store, "n")
    assert data(store) == {}


def test_the_same_once_more_is_no_new_version(store: ObjectStore) -> None:
    first = apply(store, "m", x="1")
    assert apply(store, "m", x="1") == first
    assert store.version == int(first["metadata"]["resourceVersion"])


def test_to_set_what_others_have_set_alike_is_a_new_version(store: ObjectStore) -> None:
    first = apply(store, "m", x="1")
    assert int(apply(store, "n", x="1")["metadata"]["resourceVersion"]) == store.version
    assert store.version > int(first["metadata"]["resourceVersion"])


@pytest.mark.parametrize("by", ["create", "merge", "replace", "apply"])
def test_a_value_of_another_is_changed_by_force_alone(store: ObjectStore, by: str) -> None:
    if by == "apply":
        apply(store, "n", x="1")
    else:
        store.create(CONFIG_MAPS, config_map(x="1" if by == "create" else "0"))
    if by == "merge":
        store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": "1"}})
    if by == "replace":
        store.replace(CONFIG_MAPS, config_map(x="1"))
    who = "n" if by == "apply" else "an update"
    with pytest.raises(ChangedObjectError) as refused:
        apply(store, "m", x="2", y="3")
    assert str(refused.value) == f'Apply failed with 1 conflict: conflict with "{who}": .data.x'
    assert data(store) == {"x": "1"}
    apply(store, "m", force=True, x="2", y="3")
    assert data(store) == {"x": "2", "y": "3"}
    apply(store, "m", x="4")
    assert data(store) == {"x": "4"}, "it is the manager's own by then"


def test_a_field_that_two_have_set_conflicts_for_both(store: ObjectStore) -> None:
    apply(store, "n", x="1")
    apply(store, "m", x="1")
    with pytest.raises(ChangedObjectError, match=r'conflict with "n": \.data\.x'):
        apply(store, "m", x="2")


def test_many_conflicts_are_counted_and_the_first_are_named(store: ObjectStore) -> None:
    apply(store, "n", a="1", b="1", c="1", d="1")
    with pytest.raises(ChangedObjectError, match=r"4 conflicts: .*\.data\.a;.*\.data\.c; \.\.\.$"):
        apply(store, "m", a="2", b="2", c="2", d="2")


def test_a_manager_whose_value_another_has_changed_has_lost_the_field(store: ObjectStore) -> None:
    apply(store, "m", x="1", y="2")
    store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": "5"}})
    with pytest.raises(ChangedObjectError, match=r"\.data\.x"):
        apply(store, "m", x="6")
    apply(store, "m", y="2")
    assert data(store) == {"x": "5", "y": "2"}


def test_a_number_that_was_scaled_and_scaled_back_stays_when_it_is_left_out(
    store: ObjectStore,
) -> None:
    """The operator leaves out the number of a pool until the job's own changes."""
    store.apply(ROLLOUT_POOLS, pool(replicas=2), manager="operator", force=True)
    for count in (4, 2):
        store.merge(ROLLOUT_POOLS, "ns", "lent", {"spec": {"replicas": count}})
    live = store.apply(ROLLOUT_POOLS, pool(), manager="operator", force=True)
    assert live["spec"]["replicas"] == 2, "not the default, 1"


def test_a_default_belongs_to_no_manager(store: ObjectStore) -> None:
    store.apply(ROLLOUT_POOLS, pool(), manager="m", force=False)
    drain = {"timeoutSeconds": 31}
    live = store.apply(ROLLOUT_POOLS, pool(drain=drain), manager="n", force=False)
    assert live["spec"]["drain"] == drain
    live = store.apply(ROLLOUT_POOLS, pool(), manager="n", force=False)
    assert live["spec"]["drain"] == {"timeoutSeconds": 30}


def test_a_list_that_has_got_defaults_is_the_same_list(store: ObjectStore) -> None:
    first = store.apply(RL_JOBS, job(), manager="m", force=False)
    assert first["spec"]["rollouts"] != job()["spec"]["rollouts"]
    assert store.apply(RL_JOBS, job(), manager="n", force=False)["spec"] == first["spec"]


def test_what_was_removed_belongs_to_no_manager(store: ObjectStore) -> None:
    store.create(CONFIG_MAPS, config_map(x="1"))
    store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": None}})
    apply(store, "m", x="2")
    assert apply(store, "m", x="3")["data"] == {"x": "3"}


def test_a_list_is_one_value(store: ObjectStore) -> None:
    body = config_map()
    body["items"] = [{"a": 1}, {"b": 2}]
    store.apply(CONFIG_MAPS, body, manager="m", force=False)
    with pytest.raises(ChangedObjectError, match=r"\.items"):
        store.apply(CONFIG_MAPS, {**body, "items": [{"a": 1}]}, manager="n", force=False)
    store.apply(CONFIG_MAPS, {**body, "items": [{"b": 2}]}, manager="m", force=False)
    assert store.get(CONFIG_MAPS, "ns", "a")["items"] == [{"b": 2}]


def test_a_map_that_others_have_put_something_into_stays(store: ObjectStore) -> None:
    apply(store, "m", labels={"a": "b"})
    store.merge(CONFIG_MAPS, "ns", "a", {"metadata": {"labels": {"c": "d"}}})
    apply(store, "m")
    assert store.get(CONFIG_MAPS, "ns", "a")["metadata"]["labels"] == {"c": "d"}


def test_a_map_that_becomes_a_value_is_that_value(store: ObjectStore) -> None:
    body = config_map()
    store.apply(CONFIG_MAPS, {**body, "z": {"a": 1}}, manager="m", force=False)
    assert store.apply(CONFIG_MAPS, {**body, "z": 5}, manager="m", force=False)["z"] == 5
