"""The script that installs Debian packages waits while another package manager holds the lock."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "hack" / "install-packages.sh"
LOCKED = (
    "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (unattended-upgr)\\n"
    "E: Unable to lock directory /var/lib/apt/lists/"
)
APT = """\
#!/bin/sh
echo "$*" >>calls
test "$(wc -l <calls)" -gt {failures} || {{ printf '{error}\\n' >&2; exit 100; }}
"""


class Machine:
    """A machine on which apt-get fails at first; the script believes that it runs as root."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def install(
        self, *, failures: int, error: str = LOCKED, wait_s: int = 600
    ) -> subprocess.CompletedProcess[str]:
        programs = {
            "apt-get": APT.format(failures=failures, error=error),
            "id": "#!/bin/sh\necho 0\n",
            "sleep": "#!/bin/sh\n",
        }
        for name, text in programs.items():
            path = self._folder / name
            path.write_text(text)
            path.chmod(0o755)
        return subprocess.run(
            [SCRIPT, "gcc", "libc6-dev"],
            cwd=self._folder,
            env={
                "PATH": f"{self._folder}{os.pathsep}{os.environ['PATH']}",
                "APT_LOCK_WAIT_S": str(wait_s),
            },
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def calls(self) -> list[str]:
        return (self._folder / "calls").read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_installs_after_a_fresh_list_of_packages(machine: Machine) -> None:
    done = machine.install(failures=0)
    assert done.returncode == 0
    assert done.stderr == "missing on this machine, installing: gcc libc6-dev\n"
    update, install = machine.calls()
    assert update.endswith("DPkg::Lock::Timeout=600 update")
    assert install.endswith("Timeout=600 install -y --no-install-recommends gcc libc6-dev")


def test_it_waits_for_the_lock_and_says_so_once(machine: Machine) -> None:
    done = machine.install(failures=3)
    assert done.returncode == 0
    assert done.stderr.count("another process holds apt's lock; waiting for it") == 1
    assert len(machine.calls()) == 5


def test_a_lock_that_is_never_released_is_an_error_with_its_holder(machine: Machine) -> None:
    done = machine.install(failures=9, wait_s=0)
    assert done.returncode == 1
    assert "It is held by process 7 (unattended-upgr)" in done.stderr
    assert "wait until it ends, or stop it, and run make again" in done.stderr
    assert len(machine.calls()) == 1


def test_another_failure_is_shown_and_not_repeated(machine: Machine) -> None:
    done = machine.install(failures=9, error="E: Unable to locate package gcc")
    assert done.returncode == 1
    assert done.stderr.endswith("E: Unable to locate package gcc\n")
    assert len(machine.calls()) == 1
