"""What a container is started with on one machine, beside what its pod says."""

import asyncio
import os
import signal
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollcall_local.kubelet.container_launch import (
    BadConfigError,
    ContainerLauncher,
    Launch,
    container_id,
)
from rollcall_local.kubelet.machine import Machine
from rollcall_local.kubelet.processes import CannotStartError
from rollcall_local.kubelet.volume_content import VolumeSources
from rollcall_local.kubelet.volumes import PodVolumes

Object = dict[str, Any]


class Runtime:
    """Notes what it is asked to run; every process has ended with `code` already."""

    def __init__(self) -> None:
        self.asked: list[Object] = []
        self.of_environment: list[tuple[Path, str | None]] = []
        self.code = 0

    def of(self, python: Path, environment: dict[str, str]) -> "Runtime":
        """As the runtimes do."""
        self.of_environment.append((python, environment.get("OMP_NUM_THREADS")))
        return self

    async def ready(self) -> None:
        """At once."""

    async def run(self, **request: Any) -> "Ended":
        self.asked.append(request)
        return Ended(self.code)


class Ended:
    """A process that has ended."""

    def __init__(self, code: int) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self.ended.set_result(code)
        self.signals: list[signal.Signals] = []

    def send(self, number: signal.Signals) -> None:
        self.signals.append(number)


class FakeNode:
    """The parts of a node that launches need."""

    def __init__(self, folder: Path) -> None:
        self.runtimes = Runtime()
        self.machine = Machine({"nvidia.com/gpu": Decimal(2)}, ("GPU-a", "GPU-b"))
        self.hosts_file = folder / "hosts.json"
        self.addresses = SimpleNamespace(of=lambda *_: "127.251.0.1")

    def python_of(self, container: Object) -> Path:
        return Path("/env/bin/python" if container.get("image") else "/own/bin/python")

    def read(self, _namespace: str, kind: str, _name: str) -> dict[str, bytes]:
        assert kind == "ConfigMap"
        return {"key": b"value"}


class Pod:
    """A pod with one volume."""

    def __init__(self, folder: Path) -> None:
        self.node: Any = FakeNode(folder)
        self.folder = folder / "pod"
        pod = {
            "metadata": {"name": "web", "namespace": "default", "uid": "uid-1"},
            "spec": {"volumes": [{"name": "v", "emptyDir": {}}]},
        }
        sources = VolumeSources(
            read=lambda *_: {},
            token=lambda _: "",
            has_claim=lambda _: False,
            claims=folder,
            fields={},
        )
        volumes = PodVolumes(pod, self.folder / "volumes", sources)
        self.launcher = ContainerLauncher(
            pod, cast("Any", self.node), fields={}, volumes=volumes, folder=self.folder
        )

    async def launch(self, **container: Any) -> Launch:
        spec = {"name": "worker", "command": ["serve"], **container}
        return await self.launcher.prepare(spec, Path("/message"))


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def env(**values: str) -> list[Object]:
    return [{"name": name, "value": value} for name, value in values.items()]


async def test_programs_and_modules_of_its_environment_come_first(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("PYTHONPATH", "/modules")
    environment = (await pod.launch(image="vllm")).environment
    assert environment["PATH"] == "/env/bin:/bin"
    site, modules = environment["PYTHONPATH"].split(os.pathsep)
    assert (Path(site) / "sitecustomize.py").exists()
    assert modules == "/modules"
    own = (await pod.launch(env=env(PATH="/mine", PYTHONPATH="/v"))).environment
    assert own["PATH"] == "/own/bin:/mine"
    assert own["PYTHONPATH"] == os.pathsep.join([site, "/v", "/modules"])


async def test_a_worker_knows_that_it_runs_here_and_where_it_may_say_why_it_ends(
    pod: Pod,
) -> None:
    environment = (await pod.launch()).environment
    assert environment["ROLLCALL_LOCAL"] == "1"
    assert environment["ROLLCALL_EXIT_MESSAGE"] == "/message"
    assert environment["ROLLCALL_LOCAL_HOSTS"] == str(pod.node.hosts_file)


async def test_it_sees_the_gpus_of_its_pod_alone(pod: Pod) -> None:
    assert (await pod.launch()).environment["CUDA_VISIBLE_DEVICES"] == ""
    pod.node.machine.give("other", {"nvidia.com/gpu": Decimal(1)})
    pod.node.machine.give("uid-1", {"nvidia.com/gpu": Decimal(1)})
    assert (await pod.launch()).environment["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    chosen = await pod.launch(env=env(CUDA_VISIBLE_DEVICES="7"))
    assert chosen.environment["CUDA_VISIBLE_DEVICES"] == "7"


async def test_a_volume_at_tmp_is_where_temporary_files_go(pod: Pod) -> None:
    mounts = [{"name": "v", "mountPath": "/tmp"}]
    place = str(pod.folder / "volumes" / "v")
    assert (await pod.launch(volumeMounts=mounts)).environment["TMPDIR"] == place
    assert "TMPDIR" not in (await pod.launch()).environment
    own = await pod.launch(volumeMounts=mounts, env=env(TMPDIR="/mine"))
    assert own.environment["TMPDIR"] == "/mine"


async def test_mount_paths_become_folders_everywhere(pod: Pod) -> None:
    mounts = [{"name": "v", "mountPath": "/data"}]
    place = str(pod.folder / "volumes" / "v")
    launch = await pod.launch(
        command=["serve", "--at=/data/x", "$(X)"],
        env=env(X="/data/y"),
        workingDir="/data/z",
        volumeMounts=mounts,
    )
    assert launch.argv == ["serve", f"--at={place}/x", f"{place}/y"]
    assert launch.environment["X"] == f"{place}/y"
    assert launch.folder == Path(place) / "z"
    await launch.execute(["cat", "/data/up"])
    assert pod.node.runtimes.asked[-1]["argv"] == ["cat", f"{place}/up"]


async def test_its_folder_is_that_of_its_pod_unless_it_names_one(pod: Pod) -> None:
    assert (await pod.launch()).folder == pod.folder


async def test_its_runtime_is_that_of_its_image_and_of_variables_that_matter_at_import(
    pod: Pod,
) -> None:
    await pod.launch(image="vllm", env=env(OMP_NUM_THREADS="3"))
    assert pod.node.runtimes.of_environment == [(Path("/env/bin/python"), "3")]


async def test_a_command_is_required(pod: Pod) -> None:
    with pytest.raises(BadConfigError, match="container worker: command: is required"):
        await pod.launch(command=[])
    assert (await pod.launch(command=[], args=["serve"])).argv == ["serve"]


async def test_what_cannot_be_had_is_an_error_of_the_configuration(pod: Pod) -> None:
    unknown = [{"name": "X", "valueFrom": {"resourceFieldRef": {}}}]
    with pytest.raises(BadConfigError, match=r"valueFrom\.resourceFieldRef is not known here"):
        await pod.launch(env=unknown)
    with pytest.raises(BadConfigError, match="leads out of v"):
        await pod.launch(volumeMounts=[{"name": "v", "mountPath": "/v", "subPath": "../x"}])


async def test_a_runtime_that_is_not_ready_is_waited_for(pod: Pod) -> None:
    async def refuse() -> None:
        raise CannotStartError("the container runtime is not ready after 300 s")

    pod.node.runtimes.ready = refuse
    with pytest.raises(CannotStartError, match="is not ready"):
        await pod.launch()


async def test_a_run_has_the_mark_of_its_container_and_a_command_beside_it_another(
    pod: Pod, tmp_path: Path
) -> None:
    launch = await pod.launch()
    await launch.start(tmp_path / "log")
    pod.node.runtimes.code = 5
    assert await launch.execute(["check"]) == 5
    assert await launch.execute(["check"]) == 5
    first, *commands = (asked["container"] for asked in pod.node.runtimes.asked)
    assert first == container_id("uid-1", "worker")
    assert commands == [f"{first}/command-0", f"{first}/command-1"]
    assert pod.node.runtimes.asked[0]["log_file"] == tmp_path / "log"


async def test_a_command_that_cannot_be_run_has_failed(pod: Pod) -> None:
    launch = await pod.launch()

    async def refuse(**_: Any) -> None:
        raise CannotStartError("the container runtime has ended")

    pod.node.runtimes.run = refuse
    assert await launch.execute(["check"]) == 127
