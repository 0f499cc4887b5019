"""A pod's phase and conditions, from what its containers are at."""

from typing import Any

import pytest

from rollcall_local.api_server import patches
from rollcall_local.kubelet.pod_status import ContainerState, patch, phase, unschedulable

Object = dict[str, Any]


def waiting() -> ContainerState:
    return ContainerState("worker", "image")


def running(*, ready: bool = True) -> ContainerState:
    state = waiting()
    state.runs("then")
    state.started = state.ready = ready
    return state


def ended(code: int, *, over: bool = True) -> ContainerState:
    state = running()
    state.ended({"exitCode": code})
    state.is_over = over
    return state


def again(code: int) -> ContainerState:
    """Ended, and waiting to be started once more."""
    state = ended(code, over=False)
    state.waits("CrashLoopBackOff", "back-off 10s")
    return state


# --- a container ------------------------------------------------------------------------------


def test_a_container_that_runs_again_keeps_its_last_end_and_counts() -> None:
    state = again(3)
    assert state.as_status()["lastState"] == {"terminated": {"exitCode": 3}}
    assert (state.restarts, state.ready) == (0, False)
    state.runs("later")
    assert state.as_status() == {
        "name": "worker",
        "image": "image",
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 1,
        "state": {"running": {"startedAt": "later"}},
        "lastState": {"terminated": {"exitCode": 3}},
    }


def test_a_container_that_is_started_again_at_once_keeps_its_last_end_too() -> None:
    state = ended(3, over=False)
    state.runs("later")
    assert (state.last, state.restarts) == ({"terminated": {"exitCode": 3}}, 1)


def test_waiting_to_be_started_for_the_first_time_is_no_restart() -> None:
    state = waiting()
    state.waits("CreateContainerConfigError", "secret is away")
    state.waits("CreateContainerConfigError", "secret is away")
    state.runs("now")
    assert (state.last, state.restarts) == ({}, 0)


def test_an_exit_code_is_that_of_the_end_for_good() -> None:
    assert ended(3).exit_code == 3
    assert ended(3, over=False).exit_code is None
    assert again(3).exit_code is None


# --- the phase --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("containers", "result"),
    [
        ([waiting()], "Pending"),
        ([waiting(), running()], "Pending"),
        ([running()], "Running"),
        ([running(ready=False)], "Running"),
        ([running(), ended(0)], "Running"),
        ([ended(1, over=False)], "Running"),
        ([again(1)], "Running"),
        ([ended(0), ended(0)], "Succeeded"),
        ([ended(0), ended(1)], "Failed"),
    ],
)
def test_the_phase_follows_from_the_containers(
    containers: list[ContainerState], result: str
) -> None:
    assert phase(containers) == result


def test_a_pod_whose_containers_never_ran_has_failed_once_they_are_over() -> None:
    never = waiting()
    never.is_over = True
    assert phase([never]) == "Failed"


# --- the status -------------------------------------------------------------------------------

GATE = "rollcall.dev/synced"


def a_pod(*conditions: Object, **status: Any) -> Object:
    return {
        "metadata": {"uid": "uid-1"},
        "spec": {"readinessGates": [{"conditionType": GATE}]} if conditions else {},
        "status": {"conditions": list(conditions), **status},
    }


def written(
    pod: Object, *containers: ContainerState, inits: Any = (), mounted: bool = True, at: str = "now"
) -> Object:
    """The status that a pod has after its patch."""
    made = patch(
        pod,
        address="127.1.2.3",
        inits=inits,
        containers=containers,
        mounted=mounted,
        timestamp=at,
    )
    assert made["metadata"] == {"uid": "uid-1"}
    result: Object = patches.merge(pod["status"], made["status"])
    return result


def conditions(status: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in status["conditions"]}


def test_a_pod_without_volumes_yet_has_no_address() -> None:
    status = written(a_pod(), waiting(), mounted=False)
    assert "podIP" not in status
    assert conditions(status) == {
        "PodScheduled": "True",
        "PodReadyToStartContainers": "False",
        "Initialized": "True",
        "ContainersReady": "False",
        "Ready": "False",
    }


def test_a_pod_whose_containers_are_ready_is_ready() -> None:
    status = written(a_pod(), running())
    assert set(conditions(status).values()) == {"True"}
    assert status["podIP"] == "127.1.2.3"
    assert status["podIPs"] == [{"ip": "127.1.2.3"}]
    assert conditions(written(a_pod(), running(), running(ready=False)))["Ready"] == "False"


def test_a_pod_is_initialized_once_its_init_containers_have_ended_well() -> None:
    def initialized(*inits: ContainerState) -> str:
        return conditions(written(a_pod(), waiting(), inits=inits))["Initialized"]

    assert initialized(ended(0), running()) == "False"
    assert initialized(ended(0), ended(1)) == "False"
    assert initialized(ended(0), ended(0)) == "True"


def test_a_pod_waits_for_its_gates_and_leaves_them_as_they_are() -> None:
    shut = {"type": GATE, "status": "False", "reason": "Behind", "lastTransitionTime": "then"}
    status = written(a_pod(shut), running())
    assert conditions(status)["ContainersReady"] == "True"
    assert conditions(status)["Ready"] == "False"
    assert shut in status["conditions"]
    assert conditions(written(a_pod({**shut, "status": "True"}), running()))["Ready"] == "True"


def test_a_gate_without_a_condition_is_shut() -> None:
    other = {"type": "other", "status": "True", "lastTransitionTime": "then"}
    assert conditions(written(a_pod(other), running()))["Ready"] == "False"


def test_a_condition_has_the_time_of_its_last_change() -> None:
    pod = a_pod()
    pod["status"] = written(pod, running(ready=False), at="first")
    status = written(pod, running(), at="second")
    times = {each["type"]: each["lastTransitionTime"] for each in status["conditions"]}
    assert times == {
        "PodScheduled": "first",
        "PodReadyToStartContainers": "first",
        "Initialized": "first",
        "ContainersReady": "second",
        "Ready": "second",
    }
    assert status["startTime"] == "first"


def test_a_container_has_one_state_at_a_time() -> None:
    pod, state = a_pod(), waiting()
    pod["status"] = written(pod, state)
    state.runs("later")
    (found,) = written(pod, state)["containerStatuses"]
    assert found["state"] == {"running": {"startedAt": "later"}}


def test_a_pod_that_there_is_no_room_for_says_why_until_there_is() -> None:
    pod = a_pod()
    pod["status"] = patches.merge(
        pod["status"], unschedulable(pod, "Insufficient cpu", "first")["status"]
    )
    assert pod["status"]["phase"] == "Pending"
    assert pod["status"]["conditions"] == [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "Insufficient cpu",
            "lastTransitionTime": "first",
        }
    ]
    assert unschedulable(pod, "Insufficient cpu", "second")["status"] == pod["status"]
    status = written(pod, waiting(), at="third")
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "third"}
    assert scheduled in status["conditions"]
