"""A job's NetworkPolicies: who reaches which port of its pods, and where these may connect to."""

from dataclasses import replace
from typing import Any

import pytest

from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.apply_needed import digest, key
from rollcall_operator.plan.children import network_policies
from rollcall_operator.plan.model import PolicyPeers, Refusal
from rollcall_protocol import pod_contract
from tests.apiserver.bad_manifests.manifests import (
    EXTERNAL,
    FRONT,
    OWN_REFERENCE,
    Changes,
    changed,
    supervised_job,
)
from tests.unit.rollcall_operator.plan.simulator import JobSimulator, good_job

OPERATOR = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "system"}}}
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
PEERS = PolicyPeers(operator=(OPERATOR,), monitoring=(MONITORING,))
EGRESS = "spec.networkPolicy.egress"
HUB = {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 443}]}


def policies(changes: Changes | None = None, peers: PolicyPeers = PEERS) -> dict[str, Any]:
    return {made["metadata"]["name"]: made["spec"] for made in manifests(changes, peers)}


def manifests(changes: Changes | None, peers: PolicyPeers) -> tuple[dict[str, Any], ...]:
    job = good_job(changes)
    return network_policies.of_job(job, RLJobSpec.model_validate(job["spec"]), peers)


def pods(role: str) -> dict[str, Any]:
    labels = {"rollcall.dev/job": "bad", "rollcall.dev/role": role}
    return {"podSelector": {"matchLabels": labels}}


def admits(spec: dict[str, Any], peer: dict[str, Any], port: int) -> bool:
    """Whether a policy lets `peer` connect to a TCP port; an empty list of peers means all."""
    return any(
        (not rule.get("from") or peer in rule["from"])
        and ("ports" not in rule or any(_holds(entry, port) for entry in rule["ports"]))
        for rule in spec["ingress"]
    )


def _holds(entry: dict[str, Any], port: int) -> bool:
    assert entry["protocol"] == "TCP"
    return bool(entry["port"] <= port <= entry.get("endPort", entry["port"]))


DATA = (7100, pod_contract.weights_port(63), 9089, 9091, 15001, 32768, 65535)
TRAINER, ROLLOUT, REFERENCE = pods("trainer"), pods("rollout"), pods("reference")
FRONT_PODS = pods("front")
OUTSIDER = {"podSelector": {"matchLabels": {"app": "outsider"}}}
PORTS = (22, 7070, 7071, 7072, 7073, 7074, 7075, 9090, *DATA)
OPEN: list[tuple[str, Any, set[int]]] = [
    ("bad-trainer", OPERATOR, {7070}),
    ("bad-trainer", ROLLOUT, {7070, 7071, *DATA}),
    ("bad-trainer", TRAINER, set(PORTS)),
    ("bad-trainer", REFERENCE, set()),
    ("bad-trainer", FRONT_PODS, {7070, 7071}),
    ("bad-trainer", MONITORING, {9090}),
    ("bad-trainer", OUTSIDER, set()),
    ("bad-rollouts", OPERATOR, set()),
    ("bad-rollouts", ROLLOUT, {7072, *DATA}),
    ("bad-rollouts", TRAINER, {7072, *DATA}),
    ("bad-rollouts", REFERENCE, set()),
    ("bad-rollouts", FRONT_PODS, {7072}),
    ("bad-rollouts", MONITORING, {9090}),
    ("bad-rollouts", OUTSIDER, set()),
    ("bad-reference", OPERATOR, set()),
    ("bad-reference", ROLLOUT, set()),
    ("bad-reference", TRAINER, {7074}),
    ("bad-reference", MONITORING, {9090}),
    ("bad-reference", FRONT_PODS, set()),
    ("bad-reference", OUTSIDER, set()),
    ("bad-front", OUTSIDER, {7075}),
    ("bad-front", MONITORING, {7075, 9090}),
]


@pytest.mark.parametrize(("policy", "peer", "ports"), OPEN)
def test_each_peer_reaches_the_ports_that_it_needs_and_no_others(
    policy: str, peer: dict[str, Any], ports: set[int]
) -> None:
    spec = policies({**OWN_REFERENCE, **FRONT})[policy]
    assert {port for port in PORTS if admits(spec, peer, port)} == ports


def test_a_policy_selects_the_pods_of_one_role_and_restricts_ingress_alone() -> None:
    made = policies(OWN_REFERENCE)
    for name, selected in (("trainer", TRAINER), ("rollouts", ROLLOUT), ("reference", REFERENCE)):
        assert made[f"bad-{name}"]["podSelector"] == selected["podSelector"]
        assert made[f"bad-{name}"]["policyTypes"] == ["Ingress"]
    assert len(made) == 3


def test_a_policy_has_the_labels_of_the_pods_that_it_selects() -> None:
    for policy in manifests(OWN_REFERENCE, PEERS):
        own, selected = policy["metadata"]["labels"], policy["spec"]["podSelector"]["matchLabels"]
        assert own.items() >= selected.items(), policy["metadata"]["name"]


def test_where_the_operator_connects_from_an_unknown_place_its_port_is_open_and_no_other() -> None:
    spec = policies(peers=replace(PEERS, operator=None))["bad-trainer"]
    assert {port for port in PORTS if admits(spec, OUTSIDER, port)} == {7070}


def test_without_monitoring_nothing_reads_metrics_but_the_trainers_ranks() -> None:
    made = policies(OWN_REFERENCE, replace(PEERS, monitoring=()))
    for spec in made.values():
        assert not admits(spec, OUTSIDER, 9090)
        assert not admits(spec, MONITORING, 9090)


def test_a_supervised_job_lets_no_rollouts_in() -> None:
    job = changed(supervised_job(), {})
    job["metadata"] |= {"namespace": "team", "uid": "u"}
    made = network_policies.of_job(job, RLJobSpec.model_validate(job["spec"]), PEERS)
    assert [policy["metadata"]["name"] for policy in made] == ["bad-trainer"]
    assert not admits(made[0]["spec"], ROLLOUT, 7070)
    assert admits(made[0]["spec"], TRAINER, 7073)


def test_the_pods_of_an_external_trainer_reach_each_other_and_the_rollouts() -> None:
    made = policies(EXTERNAL)
    assert made.keys() == {"bad-trainer", "bad-rollouts"}
    for port in (29500, 7073, 45678):  # torchrun's, and such as NCCL chooses
        assert admits(made["bad-trainer"], TRAINER, port)
    assert not admits(made["bad-trainer"], OUTSIDER, 29500)
    assert admits(made["bad-trainer"], ROLLOUT, 7070)
    assert admits(made["bad-rollouts"], TRAINER, 7072), "requests to generate"


def test_egress_is_restricted_only_where_the_user_lists_it() -> None:
    assert not any("Egress" in spec["policyTypes"] for spec in policies().values())
    made = policies({EGRESS: [HUB]})["bad-egress"]
    job = {"podSelector": {"matchLabels": {"rollcall.dev/job": "bad"}}}
    assert made["podSelector"] == job["podSelector"]
    assert made["policyTypes"] == ["Egress"]
    dns = {"ports": [{"protocol": "TCP", "port": 53}, {"protocol": "UDP", "port": 53}]}
    users = {**HUB, "ports": [{"protocol": "TCP", "port": 443}]}
    assert made["egress"] == [users, dns, {"to": [job]}]
    assert policies({EGRESS: []})["bad-egress"]["egress"] == [dns, {"to": [job]}]


def test_policies_are_applied_before_the_pods_and_followed_by_no_writes() -> None:
    simulator = JobSimulator({EGRESS: [HUB]})
    kinds = [body["kind"] for body in simulator.reconcile().applies]
    assert kinds[:3] == ["NetworkPolicy"] * 3
    simulator.converge()
    assert simulator.writes["NetworkPolicy"] == 3


def test_they_are_removed_when_they_are_turned_off_and_others_stay() -> None:
    simulator = JobSimulator({EGRESS: [HUB]})
    simulator.converge()
    theirs = {
        "kind": "NetworkPolicy",
        "metadata": {"name": "theirs", "uid": "t", "labels": {"rollcall.dev/job": "bad"}},
    }
    simulator.children["NetworkPolicy/theirs"] = theirs
    simulator.edit({EGRESS: None})
    assert [gone.name for gone in simulator.reconcile().deletes] == ["bad-egress"]
    simulator.edit({"spec.networkPolicy.enabled": False})
    plan = simulator.reconcile()
    assert {gone.name for gone in plan.deletes} == {"bad-trainer", "bad-rollouts"}
    assert {key for key in simulator.children if "Policy" in key} == {"NetworkPolicy/theirs"}


def test_a_policy_that_was_widened_by_hand_is_applied_again() -> None:
    simulator = JobSimulator()
    simulator.converge()
    rule = simulator.children["NetworkPolicy/bad-trainer"]["spec"]["ingress"][1]
    rule["from"][0]["namespaceSelector"] = {}
    (body,) = simulator.reconcile().applies
    assert body["metadata"]["name"] == "bad-trainer"


def test_a_refused_rule_of_the_user_is_named_by_its_place_in_the_job() -> None:
    simulator = JobSimulator({EGRESS: [HUB]})
    plan = simulator.reconcile()
    egress = next(body for body in plan.applies if body["metadata"]["name"] == "bad-egress")
    said = (
        'NetworkPolicy.networking.k8s.io "bad-egress" is invalid: '
        "spec.egress[0].to[0].ipBlock.cidr: Invalid value"
    )
    simulator.refusals[key(egress)] = Refusal(digest(egress), said)
    simulator.reconcile()
    message = simulator.condition("Validated")["message"]
    assert message.startswith("spec.networkPolicy.egress[0].to[0].ipBlock.cidr: Invalid value")
