"""Ranks as processes of this machine: they meet, and end together."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from rollcall_runtime.train import local_processes
from rollcall_runtime.train.local_processes import rendezvous_of, run_ranks
from rollcall_runtime.worker.errors import SpecError


def command(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def run(script: str, count: int, tmp_path: Path) -> tuple[int, str]:
    path = tmp_path / "output"
    with path.open("w") as output:
        code = run_ranks(command(script), count, output=output)
    return code, path.read_text()


def test_each_rank_gets_its_number_and_a_common_place_to_meet(tmp_path: Path) -> None:
    names = [getattr(local_processes, name) for name in ("SIZE", "HOST", "PORT", "SECRET", "RANK")]
    # At once: with PYTHONUNBUFFERED print would write each word by itself.
    script = (
        "import os\n"
        f"line = ' '.join(os.environ[name] for name in {names})\n"
        "os.write(1, f'{line}\\n'.encode())"
    )
    code, printed = run(script, 3, tmp_path)
    lines = sorted(line.split() for line in printed.splitlines())
    assert code == 0
    assert [line[-1] for line in lines] == ["0", "1", "2"]
    (common,) = {tuple(line[:-1]) for line in lines}
    assert common[:2] == ("3", "127.0.0.1")


def test_no_other_process_can_take_the_port_before_rank_0_listens(tmp_path: Path) -> None:
    script = (
        "import os, socket, time\n"
        "from rollcall_runtime.train.local_processes import rendezvous_of\n"
        "meeting = rendezvous_of(os.environ)\n"
        "if meeting.rank == 0:\n"
        "    print(meeting.listener.accept()[0].recv(9).decode(), flush=True)\n"
        "else:\n"
        "    assert meeting.listener is None\n"
        "    taken = socket.socket().connect_ex((meeting.host, meeting.port)) == 0\n"
        "    thief = socket.socket()\n"
        "    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "    try:\n"
        "        thief.bind((meeting.host, meeting.port))\n"
        "    except OSError:\n"
        "        print('held' if taken else 'free', flush=True)\n"
    )
    code, printed = run(script, 2, tmp_path)
    assert (code, printed.split()) == (0, ["held"])


def test_a_rank_that_fails_ends_the_others_and_gives_its_code(tmp_path: Path) -> None:
    script = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(40)"
    began = time.monotonic()
    code, _ = run(script, 2, tmp_path)
    assert code == 3
    assert time.monotonic() - began < 30


def test_a_rank_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_processes, "END_SECONDS", 0.5)
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['RANK'] == '1': time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(60)"
    )
    code, _ = run(script, 2, tmp_path)
    assert code == 128 + signal.SIGKILL


def test_a_signal_to_stop_goes_to_all(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    path = tmp_path / "output"

    def stop() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if path.exists() and path.read_text().count("ready") == 2:
                break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    code, printed = run(script, 2, tmp_path)
    thread.join()
    assert code == 0
    assert printed.count("saved") == 2


def test_a_process_without_ranks_in_its_environment_is_alone() -> None:
    assert rendezvous_of({}).size == 1


def test_a_rank_of_a_pod_reads_its_environment() -> None:
    found = rendezvous_of(
        {
            "WORLD_SIZE": "4",
            "RANK": "2",
            "MASTER_ADDR": "trainer-0",
            "MASTER_PORT": "29500",
            "ROLLCALL_RENDEZVOUS_SECRET": "s",
        }
    )
    assert (found.host, found.port, found.rank, found.size) == ("trainer-0", 29500, 2, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "4"}, "rank 4 is not within a world of 4"),
        ({"WORLD_SIZE": "many"}, "invalid literal"),
        ({"MASTER_ADDR": ""}, "need a host and a port"),
        ({"ROLLCALL_RENDEZVOUS_SECRET": ""}, "need a secret"),
    ],
)
def test_what_is_wrong_with_it_is_said(changes: dict[str, str], message: str) -> None:
    whole = {
        "WORLD_SIZE": "4",
        "RANK": "2",
        "MASTER_ADDR": "trainer-0",
        "MASTER_PORT": "29500",
        "ROLLCALL_RENDEZVOUS_SECRET": "s",
    }
    with pytest.raises(SpecError, match=f"^environment: .*{message}.*; set RANK, WORLD_SIZE"):
        rendezvous_of({**whole, **changes})
