"""What a user has asked of the API server so far, counted from its audit log as that grows."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_READS = frozenset({"get", "list"})
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_ASIDE = frozenset({"leases", "events", "serviceaccounts/token"})


class AuditCounts:
    """`requests` by (verb, resource with subresource); reads only what was appended since."""

    def __init__(self, log: Path, *, user: str) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self._log, self._user, self._offset = log, user, 0

    def read(self) -> AuditCounts:
        """Take in what the log has got meanwhile; returns itself."""
        with self._log.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):  # the rest comes
                    break
                self._offset += len(line)
                self._count(json.loads(line))
        return self

    def writes(self) -> int:
        """All but those of the Lease and of events; a token is no object: the server keeps none."""
        return self._sum(_WRITES)

    def reads(self) -> int:
        """GETs and LISTs; a WATCH that is opened again is none."""
        return self._sum(_READS)

    def _sum(self, verbs: frozenset[str]) -> int:
        return sum(
            count
            for (verb, resource), count in self.requests.items()
            if verb in verbs and resource not in _ASIDE
        )

    def _count(self, event: dict[str, object]) -> None:
        user, about = event["user"], event.get("objectRef") or {}
        if not isinstance(user, dict) or not isinstance(about, dict):
            raise TypeError(f"not an audit event: {event}")
        if user["username"] == self._user and event["stage"] != "ResponseStarted":
            parts = (about.get("resource", "-"), about.get("subresource"))
            self.requests[str(event["verb"]), "/".join(str(p) for p in parts if p)] += 1
