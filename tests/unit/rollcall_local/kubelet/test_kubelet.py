"""Pods as real processes, from their creation to their end."""

import asyncio
import errno
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollcall_local.api_server.kinds import CLAIMS
from rollcall_local.kubelet import container_runner, kubelet, pod_runner
from rollcall_local.kubelet.processes import ContainerRuntimes
from rollcall_local.kubelet.restart_delays import RestartDelays
from rollcall_local.kubelet.volumes import PodVolumes
from rollcall_operator.kube.resources import CONFIG_MAPS, EVENTS, NODES, PODS, SECRETS
from tests.unit.rollcall_local.kubelet.containers_here import SECONDS, until
from tests.unit.rollcall_local.kubelet.kubelet_here import NAMESPACE, Here, kubelet_here

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="marks are Linux's"),
    pytest.mark.asyncio(loop_scope="module"),
]

Object = dict[str, Any]

STUBBORN = "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done"
"""Runs until it is killed."""
POLITE = "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done"
CHILD = "setsid sleep 300 & echo up; wait"
"""Has a child with a session of its own."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtimes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ContainerRuntimes]:
    made = ContainerRuntimes(tmp_path_factory.mktemp("runtimes"), preloaded=())
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def here(
    tmp_path: Path, runtimes: ContainerRuntimes, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Here]:
    monkeypatch.setattr(pod_runner, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(container_runner, "AGAIN_SECONDS", 0.05)
    async with kubelet_here(tmp_path, runtimes) as made:
        yield made


def running(here: Here, name: str = "web") -> bool:
    return "running" in here.state(name)


# --- a pod runs -------------------------------------------------------------------------------


async def test_a_pod_gets_a_node_an_address_and_runs_until_it_has_succeeded(here: Here) -> None:
    here.create("echo hello", restartPolicy="Never")
    await here.until(lambda: here.status().get("phase") == "Succeeded")
    pod = here.store.get(PODS, NAMESPACE, "web")
    assert pod["spec"]["nodeName"] == here.store.listed(NODES)[0]["metadata"]["name"]
    assert pod["status"]["podIP"].startswith(f"{here.node.addresses.network}.")
    assert here.state()["terminated"]["exitCode"] == 0
    assert here.output() == "hello\n"


async def test_a_pod_whose_container_fails_has_failed_if_it_never_runs_again(here: Here) -> None:
    here.create("exit 3", restartPolicy="Never")
    await here.until(lambda: here.status().get("phase") == "Failed")
    assert here.state()["terminated"]["exitCode"] == 3


async def test_a_container_runs_with_its_variables_volumes_and_hosts(here: Here) -> None:
    here.store.create(
        CONFIG_MAPS,
        {"metadata": {"name": "settings", "namespace": NAMESPACE}, "data": {"a": "content"}},
    )
    env = [
        {"name": "FILE", "value": "/etc/settings/a"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    script = "echo $IP; cat $FILE /etc/settings/a; echo;  cat $ROLLCALL_LOCAL_HOSTS; echo; pwd"
    worker = {
        "name": "worker",
        "command": ["sh", "-c", script],
        "env": env,
        "volumeMounts": [{"name": "v", "mountPath": "/etc/settings"}],
        "workingDir": "/etc/settings",
    }
    volumes = [{"name": "v", "configMap": {"name": "settings"}}]
    spec: Object = {"hostname": "web-0", "subdomain": "web", "volumes": volumes}
    here.create(containers=[worker], restartPolicy="Never", **spec)
    await here.until(lambda: here.status().get("phase") == "Succeeded")
    address = here.status()["podIP"]
    first, second, hosts, place = here.output().splitlines()
    assert (first, second) == (address, "contentcontent")
    assert hosts == f'{{"web-0.web.default.svc": "{address}"}}'
    assert place.endswith("/volumes/v")


async def test_init_containers_run_one_after_another_and_first(here: Here) -> None:
    log = here.node.folder / "order"

    def step(name: str) -> Object:
        return {"name": name, "command": ["sh", "-c", f"echo {name} >> {log}"]}

    worker = step("worker")
    here.create(
        containers=[worker], initContainers=[step("one"), step("two")], restartPolicy="Never"
    )
    await here.until(lambda: here.status().get("phase") == "Succeeded")
    assert log.read_text() == "one\ntwo\nworker\n"


async def test_an_init_container_that_fails_is_tried_again_before_any_other_runs(
    here: Here, tmp_path: Path
) -> None:
    fails_once = f"mkdir {tmp_path}/tried 2>/dev/null && exit 1; echo done"
    first = {"name": "first", "command": ["sh", "-c", fails_once]}
    here.create("echo worker", initContainers=[first], restartPolicy="OnFailure")
    await here.until(lambda: here.status().get("phase") == "Succeeded")
    assert here.state(container="first", field="lastState")["terminated"]["exitCode"] == 1


async def test_a_pod_whose_init_container_fails_for_good_has_failed(here: Here) -> None:
    first = {"name": "first", "command": ["sh", "-c", "exit 1"]}
    here.create("echo worker", initContainers=[first], restartPolicy="Never")
    await here.until(lambda: here.status().get("phase") == "Failed")
    assert here.output() == ""


async def test_a_container_that_crashes_waits_before_it_runs_again(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestartDelays, "after", lambda *_: 0.1)
    here.create("echo run; exit 1")
    await here.until(lambda: "waiting" in here.state() and here.restarts() == 2)
    assert here.state()["waiting"]["reason"] == "CrashLoopBackOff"
    assert here.state(field="lastState")["terminated"]["exitCode"] == 1
    assert here.status()["phase"] == "Running"


async def test_a_container_is_asked_by_a_command_in_its_own_environment(
    here: Here, tmp_path: Path
) -> None:
    volumes = [{"name": "v", "emptyDir": {}}]
    worker = {
        "name": "worker",
        "command": ["sh", "-c", "sleep 0.1; touch /data/up; exec sleep 300"],
        "env": [{"name": "UP", "value": "/data/up"}],
        "volumeMounts": [{"name": "v", "mountPath": "/data"}],
        "readinessProbe": {"exec": {"command": ["sh", "-c", "test -e $UP -a -e /data/up"]}},
    }
    here.create(containers=[worker], volumes=volumes)
    await here.until(lambda: here.state(field="ready"))


async def test_a_command_that_does_not_answer_in_time_is_killed(here: Here) -> None:
    probe = {"exec": {"command": ["sleep", "299"]}, "timeoutSeconds": 0.05, "failureThreshold": 1}
    worker = {"name": "worker", "command": ["sh", "-c", POLITE], "livenessProbe": probe}
    uid = here.create(containers=[worker], restartPolicy="Never")
    await here.until(lambda: here.status().get("phase") == "Failed")
    await until(lambda: here.processes(uid) == [])


async def test_a_container_above_its_memory_limit_is_killed(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet, "MEMORY_SECONDS", 0.05)
    here.create("exit 0", name="other", restartPolicy="Never")  # so that the watch has begun anew
    fill = "import time; x = b'1' * (128 << 20); time.sleep(300)"
    worker = {
        "name": "worker",
        "command": [sys.executable, "-c", fill],
        "resources": {"limits": {"memory": "64Mi"}},
    }
    here.create(containers=[worker], restartPolicy="Never")
    await here.until(lambda: here.status().get("phase") == "Failed")
    assert here.state()["terminated"]["reason"] == "OOMKilled"
    assert here.state()["terminated"]["exitCode"] == 137


async def test_a_runtime_that_is_killed_costs_its_containers_one_run(here: Here) -> None:
    here.create("echo up; exec sleep 300")
    await here.said("up")
    here.node.runtimes.of(here.node.python, {})._process.kill()
    await here.until(lambda: here.restarts() == 1 and running(here))
    assert here.state(field="lastState")["terminated"]["exitCode"] == 137


# --- what a pod needs -------------------------------------------------------------------------


async def test_a_pod_waits_for_its_volumes_and_says_why(here: Here) -> None:
    volumes = [{"name": "v", "secret": {"secretName": "login"}}]
    here.create("echo up", volumes=volumes, restartPolicy="Never")
    await here.until(lambda: here.notes("FailedMount"))
    assert "volumes of the pod cannot be had: secrets" in here.notes("FailedMount")[0]
    assert here.status()["phase"] == "Pending"
    assert "podIP" not in here.status()
    here.store.create(SECRETS, {"metadata": {"name": "login", "namespace": NAMESPACE}, "data": {}})
    await here.until(lambda: here.status().get("phase") == "Succeeded")


async def test_a_pod_that_waits_for_its_volumes_long_says_so_less_and_less_often(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    monkeypatch.setattr(PodVolumes, "prepare", fails(tried))
    here.create("echo up", volumes=[{"name": "v", "emptyDir": {}}])
    async with asyncio.timeout(SECONDS):
        while len(tried) < 17:
            await asyncio.sleep(0.01)
    (event,) = [e for e in here.store.listed(EVENTS) if e["reason"] == "FailedMount"]
    assert event["series"]["count"] == len([1, 2, 4, 8, 16])


def fails(tried: list[int]) -> Callable[[object], None]:
    def prepare(_: object) -> None:
        tried.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    return prepare


async def test_a_pod_waits_for_room_on_the_disk_and_says_so(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(kubelet, "LOOK_SECONDS", 0.01)
    beside = here.node.hosts_file.with_suffix(".new")
    beside.mkdir()  # where the names of pods are to be written
    here.create("echo up", restartPolicy="Never")
    await here.until(lambda: "Is a directory" in str(here.status()))
    beside.rmdir()
    await here.until(lambda: here.status().get("phase") == "Succeeded")


async def test_what_a_claim_held_goes_with_it_once_no_pod_has_it(here: Here) -> None:
    place = here.node.claims / NAMESPACE / "data"
    for name in ("data", "other"):
        here.store.create(CLAIMS, {"metadata": {"name": name, "namespace": NAMESPACE}})
        (here.node.claims / NAMESPACE / name).mkdir(parents=True)
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    here.create(POLITE, volumes=[volume])
    await here.said("up")
    here.store.delete(CLAIMS, NAMESPACE, "data")
    await asyncio.sleep(0.1)
    assert place.exists(), "a pod has it"
    here.delete()
    async with asyncio.timeout(SECONDS):
        while place.exists():
            await asyncio.sleep(0.01)
    assert (here.node.claims / NAMESPACE / "other").exists()


async def test_tokens_are_renewed_after_the_machine_has_slept(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet, "LOOK_SECONDS", 0.01)
    here.create(POLITE)
    await here.said("up")
    refreshed = asyncio.Event()
    monkeypatch.setattr(pod_runner.PodRunner, "refresh", lambda _: refreshed.set())
    await asyncio.sleep(0.05)
    assert not refreshed.is_set()
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 600.0)
    async with asyncio.timeout(SECONDS):
        await refreshed.wait()


async def test_a_container_waits_for_its_variables_and_says_why(here: Here) -> None:
    source = {"secretKeyRef": {"name": "login", "key": "password"}}
    worker = {
        "name": "worker",
        "command": ["true"],
        "env": [{"name": "PASSWORD", "valueFrom": source}],
    }
    here.create(containers=[worker], restartPolicy="Never")
    await here.until(
        lambda: "reason" in here.state().get("waiting", {}) and "message" in str(here.state())
    )
    assert here.state()["waiting"]["reason"] == "CreateContainerConfigError"
    assert "login" in here.state()["waiting"]["message"]
    body = {"metadata": {"name": "login", "namespace": NAMESPACE}, "data": {"password": ""}}
    here.store.create(SECRETS, body)
    await here.until(lambda: here.status().get("phase") == "Succeeded")


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        ({}, "container worker: command: is required"),
        (
            {"command": ["true"], "volumeMounts": [{"name": "w", "mountPath": "/w"}]},
            "there is no volume w",
        ),
    ],
)
async def test_a_container_that_asks_for_what_is_not_there_says_so(
    here: Here, worker: Object, message: str
) -> None:
    here.create(containers=[{"name": "worker", **worker}])
    await here.until(lambda: message in str(here.state()))
    assert here.state()["waiting"]["reason"] == "CreateContainerConfigError"


async def test_a_config_map_that_changes_changes_the_files_of_pods_that_run(here: Here) -> None:
    metadata = {"name": "settings", "namespace": NAMESPACE}
    here.store.create(CONFIG_MAPS, {"metadata": metadata, "data": {"a": "one"}})
    volumes = [{"name": "v", "configMap": {"name": "settings"}}]
    here.create("exec sleep 300", volumes=volumes)
    await here.until(lambda: running(here))
    here.store.merge(CONFIG_MAPS, NAMESPACE, "settings", {"data": {"a": "two"}})
    (file,) = here.node.folder.glob("pods/*/*/*/volumes/v/a")
    await until(lambda: file.read_text() == "two")


async def test_a_pod_that_there_is_no_room_for_waits_until_another_has_gone(here: Here) -> None:
    def of_three(script: str) -> Object:
        requests = {"requests": {"cpu": "3"}}
        return {"name": "worker", "command": ["sh", "-c", script], "resources": requests}

    here.create(containers=[of_three("exec sleep 300")], name="first")
    await here.until(lambda: running(here, "first"))
    here.create(containers=[of_three("exit 0")], restartPolicy="Never", name="second")
    await here.until(lambda: here.status("second").get("conditions"))
    (condition,) = here.status("second")["conditions"]
    assert condition["reason"] == "Unschedulable"
    assert condition["message"] == (
        "0/1 nodes are available: Insufficient cpu: 3 is asked for, 1 is free"
    )
    here.delete("first")
    await here.until(lambda: here.status("second").get("phase") == "Succeeded")


async def test_a_pod_that_is_over_leaves_its_share_to_others(here: Here) -> None:
    requests = {"requests": {"cpu": "3"}}
    worker = {"name": "worker", "command": ["true"], "resources": requests}
    here.create(containers=[worker], restartPolicy="Never", name="first")
    here.create(containers=[worker], restartPolicy="Never", name="second")
    await here.until(lambda: here.status("second").get("phase") == "Succeeded")
    assert here.find("first") is not None


@pytest.mark.parametrize(
    "broken",
    [
        {"name": "worker", "resources": {"limits": {"cpu": "x"}}},
        {"resources": {"limits": {"cpu": "3"}}},
    ],
)
async def test_a_pod_that_makes_no_sense_is_logged_and_the_others_run(
    here: Here, broken: Object, caplog: pytest.LogCaptureFixture
) -> None:
    here.create(name="a-broken-one", containers=[broken])
    worker = {"name": "worker", "command": ["true"], "resources": {"limits": {"cpu": "3"}}}
    here.create(containers=[worker], restartPolicy="Never")
    await here.until(lambda: here.status().get("phase") == "Succeeded")
    assert "pods default/a-broken-one is not looked after" in caplog.text


async def test_a_pod_that_fails_by_a_mistake_of_the_kubelet_is_logged_and_has_failed(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    probe = {"tcpSocket": {"port": "no such port"}}
    worker = {"name": "worker", "command": ["sh", "-c", POLITE], "livenessProbe": probe}
    uid = here.create(containers=[worker, {**worker, "name": "other", "livenessProbe": {}}])
    await here.until(lambda: here.notes("Failed"))
    assert "container worker has no port no such port" in here.notes("Failed")[0]
    assert "Pod default/web cannot be run" in caplog.text
    assert here.status()["phase"] == "Failed"
    await until(lambda: here.processes(uid) == [])


# --- a pod ends -------------------------------------------------------------------------------


async def test_a_pod_that_is_deleted_gets_sigterm_and_then_goes(here: Here) -> None:
    uid = here.create(POLITE)
    await here.said("up")
    states: list[Object] = []
    here.delete()

    def gone() -> bool:
        if here.find() is not None:
            states.append(here.state())
        return here.find() is None

    await here.until(gone)
    assert states[-1]["terminated"]["exitCode"] == 7
    assert here.processes(uid) == []
    (log,) = here.node.folder.glob("pods/*/web/*/worker.0.log")
    assert log.read_text() == "up\nbye\n"


async def test_a_pod_that_stays_is_killed_at_the_end_of_its_grace(here: Here) -> None:
    uid = here.create(STUBBORN, terminationGracePeriodSeconds=1)
    await here.said("up")
    here.delete()
    await here.said("asked")
    await here.until(lambda: here.find() is None)
    assert here.processes(uid) == []


async def test_less_grace_during_a_graceful_end_ends_it_sooner(here: Here) -> None:
    uid = here.create(STUBBORN, terminationGracePeriodSeconds=10_000)
    await here.said("up")
    here.delete()
    await here.said("asked")
    here.delete(grace=1)
    await here.until(lambda: here.find() is None)
    assert here.processes(uid) == []


async def test_no_grace_during_a_graceful_end_ends_it_at_once(here: Here) -> None:
    uid = here.create(STUBBORN, terminationGracePeriodSeconds=10_000)
    await here.said("up")
    here.delete()
    await here.said("asked")
    here.delete(grace=0)
    assert here.find() is None
    await until(lambda: here.processes(uid) == [])


async def test_a_pod_that_ends_takes_all_its_processes_along(here: Here) -> None:
    uid = here.create(CHILD)
    await here.said("up")
    await until(lambda: len(here.processes(uid)) == 2)
    here.delete()
    await here.until(lambda: here.find() is None)
    assert here.processes(uid) == []


async def test_a_pod_that_waits_for_its_volumes_goes_at_once(here: Here) -> None:
    here.create("true", volumes=[{"name": "v", "secret": {"secretName": "away"}}])
    await here.until(lambda: here.notes("FailedMount"))
    here.delete()
    await here.until(lambda: here.find() is None)
    assert list(here.node.folder.glob("pods/*/*/*/volumes")) == []


async def test_a_pod_that_waits_to_run_again_goes_at_once(here: Here) -> None:
    here.create("exit 1")
    await here.until(lambda: here.state().get("waiting", {}).get("reason") == "CrashLoopBackOff")
    here.delete()
    await here.until(lambda: here.find() is None)


async def test_a_pod_that_is_deleted_while_it_is_being_started_leaves_nothing(here: Here) -> None:
    uid = here.create(CHILD)
    await here.until(lambda: here.status().get("podIP"))
    here.delete()
    await here.until(lambda: here.find() is None)
    assert here.processes(uid) == []


async def test_an_init_container_that_ends_well_when_it_is_stopped_lets_no_other_run(
    here: Here, tmp_path: Path
) -> None:
    script = f"trap 'exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    here.create(f"touch {tmp_path}/worker", initContainers=[init(script)])
    await until((tmp_path / "up").exists)
    here.delete()
    await here.until(lambda: here.find() is None)
    assert not (tmp_path / "worker").exists()


def init(script: str) -> Object:
    return {"name": "first", "command": ["sh", "-c", script]}


async def test_a_pod_of_the_same_name_runs_once_the_old_one_has_ended(
    here: Here, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "there"
    script = f"mkdir {file} || echo two at once; {STUBBORN}"
    first = here.create(f"trap '' TERM; {script}")
    await here.said("up")
    await until(lambda: here.processes(first))
    pid = here.processes(first)[0]
    here.store.delete(PODS, NAMESPACE, "web", grace=0)
    second = here.create(f"kill -0 {pid} && echo two at once; echo second; sleep 300")
    seen = set()

    def second_runs() -> bool:
        seen.add(here.status().get("phase", ""))
        return running(here)

    await here.until(second_runs)
    assert seen == {"Pending", "Running"}, "it has the status of the old one"
    await here.said("second")
    assert "two at once" not in here.output()
    assert here.processes(first) == []
    await until(lambda: here.processes(second))
    assert caplog.text == ""


async def test_a_pod_with_a_host_name_keeps_its_address_when_it_is_made_again(here: Here) -> None:
    spec = {"hostname": "web", "subdomain": "web"}
    here.create("exec sleep 300", **spec)
    await here.until(lambda: here.status().get("podIP"))
    address = here.status()["podIP"]
    here.delete()
    await here.until(lambda: here.find() is None)
    here.create("exec sleep 300", name="other")
    here.create("exec sleep 300", **spec)
    await here.until(lambda: here.status().get("podIP") and here.status("other").get("podIP"))
    assert here.status()["podIP"] == address
    assert here.status("other")["podIP"] != address


# --- the kubelet ends -------------------------------------------------------------------------


async def test_closing_ends_all_pods_and_runs_no_more(here: Here) -> None:
    uid = here.create(POLITE)
    await here.said("up")
    closing = asyncio.create_task(here.kubelet.close(grace=None))
    await asyncio.sleep(0)
    here.create("echo up", name="late")
    await closing
    assert here.state()["terminated"]["exitCode"] == 7
    assert here.processes(uid) == []
    assert here.find() is not None
    assert here.find("late") is not None
    assert here.status("late") == {"phase": "Pending"}


async def test_some_pods_end_after_the_others_when_it_is_closed(here: Here) -> None:
    slow = "trap 'sleep 0.3; exit 7' TERM; echo up; while :; do sleep 0.05; done"
    for name, script in (("first", slow), ("second", POLITE)):
        here.create(script, name=name)
        await here.said("up", name)
    await here.kubelet.close(grace=None, last=lambda pod: pod["metadata"]["name"] == "second")
    ended = [here.state(name)["terminated"]["finishedAt"] for name in ("first", "second")]
    assert [here.state(name)["terminated"]["exitCode"] for name in ("first", "second")] == [7, 7]
    assert ended == sorted(ended)


async def test_a_kubelet_that_is_cancelled_kills_all_pods(
    tmp_path: Path, runtimes: ContainerRuntimes
) -> None:
    async with kubelet_here(tmp_path, runtimes) as here:
        uid = here.create(STUBBORN)
        await here.said("up")
        here.running.cancel()
        await asyncio.gather(here.running, return_exceptions=True)
        assert here.processes(uid) == []
        assert here.status()["phase"] == "Failed"
