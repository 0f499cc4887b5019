"""Raw pods to facts."""

from typing import Any

import pytest

from rollcall_operator.plan.model import Toleration
from rollcall_operator.plan.pod_facts import pod_facts
from rollcall_operator.plan.timestamps import from_time
from rollcall_protocol.pod_contract import READINESS_GATE


def pod(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    labels = {"rollcall.dev/role": "rollout", "rollcall.dev/pool": "p"}
    annotations = {"rollcall.dev/worker-container": "rollout", "rollcall.dev/job-uid": "j"}
    gates = [{"conditionType": READINESS_GATE}]
    return {
        "metadata": {
            "name": "n",
            "uid": "u",
            "labels": labels,
            "annotations": annotations,
            **metadata,
        },
        "spec": {
            "nodeName": "node",
            "containers": [{"name": "istio-proxy"}, {"name": "rollout"}],
            "readinessGates": gates,
        },
        "status": status or {},
    }


def container(name: str = "rollout", **state: Any) -> dict[str, Any]:
    return {"name": name, "restartCount": state.pop("restarts", 0), **state}


def conditions(**kinds: str) -> list[dict[str, str]]:
    return [
        {"type": READINESS_GATE if kind == "gate" else kind, "status": status}
        for kind, status in kinds.items()
    ]


def test_a_pod_without_status_is_pending() -> None:
    facts = pod_facts(pod())
    assert (facts.phase, facts.running, facts.ready, facts.ip) == ("Pending", False, False, "")
    assert (facts.role, facts.pool, facts.job_uid) == ("rollout", "p", "j")
    assert facts.gate is None


def test_a_running_pod() -> None:
    status = {
        "phase": "Running",
        "podIP": "10.0.0.9",
        "conditions": conditions(ContainersReady="True", Ready="True", gate="True"),
        "containerStatuses": [container(state={"running": {}}), container("istio-proxy")],
    }
    facts = pod_facts(pod(status))
    assert facts.running
    assert facts.ready
    assert facts.gate is True
    assert not facts.almost_ready
    assert facts.ip == "10.0.0.9"


@pytest.mark.parametrize(
    ("kinds", "almost"),
    [
        ({"ContainersReady": "True", "Ready": "False"}, True),
        ({"ContainersReady": "True", "Ready": "False", "gate": "True"}, True),
        ({"ContainersReady": "False", "Ready": "False", "gate": "True"}, False),
        ({"ContainersReady": "True", "Ready": "True", "gate": "True"}, False),
    ],
)
def test_almost_ready_is_ready_but_for_our_gate(kinds: dict[str, str], almost: bool) -> None:
    assert pod_facts(pod({"conditions": conditions(**kinds)})).almost_ready is almost


def test_a_gate_of_the_users_is_not_ours_to_open() -> None:
    raw = pod({"conditions": conditions(ContainersReady="True", Ready="False")})
    raw["spec"]["readinessGates"].append({"conditionType": "example.com/checked"})
    assert not pod_facts(raw).almost_ready


def test_a_crash_is_reported_with_exit_code_and_termination_message() -> None:
    status = {
        "containerStatuses": [
            container(
                restarts=3,
                state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                lastState={"terminated": {"exitCode": 3, "message": "boom\n"}},
            )
        ]
    }
    facts = pod_facts(pod(status))
    assert (facts.restarts, facts.exit_code, facts.exit_message) == (3, 3, "boom")
    assert facts.waiting_reason == "CrashLoopBackOff"
    assert facts.container == "rollout"


def test_a_sidecars_crash_is_not_the_workers() -> None:
    crashed = container("istio-proxy", restarts=9, lastState={"terminated": {"exitCode": 1}})
    facts = pod_facts(pod({"containerStatuses": [crashed, container(state={"running": {}})]}))
    assert (facts.restarts, facts.exit_code) == (0, None)


def test_how_long_a_container_ran_before_it_ended() -> None:
    times = {"startedAt": "2026-11-20T00:00:05Z", "finishedAt": "2026-11-20T00:10:07Z"}
    last = {"terminated": {"exitCode": 137, **times}}
    ended = container(state={"running": {}}, lastState=last)
    assert pod_facts(pod({"containerStatuses": [ended]})).ran_for == 602.0
    lost = container(state={"terminated": {"exitCode": 137, "startedAt": None}})
    assert pod_facts(pod({"containerStatuses": [lost]})).ran_for is None


@pytest.mark.parametrize(
    ("state", "stuck"),
    [
        ({"running": {}}, False),
        ({"waiting": {"reason": "PodInitializing"}}, False),
        ({"terminated": {"exitCode": 0}}, False),
        ({"terminated": {"exitCode": 2}}, True),
        ({"waiting": {"reason": "ImagePullBackOff"}}, True),
    ],
)
def test_an_init_container_that_is_stuck_is_what_a_pod_is_about(
    state: dict[str, Any], *, stuck: bool
) -> None:
    facts = pod_facts(pod({"initContainerStatuses": [container("fetch", state=state)]}))
    assert facts.init is stuck
    assert facts.container == ("fetch" if stuck else "rollout")


def test_the_schedulers_message_is_kept() -> None:
    status = {
        "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
        ]
    }
    assert pod_facts(pod(status)).unschedulable == "0/2 nodes are available"


SINCE = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-20T00:00:00Z"}


@pytest.mark.parametrize(
    ("status", "mounts"),
    [
        ({"conditions": [SINCE]}, True),
        ({"conditions": [SINCE, *conditions(PodReadyToStartContainers="False")]}, True),
        ({"conditions": [SINCE, *conditions(PodReadyToStartContainers="True")]}, False),
        ({"conditions": [SINCE], "podIP": "10.0.0.9"}, False),
        (
            {
                "conditions": [SINCE, *conditions(PodReadyToStartContainers="False")],
                "podIP": "10.0.0.9",  # of its node: hostNetwork
            },
            True,
        ),
        ({"conditions": [SINCE], "phase": "Running"}, False),
    ],
)
def test_a_pod_mounts_its_volumes_until_its_sandbox_is_there(
    status: dict[str, Any], *, mounts: bool
) -> None:
    since = pod_facts(pod({"phase": "Pending", **status})).mounting_since
    assert since == (from_time("2026-11-20T00:00:00Z") if mounts else None)


def test_a_pod_without_a_node_mounts_nothing() -> None:
    waiting = pod({"phase": "Pending"})
    del waiting["spec"]["nodeName"]
    assert pod_facts(waiting).mounting_since is None


def test_a_pod_on_its_way_out_is_terminating() -> None:
    assert pod_facts(pod(deletionTimestamp="2026-11-20T00:00:00Z")).terminating


def test_what_leaving_is_decided_by() -> None:
    body = pod(
        {
            "containerStatuses": [
                container(state={"running": {"startedAt": "2026-01-01T00:00:05Z"}}, started=True)
            ],
            "conditions": [
                {
                    "type": READINESS_GATE,
                    "status": "False",
                    "reason": "Suspect",
                    "lastTransitionTime": "2026-01-01T00:00:09Z",
                }
            ],
        },
        creationTimestamp="2026-01-01T00:00:00Z",
        deletionTimestamp="2026-01-01T00:00:30Z",
    )
    body["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"] = "-2"
    body["spec"]["tolerations"] = [
        {"operator": "Exists"},
        {"key": "k", "value": "v", "effect": "NoExecute", "tolerationSeconds": 30},
    ]
    facts = pod_facts(body)
    assert facts.terminating
    assert facts.up
    assert facts.started == facts.created + 5
    assert (facts.gate, facts.gate_reason, facts.gate_since) == (
        False,
        "Suspect",
        facts.created + 9,
    )
    assert facts.leaves_by == facts.created + 30
    assert facts.deletion_cost == "-2"
    assert facts.tolerations == (
        Toleration(operator="Exists"),
        Toleration(key="k", value="v", effect="NoExecute"),
    )
