"""The ranks of one trainer pod as processes of their own, which start and end together.

This process computes nothing and does not import torch. It runs its own command again for each
rank, forwards the signal to stop, and collects every process that ends, also those that it adopts
as the container's first process.
"""

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rollcall_protocol import pod_contract
from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.worker.devices import own_device
from rollcall_runtime.worker.environment import TrainerEnvironment
from rollcall_runtime.worker.exit import write_termination_log

log = logging.getLogger(__name__)

END_SECONDS = 10.0
"""For the pod's other ranks to end by themselves, once one has ended."""
_STOP = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_STOP, signal.SIGCHLD)
_EXPLAINED = (ExitCode.BAD_CONFIG, ExitCode.FENCED, ExitCode.OUT_OF_MEMORY)


@dataclass(frozen=True, slots=True)
class EndedRank:
    """A rank whose process has ended; `code` is its exit code, or minus the number of a signal."""

    local_rank: int
    code: int

    @property
    def exit_code(self) -> int:
        """The code that the container ends with for it, as a shell would."""
        return self.code if self.code >= 0 else 128 - self.code


def run_local_ranks(environment: TrainerEnvironment, variables: Mapping[str, str]) -> int:
    """Run the ranks of this pod until all have ended; `variables` are their environment.

    Returns the exit code of the rank whose end explains that of the others, and leaves its message
    in the termination log. OSError if a process cannot be started.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # the loop waits for them instead
    ranks = _Ranks(environment.state_dir)
    try:
        for local_rank in range(environment.job.trainer_processes):
            ranks.start(local_rank, variables)
        _wait(ranks)
    finally:
        ranks.send(signal.SIGKILL)
    cause = decisive(ranks.ended)
    write_termination_log(_message(environment, ranks, cause).encode())
    return cause.exit_code


def decisive(ended: list[EndedRank]) -> EndedRank:
    """The rank whose end explains that of the others: they are in the order of their ends.

    A rank that says which field to change, or that it was replaced, goes before the others, which
    may notice first that it has left them.
    """
    explained = [rank for rank in ended if rank.code in _EXPLAINED]
    failed = [rank for rank in ended if rank.code != ExitCode.OK]
    return (explained or failed or ended)[0]


@dataclass(slots=True)
class _Ranks:
    """The processes: `running` are local ranks by pid; `folder` holds their exit messages."""

    folder: Path
    running: dict[int, int] = field(default_factory=dict)
    ended: list[EndedRank] = field(default_factory=list)

    def start(self, local_rank: int, variables: Mapping[str, str]) -> None:
        message = self.message_file(local_rank)
        message.write_bytes(b"")
        own = {pod_contract.LOCAL_RANK: str(local_rank), pod_contract.EXIT_MESSAGE: str(message)}
        command = [sys.executable, *sys.orig_argv[1:]]
        pid = os.posix_spawn(
            sys.executable,
            command,
            {**variables, **own_device(local_rank, variables), **own},
            setsigmask=(),
        )
        self.running[pid] = local_rank

    def message_file(self, local_rank: int) -> Path:
        return self.folder / f"exit-message-{local_rank}"

    def send(self, number: signal.Signals) -> None:
        for pid in self.running:  # none of these has been collected, so each pid is still theirs
            os.kill(pid, number)

    def collect(self) -> None:
        """Take note of processes that have ended, and forget orphans of theirs."""
        with suppress(ChildProcessError):  # there is none left
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                local_rank = self.running.pop(pid, None)
                if local_rank is not None:
                    code = os.waitstatus_to_exitcode(status)
                    self.ended.append(EndedRank(local_rank, code))
                    log.info("local rank %d ended with code %d", local_rank, code)


def _wait(ranks: _Ranks) -> None:
    """Until all have ended: once one has, or a signal to stop arrives, the others are to end.

    How long they may take after a signal to stop is for the kubelet to say.
    """
    asked, deadline = False, math.inf
    while ranks.running:
        received = _next_signal(deadline - time.monotonic())
        if received is None:
            log.error("%d ranks did not end in %g s: killed", len(ranks.running), END_SECONDS)
            ranks.send(signal.SIGKILL)
            deadline = math.inf
        before = len(ranks.ended)
        ranks.collect()
        if not asked and (received in _STOP or ranks.ended):
            asked = True  # once: a process that is ending already would die of a second signal
            ranks.send(signal.SIGTERM)
        if ranks.ended and not before:
            deadline = time.monotonic() + END_SECONDS


def _next_signal(seconds: float) -> int | None:
    """The next of _SIGNALS; None if none arrives in time."""
    if seconds == math.inf:
        return signal.sigwaitinfo(_SIGNALS).si_signo
    info = signal.sigtimedwait(_SIGNALS, max(0.0, seconds))
    return None if info is None else info.si_signo


def _message(environment: TrainerEnvironment, ranks: _Ranks, cause: EndedRank) -> str:
    """The decisive rank's own message, else any; a killed process could leave none."""
    written = {
        rank.local_rank: ranks.message_file(rank.local_rank).read_text(errors="replace")
        for rank in ranks.ended
    }
    if written[cause.local_rank]:
        return written[cause.local_rank]
    if cause.code == ExitCode.OK:
        return next((text for text in written.values() if text), "")
    how = f"exit code {cause.code}"
    if cause.code < 0:
        how = f"signal {signal.Signals(-cause.code).name}"
    if cause.code == -signal.SIGKILL:
        how += " (did the pod have too little memory?)"
    rank = environment.rank + cause.local_rank
    return f"rank {rank} (process {cause.local_rank} of the pod) was ended by {how}"
