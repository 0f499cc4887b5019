"""One container's runs: when it is started again, and that it ends whenever its pod is stopped."""

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rollcall_local.kubelet.container_files import ContainerFiles
from rollcall_local.kubelet.container_launch import BadConfigError
from rollcall_local.kubelet.container_runner import AGAIN_SECONDS, ContainerRunner
from rollcall_local.kubelet.pod_stop import PodStop
from rollcall_local.kubelet.processes import CannotStartError, ContainerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.asyncio(loop_factories=["skips_waits"])

Object = dict[str, Any]


class Process(ContainerProcess):
    """Notes its signals; SIGKILL ends it, and SIGTERM if it is not `stubborn`."""

    def __init__(self, *, stubborn: bool = False) -> None:
        super().__init__(1, "uid/worker", asyncio.get_running_loop().create_future())
        self.stubborn, self.dies_in = stubborn, 0.0
        self.signals: list[signal.Signals] = []

    def send(self, number: signal.Signals) -> None:
        if not self.ended.done():
            self.signals.append(number)
            if number == signal.SIGKILL or not self.stubborn:
                asyncio.get_running_loop().call_later(self.dies_in, self.end, -number)

    def end(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)


class Container:
    """A container whose runs end with given codes, in the order of `codes`; the next one goes on.

    It is the launch of each run, too.
    """

    def __init__(self, folder: Path, *codes: int, policy: str = "Always", **spec: Any) -> None:
        self.codes = list(codes)
        self.lasts = 1.0  # seconds of each run
        self.begun: list[float] = []
        self.processes: list[Process] = []
        self.states: list[Object] = []
        self.files = ContainerFiles(folder, "worker")
        self.stop = PodStop()
        self.stubborn = False
        self.starts_in = 0.0
        self.refusals: list[CannotStartError] = []
        self.answers: Callable[[Object], bool] = lambda _: True
        self.runner = ContainerRunner(
            {"name": "worker", **spec},
            policy=policy,
            grace=7.0,
            files=self.files,
            stop=self.stop,
            prepare=self.prepare,
            ask=self.ask,
            changed=self.changed,
        )

    async def prepare(self) -> Any:
        return self

    async def start(self, log_file: Path) -> ContainerProcess:
        """As a launch does."""
        await asyncio.sleep(self.starts_in)
        if self.refusals:
            raise self.refusals.pop()
        loop = asyncio.get_running_loop()
        self.begun.append(loop.time())
        process = Process(stubborn=self.stubborn)
        self.processes.append(process)
        log_file.write_text(f"output of run {len(self.processes) - 1}\n")
        if self.codes:
            loop.call_later(self.lasts, process.end, self.codes.pop(0))
        return process

    async def ask(self, _: Any, probe: Object) -> bool:
        return self.answers(probe)

    def changed(self) -> None:
        state = self.runner.state.state
        if not self.states or self.states[-1] != state:
            self.states.append(state)

    @property
    def reasons(self) -> list[str]:
        """What it has been at, in order."""
        details = [(kind, detail) for state in self.states for kind, detail in state.items()]
        return [detail.get("reason", kind) for kind, detail in details]

    async def run(self) -> None:
        async with asyncio.timeout(2000):
            await self.runner.run()

    def running(self) -> "asyncio.Task[None]":
        return asyncio.create_task(self.run())


def terminated(container: Container) -> Object:
    found: Object = container.runner.state.state["terminated"]
    return found


# --- how often --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "codes", "runs"),
    [
        ("Never", [1], 1),
        ("Never", [0], 1),
        ("OnFailure", [1, 0], 2),
        ("OnFailure", [0], 1),
    ],
)
async def test_the_policy_says_whether_it_runs_again(
    tmp_path: Path, policy: str, codes: list[int], runs: int
) -> None:
    container = Container(tmp_path, *codes, policy=policy)
    await container.run()
    assert len(container.processes) == runs
    assert container.runner.state.is_over
    assert container.runner.state.exit_code == codes[-1]
    assert container.runner.state.restarts == runs - 1


async def test_each_end_is_followed_by_a_longer_wait(tmp_path: Path) -> None:
    container = Container(tmp_path, 1, 0, 1, 1)
    running = container.running()
    await asyncio.sleep(100)
    assert container.begun == [0, 1, 12, 33, 74]
    assert container.reasons == [
        "running",
        "Error",
        "running",
        "Completed",
        "CrashLoopBackOff",
        "running",
        "Error",
        "CrashLoopBackOff",
        "running",
        "Error",
        "CrashLoopBackOff",
        "running",
    ]
    back_off = [state["waiting"] for state in container.states if "waiting" in state]
    assert back_off[0]["message"] == "back-off 10s restarting container worker"
    assert container.runner.state.restarts == 4
    container.stop.set()
    await running


async def test_the_time_before_a_start_does_not_count_as_running(tmp_path: Path) -> None:
    container = Container(tmp_path, 1, 1)

    async def slow() -> Any:
        await asyncio.sleep(700)
        return container

    container.runner._prepare = slow
    running = container.running()
    await asyncio.sleep(1500)
    assert container.begun == [700, 1401]
    assert container.reasons[-1] == "CrashLoopBackOff"
    container.stop.set()
    await running


@pytest.mark.parametrize("error", [CannotStartError("gone"), BadConfigError("secret is away")])
async def test_what_cannot_be_started_says_why_and_is_tried_again(
    tmp_path: Path, error: CannotStartError
) -> None:
    container = Container(tmp_path, 0, policy="Never")
    errors = [error, error]

    async def prepare() -> Any:
        if errors:
            raise errors.pop()
        return container

    container.runner._prepare = prepare
    await container.run()
    assert container.begun == [2 * AGAIN_SECONDS]
    assert container.states[0] == {"waiting": {"reason": error.reason, "message": str(error)}}
    assert container.runner.state.restarts == 0


async def test_a_full_disk_keeps_it_waiting_until_there_is_room(tmp_path: Path) -> None:
    container = Container(tmp_path / "away", 0, policy="Never")  # a folder that takes no file
    running = container.running()
    await asyncio.sleep(3 * AGAIN_SECONDS)
    assert container.reasons == ["CreateContainerError"]
    assert str(tmp_path) in str(container.states)
    (tmp_path / "away").mkdir()
    await running
    assert container.runner.state.exit_code == 0


async def test_a_start_that_fails_is_tried_again_too(tmp_path: Path) -> None:
    container = Container(tmp_path, 0, policy="Never")
    container.refusals.append(CannotStartError("the container runtime has ended"))
    await container.run()
    assert container.begun == [AGAIN_SECONDS]


# --- how it ended -----------------------------------------------------------------------------


async def test_an_end_has_code_reason_and_message(tmp_path: Path) -> None:
    container = Container(tmp_path, 3, policy="Never")
    running = container.running()
    await asyncio.sleep(0.5)
    container.files.message.write_text("spec.x: is wrong")
    await running
    assert (
        terminated(container).items()
        >= {
            "exitCode": 3,
            "reason": "Error",
            "message": "spec.x: is wrong",
        }.items()
    )
    assert terminated(container)["startedAt"] <= terminated(container)["finishedAt"]


async def test_what_an_earlier_run_has_said_is_not_said_again(tmp_path: Path) -> None:
    container = Container(tmp_path, 3, 0, policy="OnFailure")
    container.files.message.write_text("of long ago")
    running = container.running()
    await asyncio.sleep(0.5)
    container.files.message.write_text("first")
    await running
    assert container.runner.state.last["terminated"]["message"] == "first"
    assert "message" not in terminated(container)


async def test_the_end_of_its_log_takes_the_place_of_a_message_if_that_is_asked_for(
    tmp_path: Path,
) -> None:
    spec = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    container = Container(tmp_path, 1, 0, policy="OnFailure", **spec)
    await container.run()
    assert container.runner.state.last["terminated"]["message"] == "output of run 0"
    assert "message" not in terminated(container)


async def test_a_signal_is_an_exit_code_as_a_shell_has_it(tmp_path: Path) -> None:
    container = Container(tmp_path, -15, policy="Never")
    await container.run()
    assert terminated(container)["exitCode"] == 143


async def test_an_end_for_its_memory_says_so_and_only_that_one(tmp_path: Path) -> None:
    container = Container(tmp_path, policy="OnFailure")
    running = container.running()
    await asyncio.sleep(1)
    container.codes.append(1)
    container.runner.kill(for_memory=True)
    await asyncio.sleep(0.5)
    assert container.runner.state.last["terminated"]["reason"] == "OOMKilled"
    assert container.runner.state.last["terminated"]["exitCode"] == 137
    await asyncio.sleep(1)
    assert container.runner.state.last["terminated"]["reason"] == "Error"
    container.runner.kill(for_memory=True)  # it waits: there is nothing to kill
    assert container.runner.state.state["waiting"]["reason"] == "CrashLoopBackOff"
    container.stop.set()
    await running


async def test_an_end_for_its_memory_stays_one_when_its_pod_is_stopped_meanwhile(
    tmp_path: Path,
) -> None:
    container = Container(tmp_path)
    running = container.running()
    await asyncio.sleep(1)
    process = container.processes[0]
    process.dies_in = 1.0
    container.runner.kill(for_memory=True)
    container.stop.set()
    container.runner.kill()
    await running
    assert terminated(container)["reason"] == "OOMKilled"


# --- probes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe"])
@pytest.mark.parametrize(("own", "grace"), [({}, 7), ({"terminationGracePeriodSeconds": 3}, 3)])
async def test_a_probe_that_fails_ends_it_within_its_grace(
    tmp_path: Path, probe: str, own: Object, grace: float
) -> None:
    spec = {probe: {"failureThreshold": 1, "initialDelaySeconds": 5, **own}}
    container = Container(tmp_path, policy="Never", **spec)
    container.answers, container.stubborn = lambda _: False, True
    began = asyncio.get_running_loop().time()
    await container.run()
    assert container.processes[0].signals == [signal.SIGTERM, signal.SIGKILL]
    assert asyncio.get_running_loop().time() - began == pytest.approx(5 + grace)


async def test_it_is_ready_as_its_probes_say_and_no_more_once_it_has_ended(tmp_path: Path) -> None:
    container = Container(tmp_path, 0, policy="Never", readinessProbe={"periodSeconds": 1})
    running = container.running()
    await asyncio.sleep(0.5)
    assert (container.runner.state.started, container.runner.state.ready) == (True, True)
    await running
    assert (container.runner.state.started, container.runner.state.ready) == (False, False)


async def test_a_probe_that_cannot_be_asked_is_an_error_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    container = Container(tmp_path, livenessProbe={"periodSeconds": 1})

    def broken(_: Object) -> bool:
        raise ValueError("no such port")

    container.answers = broken
    with pytest.raises(ExceptionGroup):
        await container.run()
    assert container.processes[0].signals == [signal.SIGKILL]


# --- a pod that is stopped --------------------------------------------------------------------


async def test_a_process_gets_sigterm_and_none_follows(tmp_path: Path) -> None:
    container = Container(tmp_path)
    running = container.running()
    await asyncio.sleep(1)
    container.stop.set()
    await running
    assert container.processes[0].signals == [signal.SIGTERM]
    assert container.runner.state.exit_code == 143
    assert len(container.processes) == 1


async def test_a_process_that_stays_is_killed_by_its_pod(tmp_path: Path) -> None:
    container = Container(tmp_path)
    container.stubborn = True
    running = container.running()
    await asyncio.sleep(1)
    container.stop.set()
    await asyncio.sleep(100)
    assert not running.done()
    container.runner.kill()
    await running
    assert container.processes[0].signals == [signal.SIGTERM, signal.SIGKILL]


async def test_a_container_that_waits_to_run_again_does_not(tmp_path: Path) -> None:
    container = Container(tmp_path, 1, 1)
    running = container.running()
    await asyncio.sleep(5)
    container.stop.set()
    await asyncio.wait_for(running, 1)
    assert len(container.processes) == 2
    assert container.runner.state.is_over


async def test_a_container_that_ends_as_its_pod_is_stopped_does_not_run_again(
    tmp_path: Path,
) -> None:
    container = Container(tmp_path, 1)  # the next time it would wait
    running = container.running()
    await asyncio.sleep(2)
    container.processes[1].end(2)
    container.stop.set()
    await running
    assert len(container.processes) == 2
    assert container.runner.state.exit_code == 2


async def test_a_container_that_is_being_prepared_is_not_started(tmp_path: Path) -> None:
    container = Container(tmp_path)
    container.runner._prepare = forever
    running = container.running()
    await asyncio.sleep(1)
    container.stop.set()
    await asyncio.wait_for(running, 1)
    assert container.processes == []
    assert container.runner.state.exit_code is None
    assert container.runner.state.is_over


async def forever() -> Any:
    await asyncio.Event().wait()


async def test_a_container_that_is_being_started_is_killed_once_it_has(tmp_path: Path) -> None:
    container = Container(tmp_path)
    container.stubborn, container.starts_in = True, 10.0
    running = container.running()
    await asyncio.sleep(1)
    container.stop.set()
    container.runner.kill()  # the pod's time is over before there is anything to kill
    await asyncio.wait_for(running, 11)
    assert container.processes[0].signals[0] == signal.SIGKILL
    assert container.runner.state.exit_code == 137


async def test_a_container_whose_pod_is_stopped_already_does_nothing(tmp_path: Path) -> None:
    container = Container(tmp_path)
    container.stop.set()
    await container.run()
    assert container.processes == []


async def test_a_task_that_is_cancelled_kills_its_process(tmp_path: Path) -> None:
    container = Container(tmp_path)
    container.stubborn = True
    running = container.running()
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert container.processes[0].signals == [signal.SIGKILL]
