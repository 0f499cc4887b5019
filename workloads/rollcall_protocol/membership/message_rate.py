"""How many messages a member may send; more than an honest one ever would are a flood."""

BURST_MESSAGES = 10_000
MESSAGES_PER_SECOND = 1_000.0  # a rollout sends at most two for each prompt that it completes


class MessageRate:
    """Counts the messages of one stream. Times are seconds on one clock."""

    def __init__(self, now: float) -> None:
        self._left, self._at = float(BURST_MESSAGES), now

    def take(self, now: float) -> bool:
        """A message arrived: whether it may count."""
        refilled = self._left + (now - self._at) * MESSAGES_PER_SECOND
        self._left, self._at = min(refilled, float(BURST_MESSAGES)), now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
