"""Which pods are not believed any more: they stay excluded until the operator replaces them.

More messages than an honest member ever sends are a flood, which counts as a bad message.
"""

from collections import deque
from collections.abc import Collection

from rollcall_protocol.wire.bounded_lines import Allowance

MAX_BAD_MESSAGES = 3
WINDOW_SECONDS = 60.0
BURST_MESSAGES = 10_000
MESSAGES_PER_SECOND = 1_000.0  # a rollout sends at most two for each prompt that it completes


class BadMessageCounter:
    """Counts by pod uid. Times are seconds on one clock.

    `excluded` are the pods that sent MAX_BAD_MESSAGES within WINDOW_SECONDS, and those that the
    coordinator adds for another cause (`job_snapshot.UNTRUSTED`). A container that starts again in
    its pod is the same pod.
    """

    def __init__(self) -> None:
        self.excluded: set[str] = set()
        self._times: dict[str, deque[float]] = {}

    def add(self, pod_uid: str, now: float) -> bool:
        """Count a bad message of the pod; True if the pod is excluded by it."""
        if pod_uid in self.excluded:
            return False
        times = self._times.setdefault(pod_uid, deque(maxlen=MAX_BAD_MESSAGES))
        times.append(now)
        if len(times) < MAX_BAD_MESSAGES or now - times[0] > WINDOW_SECONDS:
            return False
        del self._times[pod_uid]
        self.excluded.add(pod_uid)
        return True

    def keep_only(self, pod_uids: Collection[str]) -> None:
        """Forget all other pods: their uids do not come back."""
        self.excluded.intersection_update(pod_uids)
        for gone in self._times.keys() - set(pod_uids):
            del self._times[gone]


def message_allowance(now: float) -> Allowance:
    """Of the messages of one stream; `now` as with Allowance."""
    return Allowance(now, burst=BURST_MESSAGES, each_second=MESSAGES_PER_SECOND)
