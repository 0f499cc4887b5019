"""Follows the coordinator's stream for operators, and records when each state arrived."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from hack.bench.recovery.pod_processes import WorkerProcess, connect_to_coordinator
from rollcall_protocol import pod_contract
from rollcall_protocol.wire.job_snapshot import JobSnapshot, MemberState
from rollcall_protocol.wire.messages import loads


@dataclass(frozen=True, slots=True)
class StreamedState:
    """A state, and when it came (seconds of time.time())."""

    at: float
    state: JobSnapshot

    @property
    def in_sync(self) -> set[str]:
        """Pods of members that serve current weights."""
        return {m.pod_uid for m in self.state.members if m.state is MemberState.IN_SYNC}

    @property
    def members(self) -> int:
        """Members of the session, the trainer included."""
        return self.state.session.members if self.state.session else 0


class JobStateStream:
    """Reads in a thread until closed, or until the coordinator ends. OSError if there is none.

    The connection is made inside the trainer's network: pods' addresses are not known outside.
    """

    def __init__(self, process: WorkerProcess, *, address: str, token: str) -> None:
        self.address = address
        self.history: list[StreamedState] = []
        self.ended = ""  # why, once it has
        self._news = threading.Condition()
        self._socket = connect_to_coordinator(process, address=address)
        self._socket.settimeout(None)
        request = (
            f"GET {pod_contract.OPERATOR_STREAM_ROUTE} HTTP/1.0\r\nHost: coordinator\r\n"
            f"Authorization: Bearer {token}\r\n\r\n"
        )
        self._socket.sendall(request.encode())
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the connection to the coordinator; no further state is recorded."""
        self._socket.close()

    def until(
        self, what: Callable[[StreamedState], bool], *, seconds: float, after: float | None = None
    ) -> StreamedState:
        """The first state since `after` of which `what` holds; without `after`, from the newest.

        TimeoutError when none comes, ConnectionError when the coordinator ended.
        """
        deadline = time.monotonic() + seconds
        start = max(0, len(self.history) - 1) if after is None else 0
        with self._news:
            while True:
                for seen in self.history[start:]:
                    if (after is None or seen.at >= after) and what(seen):
                        return seen
                start = len(self.history)
                if self.ended:
                    raise ConnectionError(f"the coordinator's stream ended: {self.ended}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"not within {seconds:.0f} s; last: {self.history[-1:]}")
                self._news.wait(left)

    def _follow(self) -> None:
        why = "closed"
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    if line.startswith(b"{"):
                        self._add(StreamedState(time.time(), loads(line, JobSnapshot)))
        except (OSError, ValueError) as error:  # killed, closed here, or of another release
            why = f"{type(error).__name__}: {error}"
        with self._news:
            self.ended = why
            self._news.notify_all()

    def _add(self, seen: StreamedState) -> None:
        with self._news:
            self.history.append(seen)
            self._news.notify_all()
