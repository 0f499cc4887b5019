"""Containers as real processes: how they start, what is known of their end, and that all end."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollcall_local.kubelet import processes
from rollcall_local.kubelet.marks import MARK, marked
from rollcall_local.kubelet.processes import CannotStartError, ContainerRuntimes
from rollcall_runtime.rollout.engines.server import guard
from rollcall_runtime.rollout.engines.server.guard import GUARD
from tests.unit.rollcall_local.kubelet.containers_here import (
    Containers,
    code_of,
    containers_here,
    until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="marks are Linux's")

LEAVES = "setsid sleep 300 & echo child $!; "
"""A child with a session of its own."""


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Containers]:
    async with containers_here(tmp_path) as made:
        yield made


# --- a container ------------------------------------------------------------------------------


async def test_output_and_errors_go_to_its_log_and_its_exit_code_is_known(
    here: Containers,
) -> None:
    process = await here.run("echo out; echo err >&2; exit 3")
    assert await code_of(process) == 3
    assert here.output == "out\nerr\n"


async def test_it_has_its_own_environment_folder_and_no_input(
    here: Containers, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    script = f"pwd; echo $X ${{HOME-none}}; cat; echo ${MARK}"
    process = await here.run(script, folder=tmp_path / "here", X="1")
    assert await code_of(process) == 0
    assert here.output == f"{tmp_path}/here\n1 none\n{here.name()}\n"


async def test_a_signal_that_ends_it_is_known(here: Containers) -> None:
    process = await here.run("kill -9 $$")
    assert await code_of(process) == -9
    process.send(signal.SIGTERM)  # to nobody


async def test_a_signal_that_comes_while_it_begins_is_not_lost(here: Containers) -> None:
    process = await here.run("exec sleep 300")
    process.send(signal.SIGTERM)
    assert await code_of(process) == -15


async def test_it_ends_as_a_shell_would_have_it_when_its_output_is_not_read(
    here: Containers,
) -> None:
    """Python ignores SIGPIPE, and what it executes would too."""
    process = await here.run("yes | head -n 1; echo end")
    assert await code_of(process) == 0
    assert here.output == "y\nend\n"


async def test_a_program_that_is_not_there_is_named_in_its_log(here: Containers) -> None:
    await here.runtime.ready()
    process = await here.runtime.run(
        container=here.name(),
        argv=["no-such-program"],
        environment={"PATH": "/bin"},
        folder=here.folder,
        log_file=here.log_file,
    )
    assert await code_of(process) == 127
    assert here.output == "no-such-program: No such file or directory\n"


async def test_a_working_directory_that_is_not_there_is_named_in_its_log(
    here: Containers, tmp_path: Path
) -> None:
    process = await here.run("true", folder=tmp_path / "none")
    assert await code_of(process) == 1
    expected = (
        f"workingDir {tmp_path}/none: No such file or directory; name a folder of this machine"
    )
    assert here.output.strip() == expected


async def test_a_program_of_rollcall_is_forked_and_has_its_mark_too(here: Containers) -> None:
    await here.runtime.ready()
    process = await here.runtime.run(
        container=here.name(),
        argv=["rollcall-trainer", "--help"],
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
        folder=here.folder,
        log_file=here.log_file,
    )
    await until(lambda: marked(here.name()) == [process.pid])
    assert await code_of(process) == 0
    assert here.output.startswith("usage: rollcall-trainer")


async def test_a_forked_program_begins_as_a_new_interpreter_does(
    here: Containers, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; print(*sys.orig_argv)")
    await here.runtime.ready()
    process = await here.runtime.run(
        container=here.name(),
        argv=["rollcall-trainer", "--help"],
        environment={"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        folder=here.folder,
        log_file=here.log_file,
    )
    assert await code_of(process) == 0
    program = Path(sys.executable).with_name("rollcall-trainer")
    assert here.output.startswith(f"{sys.executable} {program} --help\n"), "it can be run again"


READS_EARLY = """
import os, tempfile
tempfile.gettempdir()
FOUND = os.environ.get("HF_HOME")
"""


@pytest.mark.parametrize("variable", ["TMPDIR", "HF_HOME"])
async def test_a_program_of_rollcall_has_its_own_variables_also_where_imports_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    (tmp_path / "reads_early.py").write_text(READS_EARLY)
    says = "import reads_early, tempfile; print(reads_early.FOUND, tempfile.gettempdir())"
    (tmp_path / "sitecustomize.py").write_text(f"if __import__('sys').argv[1:]: {says}")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", path)
    runtimes = ContainerRuntimes(tmp_path, preloaded=["reads_early"])
    runtime = runtimes.of(Path(sys.executable), {})
    try:
        await runtime.ready()
        process = await runtime.run(
            container=f"{tmp_path}/worker",
            argv=["rollcall-trainer", "--help"],
            environment={
                "PATH": str(Path(sys.executable).parent),
                "PYTHONPATH": path,
                variable: str(tmp_path),
            },
            folder=tmp_path,
            log_file=tmp_path / "out.log",
        )
        assert await code_of(process) == 0
    finally:
        await runtimes.close()
    hub, temporary = (tmp_path / "out.log").read_text().splitlines()[0].split()
    expected = {"TMPDIR": temporary, "HF_HOME": hub}
    assert expected[variable] == str(tmp_path)


# --- what it leaves behind --------------------------------------------------------------------


async def test_a_child_with_a_session_of_its_own_ends_with_its_container(here: Containers) -> None:
    process = await here.run(LEAVES + "exit 0")
    assert await code_of(process) == 0
    assert "child" in here.output
    assert marked(here.name()) == []


async def test_a_child_without_its_environment_ends_with_its_container(here: Containers) -> None:
    process = await here.run("env -i sleep 300 & echo $!; exit 0")
    assert await code_of(process) == 0
    await until(lambda: not running(int(here.output)))


def running(pid: int) -> bool:
    """Whether a process is there, and has not ended."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


async def test_a_child_whose_parent_is_gone_is_the_runtimes(here: Containers) -> None:
    """Else it would stay as a zombie where the first process of the machine reaps none."""
    await here.run("(sleep 300 & echo child $!); exec sleep 300")
    await here.said("child")
    child = int(here.output.split()[1])
    await until(lambda: parent_of(child) == here.runtime._process.pid)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_the_guard_of_a_server_frees_what_a_killed_container_left(
    here: Containers, tmp_path: Path
) -> None:
    """Its memory would stay on this machine; in a cluster it is the pod's."""
    folder = tmp_path / "server"
    folder.mkdir()
    server = "setsid sleep 300 & exec 3>pipe; echo $! >&3; exec sleep 300"
    os.mkfifo(tmp_path / "pipe")
    guarding = f"read server; exec {sys.executable} -S -E {guard.__file__} $server {folder}"
    process = await here.run(f"{GUARD}=1 setsid sh -c '{guarding}' <pipe & {server}")
    await until(lambda: len(marked(here.name())) == 3)
    began = time.monotonic()
    process.send(signal.SIGKILL)
    assert await code_of(process) == -9
    assert marked(here.name()) == []
    assert not folder.exists()
    assert time.monotonic() - began < guard.END_SECONDS, "it saw that the server had ended"


async def test_a_container_ends_alone(here: Containers) -> None:
    other = await here.run("exec sleep 300", container=f"{here.name()}-2")
    assert await code_of(await here.run("exit 0")) == 0
    await until(lambda: marked(other.container) == [other.pid])


async def test_all_end_when_the_runtime_is_closed(here: Containers) -> None:
    process = await here.run(LEAVES + "trap '' TERM; sleep 300 & wait; sleep 300")
    await here.said("child")
    await until(lambda: len(marked(here.name())) == 3)
    await here.runtimes.close()
    assert marked(here.name()) == []
    assert await code_of(process) == -9


async def test_all_end_when_the_runtime_is_killed_and_another_one_follows(
    here: Containers,
) -> None:
    process, runtime = await here.run(LEAVES + "sleep 300"), here.runtime
    await here.said("child")
    runtime._process.kill()
    assert await code_of(process) == -9
    assert marked(here.name()) == []
    with pytest.raises(CannotStartError, match="the container runtime has ended: it wrote nothing"):
        await runtime.ready()
    assert await code_of(await here.run("exit 4")) == 4


async def test_the_first_process_of_each_container_ends_with_the_runtime(
    here: Containers,
) -> None:
    """Also when nobody is left to end it; `marked` finds what else there is."""
    runtime = here.runtime
    process = await here.run(LEAVES + "exec sleep 300")
    await here.said("child")
    child = int(here.output.split()[1])
    asyncio.get_running_loop().remove_reader(runtime._socket)  # the client does not notice
    runtime._process.kill()
    await until(lambda: not running(process.pid))
    await until(lambda: marked(here.name()) == [child])
    asyncio.get_running_loop().add_reader(runtime._socket, runtime._read)


CLIENT = """
import asyncio, sys
from pathlib import Path
from tests.unit.rollcall_local.kubelet.containers_here import Containers

async def main():
    here = Containers(Path(sys.argv[1]))
    await here.run(sys.argv[2])
    await here.said("child")
    print("ready", flush=True)
    await asyncio.sleep(300)

asyncio.run(main())
"""


async def test_all_end_when_the_client_is_killed(here: Containers) -> None:
    command = [sys.executable, "-c", CLIENT, str(here.folder), LEAVES + "exec sleep 300"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as client:
        assert client.stdout is not None
        assert await asyncio.to_thread(client.stdout.readline) == b"ready\n"
        await until(lambda: len(marked(here.name())) == 2)
        client.kill()
    await until(lambda: marked(here.name()) == [])


# --- a start that fails -----------------------------------------------------------------------


async def test_a_container_whose_caller_has_given_up_is_killed(here: Containers) -> None:
    await here.runtime.ready()
    os.kill(here.runtime._process.pid, signal.SIGSTOP)
    starting = asyncio.create_task(here.run("sleep 300"))
    await asyncio.sleep(0.05)  # the request is sent
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    os.kill(here.runtime._process.pid, signal.SIGCONT)
    other = await here.run("exit 0", container=f"{here.name()}-2")  # comes after it
    assert await code_of(other) == 0
    await until(lambda: not here.runtime._running)
    assert marked(here.name()) == []


async def test_a_runtime_that_does_not_answer_is_given_up_and_what_it_starts_late_is_killed(
    here: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.runtime.ready()
    monkeypatch.setattr(processes, "ANSWER_SECONDS", 0.05)
    os.kill(here.runtime._process.pid, signal.SIGSTOP)
    with pytest.raises(CannotStartError, match="has not answered for 0 s"):
        await here.run("sleep 300")
    assert len(here.runtime._starting) == 1
    os.kill(here.runtime._process.pid, signal.SIGCONT)
    await until(lambda: not here.runtime._starting and not here.runtime._running)
    assert marked(here.name()) == []


async def test_a_start_fails_when_the_runtime_ends_meanwhile(here: Containers) -> None:
    await here.runtime.ready()
    runtime = here.runtime
    os.kill(runtime._process.pid, signal.SIGSTOP)
    starting = asyncio.create_task(here.run("sleep 300"))
    await until(lambda: bool(runtime._starting))
    runtime._process.kill()
    with pytest.raises(CannotStartError, match="the container runtime has ended"):
        await starting


async def test_a_request_that_is_too_long_says_so(here: Containers) -> None:
    with pytest.raises(CannotStartError, match="its command and environment are too long"):
        await here.run("true", X="x" * (1 << 20))
    assert here.runtime._starting == {}
    assert await code_of(await here.run("exit 0")) == 0


async def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    runtimes = ContainerRuntimes(tmp_path, preloaded=())
    with pytest.raises(CannotStartError, match="none/python: No such file or directory; see --im"):
        runtimes.of(tmp_path / "none" / "python", {})


async def test_a_runtime_that_ends_at_once_says_what_it_wrote_last(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module named rollcall_local\n")
    python.chmod(0o755)
    runtimes = ContainerRuntimes(tmp_path, preloaded=())
    with pytest.raises(CannotStartError, match="has ended: no module named rollcall_local"):
        await runtimes.of(python, {}).ready()
    await runtimes.close()


async def test_a_runtime_has_the_variables_that_matter_at_import(tmp_path: Path) -> None:
    runtimes = ContainerRuntimes(tmp_path, preloaded=("no_such_module",))
    first = runtimes.of(Path(sys.executable), {"OMP_NUM_THREADS": "1", "X": "1"})
    assert runtimes.of(Path(sys.executable), {"OMP_NUM_THREADS": "1", "X": "2"}) is first
    second = runtimes.of(Path(sys.executable), {"OMP_NUM_THREADS": "2"})
    assert second is not first
    await asyncio.gather(first.ready(), second.ready())
    environment = Path(f"/proc/{second._process.pid}/environ").read_bytes().split(b"\0")
    assert b"OMP_NUM_THREADS=2" in environment
    assert "not imported beforehand: no_such_module" in (tmp_path / "runtime-1.log").read_text()
    await runtimes.close()
