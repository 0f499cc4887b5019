"""What is read for one job: its own objects and no other job's."""

from typing import TYPE_CHECKING, Any, cast

from rollcall_operator.api import labels
from rollcall_operator.control.job_reader import JobReader
from rollcall_operator.plan.timestamps import to_time

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient

KEY, NOW = ("ns", "a"), 1_800_000_000.0
JOB = {"kind": "RLJob", "metadata": {"namespace": "ns", "name": "a", "uid": "uid-a"}}


class Objects:
    """Stands in for the client: one answer for each kind, and the selectors that were used."""

    def __init__(self, **objects: Any) -> None:
        self.objects = objects
        self.asked: dict[str, tuple[str, str]] = {}

    async def find(self, resource: Any, *, namespace: str, name: str) -> Any:
        self.asked[resource.kind] = (namespace, name)
        return self.objects.get(resource.kind)

    async def list(
        self, resource: Any, *, namespace: str, labels: str = "", fields: str = ""
    ) -> Any:
        assert namespace == "ns"
        self.asked[resource.kind] = (labels, fields)
        return tuple(self.objects.get(resource.kind, ()))


def reader(objects: Objects) -> JobReader:
    return JobReader(cast("KubeClient", objects), clock=lambda: NOW)


async def test_objects_are_selected_by_the_jobs_own_label_and_pools_by_their_job() -> None:
    objects = Objects(RLJob=JOB)
    await reader(objects).read(KEY)
    mine = (f"{labels.JOB}=a", "")
    for kind in ("Pod", "Service", "StatefulSet", "Deployment"):
        assert objects.asked[kind] == mine, kind
    assert objects.asked["RolloutPool"] == ("", "spec.jobRef.name=a")
    assert objects.asked["ConfigMap"] == ("ns", "a-rollcall-trust"), "by name: it lists no others"
    assert "Secret" not in objects.asked


async def test_the_config_map_is_one_of_the_children() -> None:
    body = {"kind": "ConfigMap", "metadata": {"name": "a-rollcall-trust"}}
    observed = await reader(Objects(RLJob=JOB, ConfigMap=body)).read(KEY)
    assert observed.children == (body,)


def stateful_set(created: int) -> Any:
    metadata = {"namespace": "ns", "name": "a-trainer", "uid": "uid-set"}
    body = {"spec": {"replicas": 2}, "status": {"replicas": created}}
    return {"kind": "StatefulSet", "metadata": metadata, **body}


def failed(note: str, seconds: int) -> Any:
    when = to_time(NOW - seconds)
    return {"metadata": {"creationTimestamp": to_time(0)}, "deprecatedLastTimestamp": when} | {
        "note": note
    }


async def test_why_a_stateful_set_lacks_pods_is_read_from_its_last_event() -> None:
    events = [failed("before", 90), failed("exceeded quota", 9), failed("long ago", 9000)]
    objects = Objects(RLJob=JOB, StatefulSet=[stateful_set(1)], Event=events)
    observed = await reader(objects).read(KEY)
    assert observed.creation_failures == {"StatefulSet/a-trainer": "exceeded quota"}
    assert objects.asked["Event"] == ("", "regarding.uid=uid-set,reason=FailedCreate")


async def test_what_was_overcome_long_ago_is_no_failure() -> None:
    objects = Objects(RLJob=JOB, StatefulSet=[stateful_set(1)], Event=[failed("old", 9000)])
    assert not (await reader(objects).read(KEY)).creation_failures


def bound(uid: str, *, seconds: float) -> Any:
    """A pod that got a node so long ago and has no sandbox yet."""
    when = {"type": "PodScheduled", "status": "True", "lastTransitionTime": to_time(NOW - seconds)}
    return {
        "metadata": {"name": uid, "uid": uid},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Pending", "conditions": [when]},
    }


async def test_why_volumes_are_not_mounted_is_read_for_all_pods_at_once() -> None:
    pods = [bound("a", seconds=60), bound("b", seconds=60), bound("c", seconds=1)]
    events = [
        failed(note, seconds) | {"regarding": {"uid": uid}}
        for uid, note, seconds in (
            ("a", "before", 90),
            ("a", "no secret", 9),
            ("c", "at first", 1),
            ("another job's", "x", 1),
        )
    ]
    objects = Objects(RLJob=JOB, Pod=pods, Event=events)
    observed = await reader(objects).read(KEY)
    assert {pod.uid: pod.mount_failure for pod in observed.pods} == {
        "a": "no secret",
        "b": "",
        "c": "",
    }
    assert objects.asked["Event"] == ("", "regarding.kind=Pod,reason=FailedAttachVolume")


async def test_no_events_are_read_while_pods_only_begin_to_mount() -> None:
    objects = Objects(RLJob=JOB, Pod=[bound("a", seconds=1)])
    await reader(objects).read(KEY)
    assert "Event" not in objects.asked


async def test_no_events_are_read_while_all_pods_are_there() -> None:
    objects = Objects(RLJob=JOB, StatefulSet=[stateful_set(2)])
    await reader(objects).read(KEY)
    assert "Event" not in objects.asked


async def test_without_the_job_no_config_map_is_read() -> None:
    objects = Objects()
    observed = await reader(objects).read(KEY)
    assert observed.gone
    assert "ConfigMap" not in objects.asked
