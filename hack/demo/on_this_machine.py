"""A job in a run of `rollcall local`, in a process of its own."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from hack.cluster.progress import say
from hack.demo.job_progress import NoAnswerError
from hack.local_question import ask
from rollcall_cli.job_actions import kill, scale
from rollcall_local.state_folder import StateFolder, home
from rollcall_operator.api.labels import JOB as JOB_LABEL
from rollcall_operator.api.labels import ROLE, ROLLOUT
from rollcall_operator.kube.errors import ApiError, NotFoundError, UnreachableError
from rollcall_operator.kube.resources import PODS, RL_JOBS
from rollcall_protocol.pod_contract import METRICS_PORT

_START_SECONDS = 60.0
_END_SECONDS = 60.0
_METRICS_BYTES = 4 << 20


class OnThisMachine:
    """A run of `rollcall local run`, in a process of its own."""

    def __init__(self, folder: StateFolder, process: subprocess.Popen[bytes]) -> None:
        self._folder, self._process = folder, process

    def wait_until_up(self) -> None:
        """Until it answers; AssertionError if it ends, TimeoutError."""
        deadline = time.monotonic() + _START_SECONDS
        while not self._folder.kubeconfig.exists():
            if self._process.poll() is not None:
                raise AssertionError("rollcall local run has ended; see above")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no API server within {_START_SECONDS:.0f} s")
            time.sleep(0.1)

    def job(self, name: str) -> dict[str, Any]:
        """The RLJob; an empty one before it is applied."""
        try:
            return ask(self._folder, lambda c: c.get(RL_JOBS, namespace="default", name=name))
        except NotFoundError:
            return {"spec": {"algorithm": {"maxSteps": 0}}}

    def rollouts(self, job: str) -> list[dict[str, Any]]:
        """Pods of its rollouts."""
        labels = f"{JOB_LABEL}={job},{ROLE}={ROLLOUT}"
        return list(ask(self._folder, lambda c: c.list(PODS, namespace="default", labels=labels)))

    def metrics(self, pod: str) -> dict[str, float]:
        """Of a pod, by name; NoAnswerError."""
        try:
            text = ask(
                self._folder,
                lambda c: c.read_from_pod(
                    namespace="default",
                    name=pod,
                    port=METRICS_PORT,
                    route="/metrics",
                    most_bytes=_METRICS_BYTES,
                ),
            )
        except (ApiError, UnreachableError) as error:
            raise NoAnswerError(str(error)) from error
        families = text_string_to_metric_families(text.decode())
        return {sample.name: sample.value for family in families for sample in family.samples}

    def scale(self, pool: str, replicas: int) -> None:
        """Set the number of a pool's rollouts."""
        say(f"rollcall local scale {pool} {replicas}")
        ask(self._folder, lambda c: scale(c, namespace="default", pool=pool, replicas=replicas))

    def kill(self, pod: str) -> None:
        """End a pod at once."""
        say(f"rollcall local kill {pod}")
        ask(self._folder, lambda c: kill(c, namespace="default", pod=pod))

    def report(self, job: str, *, into: Path) -> None:
        """Copy the report that the run writes when its job is over."""
        code = self._process.wait(_END_SECONDS)
        if code:
            raise AssertionError(f"rollcall local run has ended with exit code {code}")
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._folder.path / f"{job}-report.html", into)
        say(f"the job's report: {into}")


@contextmanager
def on_this_machine(what: Sequence[str], *, name: str, log: Path) -> Iterator[OnThisMachine]:
    """A run of these words of `rollcall local run`, from its first answer on; ended with this.

    What it prints goes to `log`. AssertionError and TimeoutError as `wait_until_up`.
    """
    folder = StateFolder(home() / name)
    shutil.rmtree(folder.path, ignore_errors=True)  # of an earlier demo
    words = ["local", "run", *what, "--name", name]
    say(f"rollcall {' '.join(words)}")
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "rollcall_cli.main", *words], stdout=file, stderr=file
        )
    try:
        place = OnThisMachine(folder, process)
        place.wait_until_up()
        yield place
    except (AssertionError, TimeoutError) as error:
        error.add_note(f"see {log} and {folder.path}")
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(_END_SECONDS)


def exit_code(demo: Callable[[], None]) -> int:
    """Run it; the exit code for the shell. What went wrong is printed."""
    try:
        demo()
    except (AssertionError, TimeoutError, OSError) as error:
        print("\n".join([str(error), *getattr(error, "__notes__", ())]), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
