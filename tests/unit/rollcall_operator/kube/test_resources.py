"""URLs of the kinds that the operator touches."""

import pytest

from rollcall_operator.kube.resources import (
    NODES,
    PODS,
    RL_JOBS,
    STATEFUL_SETS,
    resource_of,
)


def test_core_and_group_paths() -> None:
    assert PODS.path(namespace="ns", name="p", subresource="status") == (
        "/api/v1/namespaces/ns/pods/p/status"
    )
    assert STATEFUL_SETS.path(namespace="ns") == "/apis/apps/v1/namespaces/ns/statefulsets"
    assert RL_JOBS.path() == "/apis/rollcall.dev/v1alpha1/rljobs"
    assert NODES.path(namespace="ns", name="x.y") == "/api/v1/nodes/x.y"


def test_names_cannot_break_out_of_their_place_in_the_path() -> None:
    assert PODS.path(namespace="a/b", name="../c?x") == "/api/v1/namespaces/a%2Fb/pods/..%2Fc%3Fx"


def test_only_planned_kinds_are_written() -> None:
    assert resource_of("StatefulSet") is STATEFUL_SETS
    with pytest.raises(KeyError):
        resource_of("ClusterRoleBinding")
