"""Keeps log lines that unauthenticated clients cause from filling the log."""

import logging
import time

REPEATED = {"repeated": True}
"""As `extra` of a line that someone else can cause as often as they like."""
LINES, SECONDS = 20, 60.0  # of one text, with whatever arguments
# Libraries that log what unauthenticated clients send.
_ALWAYS = ("aiohttp.server", "asyncio")


class RepeatedLines(logging.Filter):
    """Drops lines marked REPEATED after the first LINES of their text in SECONDS.

    The last line that passes says that more are dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._seen: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if not getattr(record, "repeated", False) and record.name not in _ALWAYS:
            return True
        if time.monotonic() - self._began > SECONDS:
            self._began, self._seen = time.monotonic(), {}
        text = str(record.msg)
        count = self._seen[text] = self._seen.get(text, 0) + 1
        if count == LINES:
            record.msg = f"{text} (further lines like this are dropped for a minute)"
        return count <= LINES
