"""What a member does when the coordinator refuses its token: it goes on for some minutes."""

import time

REFUSED_SECONDS = 300.0
"""Longer than the coordinator may take to learn of keys that the cluster has rotated."""


class CredentialsRefusedError(RuntimeError):
    """The coordinator refuses this pod's token for good."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"{url} has refused this pod's token for {REFUSED_SECONDS:.0f} s: {reason}; have "
            "operator and workers the same release, and has the job's ConfigMap the present keys?"
        )


class RefusalPatience:
    """Ends a member whose token has been refused for REFUSED_SECONDS without a break."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._since: float | None = None

    def accepted(self) -> None:
        """The token was taken."""
        self._since = None

    def refused(self, reason: str) -> None:
        """The token was refused; CredentialsRefusedError when that has lasted."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= REFUSED_SECONDS:
            raise CredentialsRefusedError(self._url, reason)
