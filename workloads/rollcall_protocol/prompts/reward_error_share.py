"""How many samples have no usable reward, and whether more than one rollout says so."""

from collections import deque
from collections.abc import Iterable

WINDOW = 1000  # samples of each rollout
LEAST = 20  # samples without a reward: of fewer, chance makes shares twice as large as they are


class RewardErrorShare:
    """Counts the last WINDOW samples that each connected rollout scored.

    A fault of the function shows on every rollout, one of a rollout (or a lie) on that one alone.
    So with several rollouts the share must also be exceeded without the one that has most errors.
    """

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    def connected(self, pod_uid: str) -> None:
        """A rollout is connected: its samples are waited for."""
        self._windows.setdefault(pod_uid, _Window())

    def disconnected(self, pod_uid: str) -> None:
        """A rollout is gone, and what it said with it."""
        self._windows.pop(pod_uid, None)

    def count(self, pod_uid: str, *, scored: int, failed: int) -> None:
        """A rollout scored samples, of which some have no usable reward."""
        self.connected(pod_uid)
        self._windows[pod_uid].add(scored=scored, failed=failed)

    def counted(self) -> tuple[int, int]:
        """Samples without a usable reward, and all, of every rollout."""
        return _sums(self._windows.values())

    def confirmed(self) -> bool:
        """Whether two rollouts reported an error since they connected, or the only one there is."""
        failing = sum(window.ever_failed for window in self._windows.values())
        return failing >= max(1, min(2, len(self._windows)))

    def exceeds(self, share: float) -> bool:
        """Whether LEAST samples and more than `share` of all have no usable reward."""
        windows = sorted(self._windows.values(), key=lambda window: window.failed)
        judged = [windows, windows[:-1]] if len(windows) > 1 else [windows]
        return all(_exceeds(*_sums(some), share) for some in judged)


class _Window:
    """The last samples of one rollout. `ever_failed`: one of all its samples had no reward."""

    def __init__(self) -> None:
        self._samples: deque[bool] = deque()
        self.failed, self.ever_failed = 0, False

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, *, scored: int, failed: int) -> None:
        self._samples += [True] * failed + [False] * (scored - failed)
        self.failed += failed
        self.ever_failed |= failed > 0
        while len(self._samples) > WINDOW:
            self.failed -= self._samples.popleft()


def _sums(windows: Iterable[_Window]) -> tuple[int, int]:
    """Samples without a usable reward, and all."""
    counted = [(window.failed, len(window)) for window in windows]
    return sum(failed for failed, _ in counted), sum(scored for _, scored in counted)


def _exceeds(failed: int, scored: int, share: float) -> bool:
    return failed >= LEAST and failed > share * scored
