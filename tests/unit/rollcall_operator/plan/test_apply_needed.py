"""Whether a child is applied again: never for what the API server writes its own way."""

from typing import Any

import pytest

from rollcall_operator.plan.apply_needed import differs, digest, key

SAME: list[tuple[str, Any, Any]] = [
    ("defaults of the server", {"a": 1}, {"a": 1, "b": 2}),
    ("nested defaults", {"c": [{"name": "x"}]}, {"c": [{"name": "x", "p": "TCP"}]}),
    ("an empty map that was dropped", {"a": {}}, {}),
    ("an empty list that was dropped", {"a": []}, {}),
    ("false that was dropped", {"hostNetwork": False}, {}),
    ("null", {"creationTimestamp": None}, {}),
    ("null that got a default", {"a": None}, {"a": 5}),
    ("cpu", {"requests": {"cpu": "0.5"}}, {"requests": {"cpu": "500m"}}),
    ("cpu as a number", {"limits": {"cpu": 2}}, {"limits": {"cpu": "2"}}),
    ("memory", {"limits": {"memory": "1024Mi"}}, {"limits": {"memory": "1Gi"}}),
    ("size limit", {"emptyDir": {"sizeLimit": "1000M"}}, {"emptyDir": {"sizeLimit": "1G"}}),
]
OTHER: list[tuple[str, Any, Any]] = [
    ("a value", {"a": 1}, {"a": 2}),
    ("a missing field", {"a": 1}, {}),
    ("zero is not two", {"replicas": 0}, {"replicas": 2}),
    ("false is not true", {"a": False}, {"a": True}),
    ("a shorter list", {"a": [1, 2]}, {"a": [1]}),
    ("a longer list", {"a": [1]}, {"a": [1, 2]}),
    ("an emptied list", {"a": []}, {"a": [1]}),
    ("order", {"a": [1, 2]}, {"a": [2, 1]}),
    ("memory", {"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1G"}}),
    ("text that looks like a quantity", {"value": "1"}, {"value": "1.0"}),
    ("another type", {"a": {"b": 1}}, {"a": "b"}),
]


@pytest.mark.parametrize(("desired", "live"), [c[1:] for c in SAME], ids=[c[0] for c in SAME])
def test_met(desired: Any, live: Any) -> None:
    assert not differs(desired, live)


@pytest.mark.parametrize(("desired", "live"), [c[1:] for c in OTHER], ids=[c[0] for c in OTHER])
def test_not_met(desired: Any, live: Any) -> None:
    assert differs(desired, live)


def policy(**rules: Any) -> Any:
    return {"kind": "NetworkPolicy", "metadata": {"name": "p"}, "spec": rules}


PEER = {"podSelector": {"matchLabels": {"a": "b"}}}
PORTS = [{"protocol": "TCP", "port": 1}]
POLICY = policy(**PEER, ingress=[{"from": [PEER], "ports": PORTS}])


def with_rules(*rules: Any) -> Any:
    return policy(**PEER, ingress=list(rules))


@pytest.mark.parametrize(
    "changed",
    [
        with_rules({"from": [{**PEER, "namespaceSelector": {}}], "ports": PORTS}),
        with_rules({"ports": PORTS}),
        with_rules({"from": [PEER], "ports": PORTS}, {}),
        POLICY | {"spec": POLICY["spec"] | {"podSelector": {"matchLabels": {"a": "b", "c": "d"}}}},
    ],
    ids=["wider peer", "any peer", "another rule", "fewer pods"],
)
def test_a_field_that_was_added_to_a_rule_of_a_network_policy_is_a_difference(changed: Any) -> None:
    assert differs(POLICY, changed)


def test_a_network_policy_is_met_without_the_empty_lists_that_were_dropped() -> None:
    user = policy(egress=[{"to": [{"podSelector": {"matchLabels": {}}}], "ports": []}])
    stored = policy(egress=[{"to": [{"podSelector": {}}]}], policyTypes=["Egress"])
    assert not differs(user, stored)
    assert differs(policy(egress=[]), policy(egress=[{}]))


def test_a_digest_does_not_depend_on_the_version_it_is_conditional_on() -> None:
    body = {"kind": "Service", "metadata": {"name": "s"}, "spec": {"a": 1}}
    guarded = {**body, "metadata": {"name": "s", "resourceVersion": "7"}}
    assert digest(body) == digest(guarded)
    assert digest(body) != digest({**body, "spec": {"a": 2}})
    assert key(body) == "Service/s"
