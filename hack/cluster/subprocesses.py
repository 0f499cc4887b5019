"""Running other programs: always with a deadline, always with the tail of what they said."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from hack.cluster.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_TAIL_BYTES = 16_000


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    log: Path | None = None,
) -> str:
    """Runs a program and returns its standard output.

    Args:
        argv: the program and its arguments.
        timeout_s: seconds after which it is killed.
        env: variables set on top of this process's own.
        cwd: the folder to run in.
        stdin: text for its standard input; none means an empty one.
        log: a file that gets both outputs as they come; the result is then empty.

    Raises:
        CommandError: it is missing, exited with a status other than 0, or ran too long.
    """
    words = [str(word) for word in argv]
    shown = " ".join(words[:6]) + (" ..." if len(words) > 6 else "")
    full_env = {**os.environ, **(env or {})}
    if shutil.which(words[0], path=full_env.get("PATH")) is None:
        raise CommandError(f"{words[0]}: no such program", output="")
    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("wb") if log else nullcontext(subprocess.PIPE) as sink:
            done = subprocess.run(
                [*_ends_with_us(), *words],
                input=(stdin or "").encode(),
                stdout=sink,
                stderr=subprocess.STDOUT if log else subprocess.PIPE,
                timeout=timeout_s,
                env=full_env,
                cwd=cwd,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        said = tail_of(log) if log else _text(error.stdout) + _text(error.stderr)
        raise CommandError(
            f"{shown}: not done after {timeout_s:.0f} s", output=said, log=log
        ) from error
    out = _text(done.stdout)
    if done.returncode != 0:
        said = tail_of(log) if log else f"{out}\n{_text(done.stderr)}"
        raise CommandError(f"{shown}: exit status {done.returncode}", output=said, log=log)
    return out


def _ends_with_us() -> list[str]:
    # Were this process killed, a build would go on in a folder that the next run sweeps away.
    return ["setpriv", "--pdeathsig=TERM"] if shutil.which("setpriv") else []


def wait_for(
    what: str,
    ready: Callable[[], bool],
    *,
    timeout_s: float,
    every_s: float = 0.2,
    log: Path | None = None,
) -> None:
    """Waits until `ready()` is true.

    Raises:
        ClusterError: it was not within `timeout_s` seconds; quotes the tail of `log`.
    """
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise CommandError(
                f"{what}: not ready after {timeout_s:.0f} s",
                output=tail_of(log) if log else "",
                log=log,
            )
        time.sleep(every_s)


def tail_of(path: Path) -> str:
    """The last part of a log file, or nothing if there is none."""
    try:
        return path.read_text(errors="replace")[-_TAIL_BYTES:]
    except FileNotFoundError:
        return ""


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")
