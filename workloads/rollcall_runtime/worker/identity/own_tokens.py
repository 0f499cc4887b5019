"""The pod's own tokens: files that the kubelet renews, so that each use reads them anew."""

from collections.abc import Callable
from pathlib import Path

from rollcall_runtime.worker.errors import SpecError

TokenSource = Callable[[], str]
"""Gives a token for one connection or request; TokenUnreadableError."""


class TokenUnreadableError(OSError):
    """The token's file is away or empty; an OSError, as a connection that fails."""


class TokenFile:
    """A TokenSource that reads a file. SpecError if that is not there at the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self()
        except TokenUnreadableError as error:
            problem = f"{error}; does the pod mount the operator's volume of tokens?"
            raise SpecError(str(path), problem) from error

    def __call__(self) -> str:
        try:
            token = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise TokenUnreadableError(f"cannot read the token: {error}") from error
        if not token:
            raise TokenUnreadableError(f"{self._path} is empty")
        return token


def bearer(token: str) -> dict[str, str]:
    """The HTTP header that carries a token."""
    return {"Authorization": f"Bearer {token}"}
